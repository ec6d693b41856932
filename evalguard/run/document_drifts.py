"""What every document adds to the drift of every metric, for the files of a run."""

from __future__ import annotations

from collections.abc import Mapping

from evalguard.core.comparison import Comparison
from evalguard.core.document_scale import DocumentScale
from evalguard.core.pairing import pair
from evalguard.core.reports.compare_report import CompareReport
from evalguard.core.reports.run_documents import drift_column
from evalguard.core.score_rows import finite_rows
from evalguard.core.scores import ScoreTable
from evalguard.errors import (
    MisalignedRunsError,
    UsageError,
)
from evalguard.run.scoring.scored_side import ScoredSide

Drifts = Mapping[int, float]


def compute_document_drifts(
    report: CompareReport, scored: tuple[ScoredSide, ScoredSide], allow: frozenset[str]
) -> dict[str, dict[str, Drifts]]:
    """Return each document's part of sigma, by task and name of the column.

    Left out are metrics that failed, that are no sum over documents, or that have no standard
    error to be measured in.

    Args:
        allow: differences between the sides that were allowed when they were paired.
    """
    base, candidate = ({table.key: table for table in side.tables} for side in scored)
    found: dict[str, dict[str, Drifts]] = {}
    for comparison in report.comparisons:
        key = comparison.key
        if comparison.outcome == "failed" or key not in base or key not in candidate:
            continue
        drifts = _metric_drifts(comparison, base[key], candidate[key], allow)
        if drifts is not None:
            found.setdefault(key[0], {})[drift_column(key[1], key[2])] = drifts
    return found


def _metric_drifts(
    comparison: Comparison, base: ScoreTable, candidate: ScoreTable, allow: frozenset[str]
) -> Drifts | None:
    try:
        pair(base, candidate, allow=allow)
        base, candidate = finite_rows(base, candidate)
        population = 0 if comparison.stopping is None else comparison.n
        scale = DocumentScale.of(base, population=population)
    except (MisalignedRunsError, UsageError):
        return None
    parts = (scale.values(base) - scale.values(candidate)) / base.n / scale.yardstick
    return dict(zip(base.doc_ids.tolist(), parts.tolist(), strict=True))
