"""Series of nights as they come about: sigma of each night with its standard error.

Two ways to ask: ``redrawn`` documents (every night draws others, so that sigma varies by its own
standard error) and ``same`` documents (their error is shared by all nights and cancels; what varies
is the jitter of kernels, by which the standard error is not moved at all).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Rng = np.random.Generator
Series = tuple[Floats, Floats]
"""Sigma and standard error of each night, both shape (nights,)."""

DOCUMENTS, CLUSTER = 240, 8
BASE_SPREAD = 1.0


def answered(rng: Rng, nights: int, *, same: bool, jitter: float = 0.06) -> Series:
    """Nights scored document by document: heavy tails, clusters of ``CLUSTER`` documents.

    Drifts of documents are t with 3 degrees of freedom, half of their variance shared within a
    cluster. Same documents: they stay, and each night adds jitter of its own to every document
    (t, 3 degrees of freedom, a third of it shared by all documents of the night).
    """
    shape = (1 if same else nights, DOCUMENTS)
    drifts = 0.3 * (rng.standard_t(3, shape) + _clustered(rng, shape))
    if same:
        drifts = drifts + jitter * rng.standard_t(3, (nights, DOCUMENTS))
        drifts += jitter * rng.standard_t(3, (nights, 1))
    base_error = BASE_SPREAD / np.sqrt(DOCUMENTS)
    clusters = drifts.reshape(nights, -1, CLUSTER).mean(axis=2)
    errors = clusters.std(axis=1, ddof=1) / np.sqrt(clusters.shape[1])
    return drifts.mean(axis=1) / base_error, errors / base_error


def _clustered(rng: Rng, shape: tuple[int, int]) -> Floats:
    shared = rng.standard_t(3, (shape[0], shape[1] // CLUSTER))
    return np.repeat(shared, CLUSTER, axis=1)


def constant(_: Rng, nights: int) -> Series:
    """Deterministic scores of the same documents: the same number every night."""
    return np.full(nights, 0.4137), np.full(nights, 0.2)


def wild(rng: Rng, nights: int) -> Series:
    """Deterministic, but for one night in fifty that is wild (a broken machine)."""
    values = np.full(nights, 0.4) + 8.0 * rng.normal(size=nights) * (rng.random(nights) < 0.02)
    return values, np.full(nights, 0.2)


def limit_changed(rng: Rng, nights: int) -> Series:
    """Other documents each night, four times as many of them from the middle on."""
    errors = np.where(np.arange(nights) < nights // 2, 0.4, 0.2)
    errors = errors * rng.uniform(0.9, 1.1, nights)
    return errors * rng.normal(size=nights), errors


def partly_own(rng: Rng, nights: int) -> Series:
    """Half of the variance is what the standard errors say, half is jitter they know nothing of."""
    errors = np.where(rng.random(nights) < 0.3, 0.5, 0.15)
    spread = np.sqrt(0.5 * errors**2 + 0.5 * np.mean(errors**2))
    return spread * rng.normal(size=nights), errors


def louder(rng: Rng, nights: int) -> Series:
    """Jitter that is three times as large from the middle on, while no standard error says so."""
    spread = np.where(np.arange(nights) < nights // 2, 0.1, 0.3)
    return spread * rng.normal(size=nights), np.full(nights, 0.2)


def persistent(rng: Rng, nights: int, *, rho: float) -> Series:
    """Nights that depend on each other: autoregressive of first order, spread 0.3."""
    values = np.empty(nights)
    values[0] = rng.normal()
    noise = np.sqrt(1.0 - rho**2) * rng.normal(size=nights)
    for night in range(1, nights):
        values[night] = rho * values[night - 1] + noise[night]
    return 0.3 * values, np.full(nights, 0.2)


def shared_for_a_week(rng: Rng, nights: int) -> Series:
    """Documents that are drawn anew each week, four fifths of the variance of 0.3 squared."""
    weeks = np.repeat(rng.normal(size=nights // 7 + 2), 7)[rng.integers(0, 7) :][:nights]
    values = np.sqrt(0.8) * weeks + np.sqrt(0.2) * rng.normal(size=nights)
    return 0.3 * values, np.full(nights, 0.2)


def creeping(rng: Rng, nights: int) -> Series:
    """A drift of 1 sigma a year, jitter 0.3: there is no step, and no level either."""
    return np.arange(nights) / 365.0 + 0.3 * rng.normal(size=nights), np.full(nights, 0.2)


def normal(rng: Rng, nights: int, *, spread: float) -> Series:
    """Nights around one level."""
    errors = spread * rng.uniform(0.8, 1.25, nights)
    return spread * rng.normal(size=nights), errors


def stepped(series: Series, steps: dict[int, float]) -> Series:
    """The same, moved by so much from these nights on (counted from 0)."""
    values = series[0].copy()
    for night, step in steps.items():
        values[night:] += step
    return values, series[1]


Make = Callable[[Rng, int], Series]
QUIET: dict[str, Make] = {
    "other documents every night, clustered, heavy tails": lambda r, n: answered(r, n, same=False),
    "the same documents every night, jitter with heavy tails": lambda r, n: answered(
        r, n, same=True
    ),
    "the same, deterministic: one number": constant,
    "deterministic, one night in fifty wild": wild,
    "another number of documents from the middle on": limit_changed,
    "standard errors that tell half of it": partly_own,
}
OUTSIDE: dict[str, Make] = {
    "jitter three times as large from the middle on": louder,
    "nights that depend on each other, correlation 0.3": lambda r, n: persistent(r, n, rho=0.3),
    "nights that depend on each other, correlation 0.6": lambda r, n: persistent(r, n, rho=0.6),
    "nights that depend on each other, correlation 0.8": lambda r, n: persistent(r, n, rho=0.8),
    "documents shared for a week": shared_for_a_week,
    "1 sigma a year, no step": creeping,
}
