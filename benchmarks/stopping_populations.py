"""Populations of documents whose full verdict is known: what a sequential run is tried on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from evalguard.core.pairing import PairedScores
from evalguard.core.scores import Aggregation, ScoreTable

Array = NDArray[np.float64]
# Differences of n documents in standard deviations of the base's scores, before they are given
# the drift that is wanted.
Draw = Callable[[np.random.Generator, int], Array]
# A population with a drift of so many sigmas; None where there is none of that kind.
Make = Callable[[np.random.Generator, int, float], "PairedScores | None"]


def pair_of(
    base: Array, candidate: Array, aggregation: Aggregation, weights: Array | None = None
) -> PairedScores:
    """Two score tables without hashes."""
    base_table, other = (
        ScoreTable(
            task="", filter="", metric="acc", aggregation=aggregation,
            higher_is_better=aggregation == "mean", doc_ids=np.arange(values.shape[0]),
            values=values, weights=weights, doc_hashes=(), prompt_hashes=(), target_hashes=(),
        )
        for values in (base, candidate)
    )  # fmt: skip
    return PairedScores(base=base_table, candidate=other)


def flips(accuracy: float, noise: float) -> Make:
    """0/1 scores: the base's accuracy, and documents won, in flips of one sigma.

    A sigma of s is the whole number of documents next to it on the outer side of the margin.
    """

    def make(_: np.random.Generator, n: int, sigma: float) -> PairedScores | None:
        right = round(accuracy * n)
        unit = math.sqrt(right * (n - right) / (n - 1))
        net = math.ceil(sigma * unit) if sigma > 1.0 else math.floor(sigma * unit)
        won = round(noise * unit)
        if net + won > right or won > n - right:
            return None
        base = np.zeros(n)
        base[:right] = 1.0
        candidate = base.copy()
        candidate[: net + won] = 0.0
        candidate[n - won :] = 1.0
        return pair_of(base, candidate, "mean")

    return make


def _base_scores(rng: np.random.Generator, n: int) -> Array:
    """Log-likelihoods of last words."""
    return -rng.gamma(1.4, 1.3, n)


def likelihoods(draw: Draw, *, scaled: bool = False, base: Draw = _base_scores) -> Make:
    """Log-likelihoods of a last word (perplexity), with such differences.

    Args:
        base: makes the base's scores.
        scaled: losses only: the drift is theirs, scaled; else it is added to every document.
    """

    def make(rng: np.random.Generator, n: int, sigma: float) -> PairedScores | None:
        values = base(rng, n)
        spread = float(np.std(values, ddof=1))
        wanted = math.log1p(sigma * spread / math.sqrt(n))
        d = draw(rng, n) * spread
        mean = float(np.mean(d))
        d = d * (wanted / mean) if scaled else d - mean + wanted
        return pair_of(values, values - d, "perplexity")

    return make


def texts(scatter: float) -> Make:
    """Texts of very unequal length (word perplexity)."""

    def make(rng: np.random.Generator, n: int, sigma: float) -> PairedScores | None:
        words = np.ceil(rng.lognormal(4.5, 1.0, n))
        base = -words * rng.gamma(4.0, 0.5, n)
        total = float(np.sum(words))
        rate = float(np.sum(base)) / total
        residuals = base - rate * words
        unit = math.sqrt(n / (n - 1) * float(np.sum(np.square(residuals)))) / total
        d = words * rng.normal(0.0, scatter, n)
        d += words * (math.log1p(sigma * unit) - float(np.sum(d)) / total)
        return pair_of(base, base - d, "weighted_perplexity", words)

    return make


def rare(share: float, draw: Draw) -> Draw:
    """Differences of a fixed share of the documents; the others are identical."""

    def drawn(rng: np.random.Generator, n: int) -> Array:
        d = np.zeros(n)
        carriers = max(1, round(share * n))
        d[:carriers] = draw(rng, carriers)
        return d

    return drawn


def _lossless(_: np.random.Generator, n: int) -> Array:
    return np.zeros(n)


def _losses(rng: np.random.Generator, n: int) -> Array:
    return 0.5 + rng.exponential(1.0, n)


def _mixed(rng: np.random.Generator, n: int) -> Array:
    return rare(0.01, _losses)(rng, n) + rng.normal(0.0, 0.01, n)


def gains(share: float, nats: float) -> Make:
    """All documents lose alike, but for a share that gains so many nats."""
    spread = 1.3 * math.sqrt(1.4)  # of _base_scores
    return likelihoods(rare(share, lambda _, n: np.full(n, -nats / spread)))


POPULATIONS: dict[str, Make] = {
    "0/1, no document won": flips(0.69, 0.0),
    "0/1, won: 0.5 sigma": flips(0.69, 0.5),
    "0/1, won: 3 sigma": flips(0.69, 3.0),
    "0/1, accuracy 95%, won: 1 sigma": flips(0.95, 1.0),
    "identical but for the drift": likelihoods(_lossless),
    "normal, 0.03 of the base's": likelihoods(lambda rng, n: rng.normal(0.0, 0.03, n)),
    "normal, 0.1": likelihoods(lambda rng, n: rng.normal(0.0, 0.1, n)),
    "normal, 0.4": likelihoods(lambda rng, n: rng.normal(0.0, 0.4, n)),
    "t with 2.5 df, scale 0.02": likelihoods(lambda rng, n: 0.02 * rng.standard_t(2.5, n)),
    "t with 2 df, scale 0.3": likelihoods(lambda rng, n: 0.3 * rng.standard_t(2.0, n)),
    "Cauchy cut at 5, scale 0.02": likelihoods(
        lambda rng, n: np.clip(0.02 * rng.standard_cauchy(n), -5.0, 5.0)
    ),
    "losses, lognormal 1": likelihoods(lambda rng, n: rng.lognormal(0.0, 1.0, n), scaled=True),
    "losses, lognormal 2": likelihoods(lambda rng, n: rng.lognormal(0.0, 2.0, n), scaled=True),
    "95% identical, the rest losses": likelihoods(rare(0.05, _losses), scaled=True),
    "99% identical, the rest losses": likelihoods(rare(0.01, _losses), scaled=True),
    "99% identical, the rest +-2": likelihoods(
        rare(0.01, lambda rng, n: 2.0 * rng.normal(0.0, 1.0, n))
    ),
    "1% losses, the rest noise": likelihoods(_mixed, scaled=True),
    "very unequal texts": texts(0.02),
    "normal, 0.02; the base's scores t with 2.5 df": likelihoods(
        lambda rng, n: rng.normal(0.0, 0.02, n), base=lambda rng, n: rng.standard_t(2.5, n)
    ),
    "0.5% losses, the rest identical": likelihoods(rare(0.005, _losses), scaled=True),
    "0.2% losses, the rest identical": likelihoods(rare(0.002, _losses), scaled=True),
    "0.5% gain 30 nats, the rest lose": gains(0.005, 30.0),
    "1% gain 12 nats, the rest lose": gains(0.01, 12.0),
    "0.5% gain 8 nats, the rest lose": gains(0.005, 8.0),
}
# Shares of the documents that carry the drift, where these are few.
CARRIERS = {
    "95% identical, the rest losses": 0.05,
    "99% identical, the rest losses": 0.01,
    "1% losses, the rest noise": 0.01,
    "0.5% losses, the rest identical": 0.005,
    "0.2% losses, the rest identical": 0.002,
}
# So many are seen with 95% in a tenth of the documents: 1 - 0.9^29. With fewer carriers a part can
# miss the drift, which is more than is promised.
FEWEST_CARRIERS = 29


def cells(
    sizes: tuple[int, ...], sigmas: tuple[float, ...], seed: int
) -> Iterator[tuple[str, int, float, PairedScores]]:
    """Every population of every size and drift, each from a seed of its own."""
    for number, (name, make) in enumerate(POPULATIONS.items()):
        for n in sizes:
            for place, sigma in enumerate(sigmas):
                made = make(np.random.default_rng([seed, number, n, place]), n, sigma)
                if made is not None:
                    yield name, n, sigma, made
