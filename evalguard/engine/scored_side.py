"""What one side of a comparison answered, whether it is a model or a finished run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from evalguard.core.compare_report import RunIdentity
from evalguard.core.document_columns import DocumentFields
from evalguard.core.findings import Finding
from evalguard.core.hyperparameters import HeldValue
from evalguard.core.scorer import ModelDescription
from evalguard.core.scores import NotCompared, ScoreTable, TaskGroup
from evalguard.core.settings import Value
from evalguard.core.shown_tokens import ShownTokens
from evalguard.distributions.task_distributions import TaskDivergences
from evalguard.engine.executor import Evaluation
from evalguard.engine.run_identities import identify_file, identify_model, identify_run
from evalguard.engine.sources import (
    BaselineSource,
    ModelSource,
    ReferenceSource,
    RunSource,
    StoredSource,
)
from evalguard.harness.finished_runs.run_facts import RunOrigin
from evalguard.harness.score_tables import TaskScores


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredSide:
    """One side with its scores, whether they were just made or read from a finished run.

    ``description`` is the model's own; None for a finished run.
    ``samples``: of a finished lm-eval run without tables: they show its documents, and do not make
    it a baseline; of a stored base those that were kept, {} of one from a history.
    ``divergences`` of a candidate: how its distributions differ from the base's, by task; empty
    where that was not measured. ``shown``: what a server shows of its distributions, by task.
    ``origin``: which model answered, as a finished lm-eval run records it. ``lost``: metrics that
    such a run scored, or should have, and has no scores of documents for, with the reason.
    ``findings``: what of how it was scored every reader must see. ``declared``: hyper-parameters
    that its files name, of a model that another library runs and that does not show its own.
    """

    identity: RunIdentity
    tables: tuple[ScoreTable, ...]
    description: ModelDescription | None = None
    fields: Mapping[str, DocumentFields] = field(default_factory=dict)
    samples: Mapping[str, TaskScores] = field(default_factory=dict)
    divergences: Mapping[str, TaskDivergences] = field(default_factory=dict)
    shown: Mapping[str, ShownTokens] = field(default_factory=dict)
    not_compared: tuple[NotCompared, ...] = ()
    groups: tuple[TaskGroup, ...] = ()
    environment: Mapping[str, Value] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    origin: RunOrigin | None = None
    lost: Mapping[tuple[str, str, str], str] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    declared: tuple[HeldValue, ...] = ()


def side_of_model(source: ModelSource | ReferenceSource, evaluation: Evaluation) -> ScoredSide:
    """The side of a model that has answered, here or where a reference file was written."""
    scores = evaluation.scores
    return ScoredSide(
        identity=identify_file(source)
        if isinstance(source, ReferenceSource)
        else identify_model(source, evaluation.description),
        tables=tuple(table for task in scores.values() for table in task.tables),
        description=evaluation.description,
        fields={task: of.fields for task, of in scores.items()},
        samples=scores,
        divergences=evaluation.divergences,
        shown=evaluation.shown,
        not_compared=tuple(skipped for task in scores.values() for skipped in task.not_compared),
        groups=evaluation.groups,
        environment=evaluation.description.environment,
        notes=(*evaluation.notes, *evaluation.description.caveats),
        findings=evaluation.findings,
    )


def side_of_lmeval_run(source: RunSource) -> ScoredSide:
    """The side of a finished lm-eval run."""
    run = source.run
    return ScoredSide(
        identity=identify_run(source),
        tables=run.tables,
        fields=run.fields,
        samples={
            task: TaskScores(
                task=task,
                tables=(),
                not_compared=(),
                samples=documents,
                scoring=run.scoring.get(task, {}),
            )
            for task, documents in run.documents.items()
        },
        not_compared=run.not_compared,
        groups=run.groups,
        environment=run.environment,
        notes=run.notes,
        findings=run.findings,
        origin=run.origin,
        lost=run.lost,
    )


def side_of_stored(source: StoredSource) -> ScoredSide:
    """The side of a run that is finished, whoever made it."""
    return (
        side_of_baseline(source)
        if isinstance(source, BaselineSource)
        else side_of_lmeval_run(source)
    )


def side_of_baseline(source: BaselineSource) -> ScoredSide:
    """The side of a base whose scores were kept."""
    run = source.run
    return ScoredSide(
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


def limit_to_candidate_tasks(base: ScoredSide, candidate: ScoredSide) -> ScoredSide:
    """A kept base with the tasks that the candidate was asked; any other side as it is."""
    if base.identity.kind != "stored run":
        return base
    asked = {table.task for table in candidate.tables}
    asked |= {skipped.task for skipped in candidate.not_compared}
    unasked = dict.fromkeys(table.task for table in base.tables if table.task not in asked)
    if not unasked:
        return base
    return replace(
        base,
        tables=tuple(table for table in base.tables if table.task in asked),
        samples={task: of for task, of in base.samples.items() if task in asked},
        not_compared=tuple(skipped for skipped in base.not_compared if skipped.task in asked),
        notes=(*base.notes, f"it was stored with tasks that are not asked: {', '.join(unasked)}"),
    )
