"""Checks that a samples file and a results file are of one run: the metrics must come out again."""

from __future__ import annotations

import math

import numpy as np

from evalguard.core.score_items import DocumentStatistics

_RELATIVE = 1e-6
_ABSOLUTE = 1e-9


def metric_value(statistics: DocumentStatistics) -> float:
    """Aggregate documents as lm-eval does (see ``evalguard.core.scores.Aggregation``)."""
    if statistics.rescoring is not None:
        return statistics.rescoring.metric(np.arange(statistics.values.size))
    total = statistics.values.sum()
    with np.errstate(all="ignore"):  # what is out of range is not a value, and cannot agree
        if statistics.weights is None:
            mean = total / statistics.values.size
            return float(np.exp(-mean) if statistics.aggregation == "perplexity" else mean)
        ratio = -total / statistics.weights.sum()
        if statistics.aggregation == "bits_per_byte":
            return float(ratio / math.log(2))
        return float(np.exp(ratio))


def run_disagreement(statistics: DocumentStatistics, reported: float) -> str:
    """Say where the samples give another value than the results file, or return ""."""
    value = metric_value(statistics)
    if _agree(value, reported):
        return ""
    return f"the samples give {value:.10g}, the results file says {reported:.10g}"


def stderr_disagreement(statistics: DocumentStatistics, reported: float | None) -> str:
    """Say where the samples give another standard error than the results file, or return "".

    Of means only: lm-eval bootstraps those of perplexities.
    """
    n = statistics.values.size
    if statistics.aggregation != "mean" or reported is None or n < 2:
        return ""
    stderr = float(statistics.values.std(ddof=1)) / math.sqrt(n)
    if _agree(stderr, reported):
        return ""
    return f"a standard error of {stderr:.4g}, and the results file says {reported:.4g}"


def _agree(found: float, reported: float) -> bool:
    return bool(np.isclose(found, reported, rtol=_RELATIVE, atol=_ABSOLUTE, equal_nan=True))
