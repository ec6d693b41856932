"""The block that ``llama-perplexity --kl-divergence`` prints at its end, to the letter.

Labels, order and digits are those of tools/perplexity/perplexity.cpp, ``kl_divergence``.

tools/perplexity/perplexity.cpp, ``kl_divergence``: errors are those of means of independent
positions, variances divided by n - 1 after they were taken with n.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from evalguard.core.distribution_comparison import Figure, LlamaCppFigures, Percentile
from evalguard.core.moments import Array

_NAMES = {0.0: "Minimum", 50.0: "Median ", 100.0: "Maximum"}


def llama_cpp_lines(found: LlamaCppFigures) -> tuple[str, ...]:
    """Return the lines of the block."""
    return tuple(_lines(found))


def _lines(found: LlamaCppFigures) -> Iterator[str]:
    correlation = math.nan if found.correlation is None else 100.0 * found.correlation
    yield "====== Perplexity statistics ======"
    yield f"Mean PPL(Q)                   : {_wide(found.perplexity)}"
    yield f"Mean PPL(base)                : {_wide(found.base_perplexity)}"
    yield f"Cor(ln(PPL(Q)), ln(PPL(base))): {correlation:6.2f}%"
    yield f"Mean ln(PPL(Q)/PPL(base))     : {_wide(found.log_ratio)}"
    yield f"Mean PPL(Q)/PPL(base)         : {_wide(found.ratio)}"
    yield f"Mean PPL(Q)-PPL(base)         : {_wide(found.difference)}"
    yield ""
    yield "====== KL divergence statistics ======"
    yield f"Mean    KLD: {_wide(found.kl)}"
    for percentile in reversed(found.kl_percentiles):
        yield f"{_name(percentile)} KLD: {_value(percentile.figure):10.6f}"
    yield ""
    yield "====== Token probability statistics ======"
    yield f"Mean    Δp: {_percent(found.dp)} ± {100.0 * _error(found.dp):5.3f} %"
    for percentile in reversed(found.dp_percentiles):
        yield f"{_name(percentile)} Δp: {_percent(percentile.figure)}%"
    yield f"RMS Δp    : {_percent(found.dp_rms)} ± {100.0 * _error(found.dp_rms):5.3f} %"
    yield f"Same top p: {_percent(found.same_top)} ± {100.0 * _error(found.same_top):5.3f} %"


def _name(one: Percentile) -> str:
    return _NAMES.get(one.percent) or f"{one.percent:4.1f}%  "


def _wide(figure: Figure) -> str:
    return f"{_value(figure):10.6f} ± {_error(figure):10.6f}"


def _percent(figure: Figure) -> str:
    return f"{100.0 * _value(figure):6.3f}"


def _value(figure: Figure) -> float:
    return math.nan if figure.value is None else figure.value


def _error(figure: Figure) -> float:
    return math.nan if figure.stderr is None else figure.stderr


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
    position = np.float32(np.float32(percent / 100.0) * np.float32(last))
    below = min(int(position), last)
    part = float(position) - below
    return (1.0 - part) * float(ordered[below]) + part * float(ordered[min(below + 1, last)])
