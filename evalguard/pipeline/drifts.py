"""Drifts: what every document adds to the drift of every metric, for the files of a run."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from evalguard.compare_report import CompareReport
from evalguard.comparison import Comparison
from evalguard.document_scale import DocumentScale
from evalguard.errors import MisalignedRunsError, UsageError
from evalguard.pairing import pair
from evalguard.pipeline.scored import Scored
from evalguard.run_documents import drift_column
from evalguard.scores import ScoreTable

Drifts = Mapping[int, float]


def document_drifts(
    report: CompareReport, scored: tuple[Scored, Scored], allow: frozenset[str]
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
        drifts = _drifts(comparison, base[key], candidate[key], allow)
        if drifts is not None:
            found.setdefault(key[0], {})[drift_column(key[1], key[2])] = drifts
    return found


def _drifts(
    comparison: Comparison, base: ScoreTable, candidate: ScoreTable, allow: frozenset[str]
) -> Drifts | None:
    try:
        pair(base, candidate, allow=allow)
        scale = DocumentScale.of(base, population=comparison.n)
    except (MisalignedRunsError, UsageError):
        return None
    with np.errstate(invalid="ignore"):  # an infinite log-likelihood on both sides
        parts = (scale.values(base) - scale.values(candidate)) / base.n / scale.yardstick
    return dict(zip(base.doc_ids.tolist(), parts.tolist(), strict=True))
