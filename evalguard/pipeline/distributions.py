"""From what was measured at every position to one comparison of distributions per task."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from evalguard.distribution_comparison import DistributionComparison
from evalguard.pipeline.divergences import GENERATES, TaskDivergences
from evalguard.scores import ScoreTable
from evalguard.stats.distribution import compare_distributions


def distributions_of(
    divergences: Iterable[TaskDivergences],
    tables: Sequence[ScoreTable],
    *,
    confidence: float,
) -> tuple[DistributionComparison, ...]:
    """Compare two models' distributions, task by task.

    A task that only generates has no scored token, and is left out. Any other one that was not
    measured is a failure with its reason, so that no limit of the gate passes over it.

    Args:
        tables: of one side, with the clusters of their documents.
    """
    return tuple(
        _compared(one, tables, confidence) for one in divergences if one.reason != GENERATES
    )


def _compared(
    measured: TaskDivergences, tables: Sequence[ScoreTable], confidence: float
) -> DistributionComparison:
    if measured.reason:
        return DistributionComparison(
            task=measured.task,
            n=0,
            positions=0,
            top_k=0,
            confidence=confidence,
            failure=measured.reason,
        )
    clusters, field = _clusters(measured, tables)
    return compare_distributions(
        measured.task,
        measured.documents,
        confidence=confidence,
        clusters=clusters,
        cluster_field=field,
    )


def _clusters(
    measured: TaskDivergences, tables: Sequence[ScoreTable]
) -> tuple[Mapping[int, str] | None, str]:
    """Each document's label, and the field it comes from; None where each stands alone.

    A document that no metric has a value for belongs to no cluster but its own.
    """
    clustered = [table for table in tables if table.task == measured.task and table.clusters]
    if not clustered:
        return None, ""
    labels = {
        doc_id: f"in {label}"
        for table in clustered
        for doc_id, label in zip(table.doc_ids.tolist(), table.clusters, strict=True)
    }
    alone = {one.doc_id: f"document {one.doc_id}" for one in measured.documents}
    return {**alone, **labels}, clustered[0].cluster_field
