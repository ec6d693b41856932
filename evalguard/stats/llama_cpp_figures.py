"""The figures of ``llama-perplexity --kl-divergence``, by its own formulas.

tools/perplexity/perplexity.cpp, ``kl_divergence``: errors are those of means of independent
positions, variances divided by n - 1 after they were taken with n.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from evalguard.core.distribution_comparison import Figure, LlamaCppFigures, Percentile
from evalguard.stats.moments import Array

_FEWEST = 100  # "we do not wish to do statistics on so few values"


def llama_cpp_figures(
    base: Array,
    candidate: Array,
    kl: Array,
    same_top: Array,
    *,
    kl_percents: Sequence[float],
    dp_percents: Sequence[float],
) -> LlamaCppFigures | None:
    """Return what llama.cpp prints; None of fewer positions than it prints anything of.

    Args:
        base, candidate: log-probabilities of the scored tokens, shape (T,).
        kl: KL at each position; same_top: whether both have the same most probable token.
    """
    count = len(kl)
    if count < _FEWEST:
        return None
    ours, theirs = _mean(-base), _mean(-candidate)
    covariance = (float(np.mean(base * candidate)) - ours[0] * theirs[0]) / (count - 1)
    errors = ours[1] * theirs[1]
    log_ratio = theirs[0] - ours[0], _root(theirs[1] ** 2 + ours[1] ** 2 - 2.0 * covariance)
    perplexities = [(math.exp(mean), math.exp(mean) * error) for mean, error in (ours, theirs)]
    (base_ppl, base_error), (ppl, error) = perplexities
    ratio = math.exp(log_ratio[0])
    apart = _root(error**2 + base_error**2 - 2.0 * ppl * base_ppl * covariance)
    dp = np.exp(candidate) - np.exp(base)
    square, square_error = _mean(np.square(dp))
    rms = math.sqrt(square)
    same = float(np.mean(same_top))
    return LlamaCppFigures(
        positions=count,
        perplexity=Figure(value=ppl, stderr=error),
        base_perplexity=Figure(value=base_ppl, stderr=base_error),
        correlation=covariance / errors if errors > 0.0 else None,
        log_ratio=_figure(log_ratio),
        ratio=Figure(value=ratio, stderr=ratio * log_ratio[1]),
        difference=Figure(value=ppl - base_ppl, stderr=apart),
        kl=_figure(_mean(kl)),
        kl_percentiles=_percentiles(kl, kl_percents),
        dp=_figure(_mean(dp)),
        dp_percentiles=_percentiles(dp, dp_percents),
        dp_rms=Figure(value=rms, stderr=0.5 / rms * square_error if rms > 0.0 else 0.0),
        same_top=Figure(value=same, stderr=math.sqrt(same * (1.0 - same) / (count - 1))),
    )


def _mean(values: Array) -> tuple[float, float]:
    mean = float(np.mean(values))
    variance = float(np.mean(np.square(values))) - mean * mean
    return mean, _root(variance / (len(values) - 1))


def _root(square: float) -> float:
    return math.sqrt(square) if square > 0.0 else 0.0


def _figure(found: tuple[float, float]) -> Figure:
    return Figure(value=found[0], stderr=found[1])


def _percentiles(values: Array, percents: Sequence[float]) -> tuple[Percentile, ...]:
    ordered = np.sort(values)
    return tuple(
        Percentile(percent=percent, figure=Figure(value=_percentile(ordered, percent)))
        for percent in percents
    )


def _percentile(ordered: Array, percent: float) -> float:
    """Between two positions, found in float32; the median exactly."""
    last = len(ordered) - 1
    if percent == 50.0:
        return float(ordered[len(ordered) // 2] + ordered[last // 2]) / 2.0
    place = np.float32(np.float32(percent / 100.0) * np.float32(last))
    below = min(int(place), last)
    part = float(place) - below
    return (1.0 - part) * float(ordered[below]) + part * float(ordered[min(below + 1, last)])
