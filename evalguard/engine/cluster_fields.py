"""Clusters: which documents share a passage, as the user declares it, or a prompt, as is seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from evalguard.core.document_columns import DocumentFields
from evalguard.core.document_statistics import request_hash
from evalguard.core.scores import ScoreTable
from evalguard.errors import UsageError, nearest

FieldsByTask = Mapping[str, DocumentFields]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterChoice:
    """Fields of documents that say which of them belong together.

    ``of_all`` (``--cluster``) counts for every task whose documents have that field and wins over
    ``by_task`` (``clusters`` of a guard file) there.
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


# Documents that share prompts could make the variance so much larger, at most, as is worth a word.
_WORTH_CLUSTERING = 1.2


def cluster_equal_prompts(
    base: Sequence[ScoreTable], candidate: Sequence[ScoreTable]
) -> tuple[tuple[ScoreTable, ...], tuple[ScoreTable, ...]]:
    """Return both sides' tables, where no clusters are declared with those of one question.

    One question that is asked six times is answered alike six times, and counts as one. A few
    questions that stand twice change nothing.
    """
    theirs = {table.key: table for table in candidate}
    labels: dict[tuple[str, str, str], Mapping[int, str]] = {}
    for table in base:
        partner = theirs.get(table.key)
        if partner is not None and not table.clusters and not partner.clusters:
            shared = _equal_prompts(table, partner)
            if shared:
                labels[table.key] = shared
    ours, clustered = (
        tuple(
            with_clusters(table, labels[table.key], _equal_prompts_text(labels[table.key]))
            if table.key in labels
            else table
            for table in side
        )
        for side in (base, candidate)
    )
    return ours, clustered


def with_clusters(table: ScoreTable, labels: Mapping[int, str], said: str) -> ScoreTable:
    """A table whose documents belong together by these labels, and that says so."""
    clusters = tuple(labels.get(doc, f"document {doc}") for doc in table.doc_ids.tolist())
    return replace(table, clusters=clusters, provenance=(*table.provenance, said))


def _equal_prompts(base: ScoreTable, candidate: ScoreTable) -> Mapping[int, str]:
    """The first document that asks what each one asks; {} where too few ask the same."""
    side = base if _shows_questions(base) else candidate
    keys: list[object] = list(side.doc_hashes)
    if _shows_questions(side):
        tokens = side.token_hashes or ("",) * side.n
        keys = list(zip(side.asked_hashes, side.target_hashes, tokens, strict=True))
    elif not all(side.doc_hashes) or len(set(side.doc_hashes)) == 1:
        return {}  # nobody knows what was asked
    sizes = Counter(keys)
    if sum(size * size for size in sizes.values()) < _WORTH_CLUSTERING * len(keys):
        return {}
    first: dict[object, int] = {}
    return {
        doc: f"as document {first.setdefault(key, doc)}"
        for doc, key in zip(side.doc_ids.tolist(), keys, strict=True)
    }


# What is asked in token ids alone, or was not recorded.
_NO_TEXTS = ("", request_hash(()), request_hash([()]))


def _shows_questions(table: ScoreTable) -> bool:
    """Whether it is known what was asked of every document: by its texts, or its token ids."""
    asked = table.asked_hashes
    return bool(asked) and (bool(table.token_hashes) or not set(_NO_TEXTS).intersection(asked))


def _equal_prompts_text(labels: Mapping[int, str]) -> str:
    return (
        f"{len(labels):,} documents ask {len(set(labels.values())):,} different questions: those "
        "that ask the same count as one cluster"
    )


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
