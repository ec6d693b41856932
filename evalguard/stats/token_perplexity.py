"""Perplexity per scored token of both models: ratio, difference, correlation.

These are the figures that llama.cpp's perplexity tool prints beside KL; here with standard
errors over documents, not over tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from evalguard.core.distribution_comparison import (
    Figure,
)
from evalguard.stats.moments import Array
from evalguard.stats.positions import Positions


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPerplexities:
    """exp(-mean log p) of base and candidate, and how they compare."""

    base: Figure
    candidate: Figure
    log_ratio: Figure
    ratio: Figure
    difference: Figure


def token_perplexities(positions: Positions, base: Array, candidate: Array) -> TokenPerplexities:
    """Perplexities of two models, from log-probabilities of the scored tokens, shape (T,).

    Standard errors by the delta method. The difference is linearised per position:
    exp(m_c) (-log c) - exp(m_b) (-log b), with m the two mean surprisals.
    """
    surprisals = positions.mean(-base), positions.mean(-candidate)
    with np.errstate(invalid="ignore"):
        log_ratio = positions.mean(base - candidate)
    ours, theirs = (_exp(figure) for figure in surprisals)
    return TokenPerplexities(
        base=ours,
        candidate=theirs,
        log_ratio=log_ratio,
        ratio=_exp(log_ratio),
        difference=_difference(positions, (ours, theirs), base, candidate),
    )


def correlation(one: Array, other: Array) -> float | None:
    """Pearson's correlation, float64, shape (T,); None where one is constant or infinite."""
    if one.shape[0] < 2 or not (np.isfinite(one).all() and np.isfinite(other).all()):
        return None
    x, y = one - one.mean(), other - other.mean()
    scale = math.sqrt(float(x @ x)) * math.sqrt(float(y @ y))
    return max(-1.0, min(1.0, float(x @ y) / scale)) if scale > 0.0 else None


def _difference(
    positions: Positions, perplexities: tuple[Figure, Figure], base: Array, candidate: Array
) -> Figure:
    ours, theirs = perplexities
    if ours.value is None or theirs.value is None:
        return Figure()
    if not math.isfinite(ours.value) or not math.isfinite(theirs.value):
        apart = theirs.value - ours.value
        return Figure(value=None if math.isnan(apart) else apart)
    point = theirs.value - ours.value
    linear = positions.mean(ours.value * base - theirs.value * candidate)
    if linear.interval is None or linear.value is None:
        return Figure(value=point)
    shift = point - linear.value
    low, high = linear.interval
    return Figure(value=point, stderr=linear.stderr, interval=(low + shift, high + shift))


def _exp(log: Figure) -> Figure:
    """exp of a figure: SE by the delta method, ends of the interval mapped."""
    if log.value is None or math.isnan(log.value):
        return Figure()
    value = _grown(log.value)
    if log.interval is None or log.stderr is None:
        return Figure(value=value)
    low, high = (_grown(end) for end in log.interval)
    return Figure(value=value, stderr=value * log.stderr, interval=(low, high))


def _grown(log: float) -> float:
    return math.exp(log) if log < 700.0 else math.inf
