"""The sign-flip permutation test.

An unchanged candidate is as likely to win a document by d as to lose it by d: every difference
could as well have had the other sign.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# All sign patterns are enumerated up to this many differences (2^20, about a million).
MOST_ENUMERATED = 20
RESAMPLES = 9_999
# Signs that are drawn at most: of more than 100,000 differences fewer patterns, 999 at least. The
# sum of so many is normal, and t says the same.
_MOST_SIGNS, _FEWEST_PATTERNS = 10**9, 999
SEED = 20_261_120
# Sums that are equal but for rounding count as equal, relative to the sum of |d|.
_ROUNDING = 1e-13
# One byte of random signs picks one of 256 sums of 8 differences.
_BITS = 8
_PATTERNS = (np.arange(1 << _BITS) >> np.arange(_BITS)[:, None] & 1).astype(np.float64)
_LOOKUPS_A_CHUNK = 1 << 15  # what fits the processor's cache is looked up four times as fast


@dataclass(frozen=True, slots=True, kw_only=True)
class SignFlip:
    """A one-sided sign-flip test.

    Attributes:
        p_value: P[T* >= T]: exact over all sign patterns, or by Monte Carlo.
        resamples: random sign patterns drawn; None where all were enumerated.
        seed: of these patterns; None where all were enumerated.
    """

    p_value: float
    resamples: int | None = None
    seed: int | None = None


def sign_flip(d: Array, *, resamples: int = RESAMPLES, seed: int = SEED) -> SignFlip:
    """One-sided sign-flip test of per-document differences, T = sum eps_i d_i.

    Exact (all 2^m sign patterns of the m differences that are not 0) for m <= 20; else
    p = (1 + #{T* >= T}) / (B + 1) over B seeded random patterns, which keeps the test's size
    (B. Phipson, G. K. Smyth, Stat. Appl. Genet. Mol. Biol. 9, 2010, article 39). Memory does not
    grow with B. The order of the differences changes nothing, except that of differences of the
    same size and other signs, by no more than the Monte Carlo error.

    For a ratio of sums, sum d / sum w, the same T is right: under the null the ratio is 0, its
    linearised residual e_i = d_i - 0 w_i is d_i itself, and no flip moves sum w.

    Args:
        d: finite differences, float64, shape (n,), positive where the candidate is worse. Sums
            over whole clusters, where documents within a cluster are not independent.
    """
    flippable = by_size(d[d != 0.0])
    # T* >= T exactly where the differences whose sign is flipped sum to 0 or less.
    limit = _ROUNDING * float(np.sum(np.abs(flippable)))
    if flippable.shape[0] <= MOST_ENUMERATED:
        sums = subset_sums(flippable)
        return SignFlip(p_value=int(np.count_nonzero(sums <= limit)) / sums.shape[0])
    fewer = _MOST_SIGNS // flippable.shape[0]
    resamples = min(resamples, max(fewer, _FEWEST_PATTERNS))
    extreme = _count_random(flippable, limit, resamples, np.random.default_rng(seed))
    return SignFlip(p_value=(1 + extreme) / (resamples + 1), resamples=resamples, seed=seed)


def by_size(values: Array) -> Array:
    """Sort by absolute value; those of one size stay in the order in which they came.

    Signs are what chance decides under the null, so they must lie in random places: sorted by
    sign, every data set would meet the same few seeded patterns in nearly the same way, and the
    test's size would be off by the luck of the seed.
    """
    return values[np.argsort(np.abs(values), kind="stable")]


def subset_sums(values: Array) -> Array:
    """Sums of all 2^m subsets of ``values``, shape (m,); the empty one is first, 0."""
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate([sums, sums + value])
    return sums


def _count_random(values: Array, limit: float, draws: int, rng: np.random.Generator) -> int:
    """How many of ``draws`` random subsets (each value in or out, 1/2) sum to ``limit`` or less."""
    groups = -(-values.shape[0] // _BITS)
    padded = np.zeros(groups * _BITS)
    padded[: values.shape[0]] = values
    table = (padded.reshape(groups, _BITS) @ _PATTERNS).ravel()
    first = np.arange(groups) << _BITS
    rows = max(1, _LOOKUPS_A_CHUNK // groups)
    found = 0
    for start in range(0, draws, rows):
        chosen = rng.integers(0, 1 << _BITS, (min(rows, draws - start), groups), dtype=np.uint8)
        found += int(np.count_nonzero(table.take(first + chosen, mode="clip").sum(axis=1) <= limit))
    return found
