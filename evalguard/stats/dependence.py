"""Dependence: whether documents that follow each other, or share something, drift alike.

Every standard error here takes documents as independent draws. Where several of them share a
passage, an author or a template, their differences are alike, and n documents say as much as fewer
would. Both tests below are permutation tests: differences that are exchangeable, of any
distribution (heavy tails, 0 and 1, mostly 0), reject at no more than the level.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evalguard.core.moments import Array

SEED = 20_261_120
FEWEST = 32  # documents; of fewer no window is both long and repeated
FEWEST_GROUPS = 6  # whole groups change sign in 2^6 ways: the fewest with an interval at 95%
# The p-value is settled once so many permutations reach the statistic (J. Besag, P. Clifford,
# Biometrika 78, 1991, 301-304), and drawn twice as finely as the level where none does.
_ENOUGH_EXCEEDING = 10
_FINER = 2
# Or once it lies so many standard deviations beyond this many permutations.
_FEW_DRAWN, _FAR = 500, 10.0
_CHUNK = 200_000
_LONGEST_SHARE = 8  # a window is at most an eighth of the documents
_PLAIN_Z = 2.0  # a smaller z is not worth a permutation
_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependence:
    """Documents that drift alike.

    Attributes:
        n: documents, or clusters of them where these were declared.
        design_effect: variance of the drift over what independent documents would give.
        p_value: that exchangeable differences look at least this dependent.
        groups: number of groups of a field; ``window``: documents in a row within which most of
            the dependence lies; None for the other kind.
    """

    n: int
    design_effect: float
    p_value: float
    groups: int | None = None
    window: int | None = None

    @property
    def effective_n(self) -> float:
        """Independent documents that would say as much."""
        return self.n / self.design_effect

    @property
    def stderr_factor(self) -> float:
        """By what factor the standard error is too small."""
        return math.sqrt(self.design_effect)


def order_dependence(residuals: Array, *, level: float, seed: int = SEED) -> Dependence | None:
    """Whether documents that follow each other drift alike; None where that does not show.

    The statistic is the largest standardised variance ratio over windows of 2, 4, 8, ... documents
    (A. W. Lo, A. C. MacKinlay, Rev. Financ. Stud. 1, 1988, 41-66): the variance of sums over a
    window, over that of as many independent documents. It adds up the autocorrelations of all lags
    within the window, so that both strong short and weak long dependence show. The null comes from
    permuting the documents. The design effect is the largest ratio among the windows that show any
    dependence by themselves.

    Args:
        residuals: what is left of the differences around the drift, shape (n,), in the documents'
            order.
        level: of the one-sided test; negative dependence makes a test careful, and is not sought.
    """
    n = residuals.shape[0]
    if n < FEWEST or not np.any(residuals):
        return None
    x = residuals - np.mean(residuals)
    windows = _windows(n)
    scores = _window_scores(x[None, :], windows)[0]
    observed = float(np.max(scores))
    if observed < _PLAIN_Z:
        return None
    p_value = _permutation_p(
        x, observed, lambda rows: np.max(_window_scores(rows, windows), axis=1), level, seed
    )
    if p_value > level:
        return None
    ratios = 1.0 + scores * _spreads(windows, n)
    shown = np.flatnonzero(scores >= _PLAIN_Z)
    index = int(shown[np.argmax(ratios[shown])])
    return Dependence(
        n=n, design_effect=float(ratios[index]), p_value=p_value, window=int(windows[index])
    )


def group_dependence(
    residuals: Array, labels: Sequence[str], *, level: float, seed: int = SEED
) -> Dependence | None:
    """Whether documents with the same label drift alike; None where that does not show.

    The statistic is the sum of the squared sums over groups, as in the cluster-robust standard
    error, so that the design effect is by what the variance grows where they are declared as
    clusters. The null comes from permuting the documents over the groups.

    Args:
        residuals: what is left of the differences around the drift, shape (n,).
        labels: n of them.
    """
    n = residuals.shape[0]
    _, members = np.unique(np.asarray(labels, dtype=np.str_), return_inverse=True)
    sizes = np.bincount(members)
    groups = sizes.shape[0]
    pairs = float(np.sum(sizes * (sizes - 1)))
    if n < FEWEST or groups < FEWEST_GROUPS or pairs == 0.0 or not np.any(residuals):
        return None
    x = residuals - np.mean(residuals)
    order = np.argsort(members, kind="stable")
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])

    def squares(rows: Array) -> Array:
        return np.asarray(np.sum(np.square(np.add.reduceat(rows, starts, axis=1)), axis=1))

    observed = float(squares(x[order][None, :])[0])
    total = float(np.sum(np.square(x)))
    expected = total * (1.0 - pairs / (n * (n - 1)))
    if observed - expected < _PLAIN_Z * math.sqrt(2.0 * pairs) * total / n:
        return None
    p_value = _permutation_p(x, observed, squares, level, seed)
    if p_value > level:
        return None
    effect = (observed * groups / (groups - 1)) / (total * n / (n - 1))
    return Dependence(n=n, design_effect=effect, p_value=p_value, groups=groups)


def _windows(n: int) -> NDArray[np.int64]:
    longest = n // _LONGEST_SHARE
    return 2 ** np.arange(1, int(math.log2(longest)) + 1)


def _spreads(windows: NDArray[np.int64], n: int) -> Array:
    """Standard deviation of each variance ratio of n independent normal numbers."""
    m = windows.astype(np.float64)
    return np.asarray(np.sqrt(2.0 * (2.0 * m - 1.0) * (m - 1.0) / (3.0 * m * n)))


def _window_scores(rows: Array, windows: NDArray[np.int64]) -> Array:
    """Standardised variance ratios, shape (rows, windows), of centred rows of n numbers."""
    n = rows.shape[1]
    sums = np.concatenate([np.zeros((rows.shape[0], 1)), np.cumsum(rows, axis=1)], axis=1)
    variance = np.mean(np.square(rows), axis=1)
    ratios = np.empty((rows.shape[0], windows.shape[0]))
    for index, m in enumerate(windows.tolist()):
        spread = np.mean(np.square(sums[:, m:] - sums[:, :-m]), axis=1)
        # m numbers drawn from n without replacement vary by (n - m) / (n - 1) less
        ratios[:, index] = spread / (m * variance * (n - m) / (n - 1))
    return (ratios - 1.0) / _spreads(windows, n)


def _permutation_p(
    x: Array, observed: float, statistic: Callable[[Array], Array], level: float, seed: int
) -> float:
    """Monte Carlo p-value, (1 + exceeding) / (1 + drawn), drawn until it is settled."""
    rng = np.random.default_rng(seed)
    most = math.ceil(_FINER / level)
    limit = observed - _ROUNDING * abs(observed)
    drawn = exceeding = 0
    sums = squares = 0.0
    rows = 20
    while drawn < most and exceeding < _ENOUGH_EXCEEDING:
        count = min(rows, most - drawn)
        permuted = rng.permuted(np.broadcast_to(x, (count, x.shape[0])), axis=1)
        values = statistic(permuted)
        exceeding += int(np.count_nonzero(values >= limit))
        drawn += count
        sums += float(np.sum(values))
        squares += float(np.sum(np.square(values)))
        mean = sums / drawn
        spread = math.sqrt(max(squares / drawn - mean * mean, 0.0))
        if not exceeding and drawn >= _FEW_DRAWN and observed > mean + _FAR * spread:
            return min(1.0 / (1 + drawn), level)
        rows = max(20, min(2 * rows, _CHUNK // x.shape[0]))
    return (1 + exceeding) / (1 + drawn)
