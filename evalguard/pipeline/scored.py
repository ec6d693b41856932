"""Scored: one side of a comparison with its scores, wherever they come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from evalguard.compare_report import RunIdentity
from evalguard.document_fields import DocumentFields
from evalguard.harness import TaskScores
from evalguard.pipeline.divergences import TaskDivergences
from evalguard.pipeline.evaluate import Evaluation
from evalguard.pipeline.identity import model_identity, run_identity
from evalguard.pipeline.sources import KeptSource, ModelSource, RunSource, StoredSource
from evalguard.scorer import ModelDescription
from evalguard.scores import NotCompared, ScoreTable
from evalguard.settings import Value
from evalguard.task_group import TaskGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """One side with its scores, whether they were just made or read from a finished run.

    ``description`` is the model's own; None for a finished run.
    ``samples``: of a finished lm-eval run without tables: they show its documents, and do not make
    it a baseline; of a stored base those that were kept, {} of one from a history.
    ``divergences`` of a candidate: how its distributions differ from the base's, by task; empty
    where that was not measured.
    """

    identity: RunIdentity
    tables: tuple[ScoreTable, ...]
    description: ModelDescription | None = None
    fields: Mapping[str, DocumentFields] = field(default_factory=dict)
    samples: Mapping[str, TaskScores] = field(default_factory=dict)
    divergences: Mapping[str, TaskDivergences] = field(default_factory=dict)
    not_compared: tuple[NotCompared, ...] = ()
    groups: tuple[TaskGroup, ...] = ()
    environment: Mapping[str, Value] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def scored_model(source: ModelSource, evaluation: Evaluation) -> Scored:
    """The side of a model that has answered."""
    scores = evaluation.scores
    return Scored(
        identity=model_identity(source, evaluation.description),
        tables=tuple(table for task in scores.values() for table in task.tables),
        description=evaluation.description,
        fields={task: of.fields for task, of in scores.items()},
        samples=scores,
        divergences=evaluation.divergences,
        not_compared=tuple(left for task in scores.values() for left in task.not_compared),
        groups=evaluation.groups,
        environment=evaluation.description.environment,
        notes=(*evaluation.notes, *evaluation.description.caveats),
    )


def scored_run(source: RunSource) -> Scored:
    """The side of a finished lm-eval run."""
    run = source.run
    return Scored(
        identity=run_identity(source),
        tables=run.tables,
        fields=run.fields,
        samples={
            task: TaskScores(task=task, tables=(), not_compared=(), samples=documents)
            for task, documents in run.documents.items()
        },
        not_compared=run.not_compared,
        groups=run.groups,
        environment=run.environment,
        notes=run.notes,
    )


def scored_stored(source: StoredSource) -> Scored:
    """The side of a run that is finished, whoever made it."""
    return scored_kept(source) if isinstance(source, KeptSource) else scored_run(source)


def scored_kept(source: KeptSource) -> Scored:
    """The side of a base whose scores were kept."""
    run = source.run
    return Scored(
        identity=replace(run.identity, name=source.name),
        tables=run.tables,
        fields=run.fields,
        samples={
            task: TaskScores(
                task=task,
                tables=tuple(table for table in run.tables if table.task == task),
                not_compared=(),
                samples=rows,
            )
            for task, rows in run.rows.items()
        },
        not_compared=run.not_compared,
        environment=run.environment,
        notes=run.notes,
    )


def asked_only(base: Scored, candidate: Scored) -> Scored:
    """A kept base with the tasks that the candidate was asked; any other side as it is."""
    if base.identity.kind != "stored run":
        return base
    asked = {table.task for table in candidate.tables}
    asked |= {left.task for left in candidate.not_compared}
    more = dict.fromkeys(table.task for table in base.tables if table.task not in asked)
    if not more:
        return base
    return replace(
        base,
        tables=tuple(table for table in base.tables if table.task in asked),
        samples={task: of for task, of in base.samples.items() if task in asked},
        not_compared=tuple(left for left in base.not_compared if left.task in asked),
        notes=(*base.notes, f"it was stored with tasks that are not asked: {', '.join(more)}"),
    )
