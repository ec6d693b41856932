"""Clusters: which documents share a passage, as the user declares it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from evalguard.core.document_fields import DocumentFields
from evalguard.core.scores import ScoreTable
from evalguard.errors import UsageError, nearest

FieldsByTask = Mapping[str, DocumentFields]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterChoice:
    """Fields of documents that say which of them belong together.

    ``of_all`` (``--cluster``) counts for every task whose documents have that field and wins over
    ``by_task`` (``clusters`` of a guard file) there. Nothing is clustered without being told to.
    """

    of_all: str = ""
    by_task: Mapping[str, str] = field(default_factory=dict)

    @property
    def declared(self) -> bool:
        """Whether the user said anything about clusters."""
        return bool(self.of_all or self.by_task)

    def field_of(self, task: str, fields: DocumentFields) -> str:
        """The field of a task's documents, "" where there is none.

        Raises:
            UsageError: if the guard file names a field that the task's documents do not have.
        """
        if self.of_all and self.of_all in fields.labels:
            return self.of_all
        name = self.by_task.get(task, "")
        if name and name not in fields.labels:
            raise _unknown_field(name, f"the documents of task '{task}'", fields.labels)
        return name


def check_clusters(choice: ClusterChoice, fields: FieldsByTask) -> None:
    """Refuse a field that no task's documents have.

    Raises:
        UsageError: with the nearest field that there is.
    """
    for task in fields:
        choice.field_of(task, fields[task])
    if not choice.of_all or not fields:
        return
    known = {name for of_task in fields.values() for name in of_task.labels}
    if choice.of_all not in known:
        raise _unknown_field(choice.of_all, "the documents of any task", known)


def cluster_documents(
    tables: Sequence[ScoreTable], fields: FieldsByTask, choice: ClusterChoice
) -> tuple[ScoreTable, ...]:
    """Return the tables with their clusters, or with a caveat where documents seem to share some.

    Raises:
        UsageError: for a field that the documents do not have, or only some of them.
    """
    check_clusters(choice, fields)
    none = DocumentFields()
    return tuple(_cluster_table(table, fields.get(table.task, none), choice) for table in tables)


def note_uncompared(choice: ClusterChoice, tasks: Collection[str]) -> tuple[str, ...]:
    """A note for each task that the guard file clusters and that is not compared."""
    return tuple(
        f"clusters: task '{task}' is not among those compared{nearest(task, tasks)}"
        for task in choice.by_task
        if task not in tasks
    )


def _cluster_table(table: ScoreTable, fields: DocumentFields, choice: ClusterChoice) -> ScoreTable:
    name = choice.field_of(table.task, fields)
    if not name:
        caveat = _suggest_field(fields)
        if choice.of_all:
            caveat = f"no field '{choice.of_all}' in its documents: they count as independent"
        return replace(table, caveats=(*table.caveats, caveat)) if caveat else table
    labels = fields.labels[name]
    without = [int(doc_id) for doc_id in table.doc_ids if int(doc_id) not in labels]
    if without:
        raise UsageError(
            f"task '{table.task}': {len(without):,} of {table.n:,} documents have no text or whole "
            f"number in field '{name}' (first: document {without[0]})",
            hint="cluster by a field that every document has, or leave the clusters out",
        )
    return replace(
        table, clusters=tuple(labels[int(doc_id)] for doc_id in table.doc_ids), cluster_field=name
    )


def _suggest_field(fields: DocumentFields) -> str:
    name = fields.likely_cluster()
    if not name:
        return ""
    return (
        f"documents share {name}: {fields.count(name):,} distinct values in {fields.n:,}, and they "
        f"count as independent here; --cluster {name} takes that into account"
    )


def _unknown_field(name: str, where: str, known: Mapping[str, object] | set[str]) -> UsageError:
    return UsageError(
        f"cannot cluster by '{name}': {where} have no such text or whole number"
        f"{nearest(name, known)}",
        hint=f"fields: {', '.join(sorted(known)) or 'none'}",
    )
