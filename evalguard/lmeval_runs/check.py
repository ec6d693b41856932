"""Checks that a samples file and a results file are of one run: the metrics must come out again."""

from __future__ import annotations

import math

import numpy as np

from evalguard.items import DocumentStatistics

_RELATIVE = 1e-6
_ABSOLUTE = 1e-9


def metric_value(statistics: DocumentStatistics) -> float:
    """Aggregate documents as lm-eval does (see ``evalguard.scores.Aggregation``)."""
    if statistics.rescoring is not None:
        return statistics.rescoring.metric(np.arange(statistics.values.size))
    total = statistics.values.sum()
    with np.errstate(all="ignore"):  # what is out of range is no value, and cannot agree
        if statistics.weights is None:
            mean = total / statistics.values.size
            return float(np.exp(-mean) if statistics.aggregation == "perplexity" else mean)
        ratio = -total / statistics.weights.sum()
        if statistics.aggregation == "bits_per_byte":
            return float(ratio / math.log(2))
        return float(np.exp(ratio))


def disagreement(
    statistics: DocumentStatistics, reported: float, reported_stderr: float | None
) -> str:
    """Say where the samples give another value than the results file, or return "".

    The standard error is compared for means only: lm-eval bootstraps those of perplexities.
    """
    value = metric_value(statistics)
    if not _agree(value, reported):
        return f"the samples give {value:.10g}, the results file says {reported:.10g}"
    if statistics.aggregation != "mean" or reported_stderr is None or statistics.values.size < 2:
        return ""
    stderr = float(statistics.values.std(ddof=1)) / math.sqrt(statistics.values.size)
    if not _agree(stderr, reported_stderr):
        return (
            f"the samples give a standard error of {stderr:.10g}, the results file says "
            f"{reported_stderr:.10g}"
        )
    return ""


def _agree(found: float, reported: float) -> bool:
    return bool(np.isclose(found, reported, rtol=_RELATIVE, atol=_ABSOLUTE, equal_nan=True))
