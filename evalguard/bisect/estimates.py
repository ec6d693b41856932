"""Estimates: the mean drift of an assignment over all documents, by what part of them shows.

The same documents that make the drift of one assignment more than it is on average do so to
others like it. Where one like it is known on all documents, that is corrected (a regression
estimator: Cochran 1977, Sampling Techniques, 7.2); else the same draw of documents would look
like as many measurements as there are assignments.
"""

from __future__ import annotations

import numpy as np
from scipy.special import gammaincinv, ndtr, stdtrit

from evalguard.bisect.blocks import Flips
from evalguard.bisect.oracle import ALIKE, Floats, Mask

_FEWEST = 15  # documents that show how far an assignment resembles another
_MANY = 32
_LEFT = 0.5  # share of the variance that another must leave at most, to be used
_LEFT_OF_FEW = 0.25  # ... by what less than _MANY documents show
_ROUNDING = 1e-9  # of the mean: documents that scatter less are alike
_MOST = 3  # others that an assignment is corrected by


_Estimate = tuple[float, float]  # mean and variance


class Estimates:
    """Of the assignments of a search, each one's computed again only where something changed."""

    def __init__(self, jitter: Jitter, flips: Flips | None) -> None:
        self._jitter, self._flips = jitter, flips
        self._known: dict[int, tuple[tuple[int, int], _Estimate | None]] = {}

    def of(self, masks: list[Mask], drifts: list[Floats], n: int) -> tuple[Floats, Floats]:
        """Mean drift of each assignment over all n documents, and its error variance; (m,), (m,).

        ``drifts``: of the assignments ``masks``, as of ``Jitter.error_variances``.
        """
        variances, least = self._jitter.error_variances(drifts)
        if _eliminated(masks, drifts, n):
            variances, least = np.maximum(variances - least, 0.0), np.zeros_like(least)
        if self._flips is not None:
            return self._counted(self._flips, masks, drifts, n * least)
        means = np.array([np.mean(drift) for drift in drifts])
        known = np.array([drift for drift in drifts if drift.size == n]).reshape(-1, n)
        for one, drift in enumerate(drifts):
            if _FEWEST < drift.size < n:
                found = self._corrected(one, drift, known)
                if found is not None and found[1] < variances[one]:
                    means[one], variances[one] = found[0], max(found[1], least[one])
        return means, variances

    def _counted(
        self, flips: Flips, masks: list[Mask], drifts: list[Floats], jitter: Floats
    ) -> tuple[Floats, Floats]:
        """Likewise, where few documents change."""
        known = flips.jitter(masks, drifts)
        each = jitter if known is None else np.minimum(jitter, known)
        found = [
            (float(np.mean(drift)), float(own) / drift.size)
            if drift.size == flips.drift.size
            else flips.estimate(drift, float(own))
            for drift, own in zip(drifts, each, strict=True)
        ]
        means, variances = zip(*found, strict=True)
        return np.array(means), np.array(variances)

    def _corrected(self, one: int, drift: Floats, known: Floats) -> _Estimate | None:
        state = (drift.size, len(known))
        if one not in self._known or self._known[one][0] != state:
            self._known[one] = (state, correct_estimates(drift, known))
        return self._known[one][1]


def _eliminated(masks: list[Mask], drifts: list[Floats], n: int) -> bool:
    """Whether all settings but one change no score, or there is one: then nobody else jitters."""
    return masks[0].size == 1 or any(
        drift.size == n and mask.sum() >= mask.size - 1 and not drift.any()
        for mask, drift in zip(masks, drifts, strict=True)
    )


def correct_estimates(drift: Floats, known: Floats) -> _Estimate | None:
    """Mean over all documents and its variance, by those that resemble it; None if none does.

    ``drift``: (k,), on the first k documents; ``known``: (p, n), of others on all of them.
    """
    k = drift.size
    centred, columns = _centred(drift), _centred(known[:, :k])
    used = _alike(centred, columns, _LEFT if k >= _MANY else _LEFT_OF_FEW)
    if not used:
        return None
    chosen = columns[used]
    square = np.linalg.pinv(chosen @ chosen.T)
    slopes = square @ (chosen @ centred)
    left = centred - slopes @ chosen
    off = known[used].mean(axis=1) - known[used, :k].mean(axis=1)
    spread = float(left @ left) / max(k - 1 - len(used), 1)
    return float(drift.mean() + slopes @ off), spread * float(1.0 / k + off @ square @ off)


def _alike(drift: Floats, columns: Floats, enough: float) -> list[int]:
    """Which of ``columns``, (p, k), explain ``drift``, (k,): each leaves ``enough`` at most."""
    used: list[int] = []
    left, basis = drift, columns
    before = float(left @ left)
    while before > 0.0 and len(used) < min(_MOST, len(columns)):
        length = np.maximum(np.einsum("pk,pk->p", basis, basis), 1e-9 * before)
        explained = (basis @ left) ** 2 / length
        best = int(np.argmax(explained))
        if explained[best] < (1.0 - enough) * before:
            break
        direction = basis[best] / np.sqrt(length[best])
        left = left - (direction @ left) * direction
        basis = basis - np.outer(basis @ direction, direction)
        used.append(best)
        before = float(left @ left)
    return used


def _centred(drift: Floats) -> Floats:
    """About the mean over the last axis; 0 where nothing but rounding is left."""
    mean = drift.mean(axis=-1, keepdims=True)
    off = drift - mean
    real = np.sqrt(np.mean(off**2, axis=-1, keepdims=True)) > _ROUNDING * np.abs(mean)
    centred: Floats = np.where(real, off, 0.0)
    return centred


# Jitter: how far the mean drift of an assignment may be off, as an estimate for all documents.
#
# Numerical differences of an assignment average out over documents. On part of the documents there
# is, beside them, the draw of the documents: the same setting hurts some more than others.


FEWEST = 8  # documents that show how far they scatter
_CONCENTRATED = 1.5  # times the smallest variance: drift sits on few documents
_ENOUGH = 64  # documents to compare two assignments on
_OWN_WEIGHT = 30.0  # documents that the variance of all assignments together counts for


class Jitter:
    """Error variances of the assignments of a search, each one's statistics computed once.

    ``n``: documents in all; ``lumpiness``: as of ``Blocks``.
    """

    def __init__(self, n: int, lumpiness: float) -> None:
        self._n, self._lumpiness = n, lumpiness
        self._sizes: Floats = np.empty(0)
        self._spread: Floats = np.empty(0)
        self._between: dict[tuple[int, int], tuple[int, float]] = {}

    def error_variances(self, drifts: list[Floats]) -> tuple[Floats, Floats]:
        """Variance of each mean drift about the mean over all n documents, and what of it would be
        left on all of them; (m,), (m,).

        ``drifts``: for each assignment its per-document drift over a prefix of one common order;
        from call to call more may come, and prefixes grow.

        With f the share measured and v the variance over documents, v/(fn) would do for a sample of
        something inexhaustible. Here only jitter is: the variance of the mean is
        (f j + (1 - f) max(v, lumpiness)) / (fn), where j, the jitter, is v itself or, if drift sits
        on few documents, the variance of the difference to the assignment that shares them best.
        """
        self._update(drifts)
        own = self._own(self._sizes, self._spread)
        smallest = float(np.min(own[own > 0.0], initial=np.inf))
        jitter = own.copy()
        for one in np.flatnonzero(own > _CONCENTRATED * smallest).tolist():
            jitter[one] = min(own[one], self._least_between(one, drifts, smallest))
        share = self._sizes / self._n
        whole = np.maximum(own, self._lumpiness)
        variance: Floats = (share * jitter + (1.0 - share) * whole) / self._sizes
        return variance, jitter / self._n

    def _update(self, drifts: list[Floats]) -> None:
        """Compute the variances over documents that are new."""
        sizes = np.array([drift.size for drift in drifts], dtype=np.float64)
        new = sizes.size - self._sizes.size
        known = np.concatenate([self._sizes, np.zeros(new)])
        self._spread = np.concatenate([self._spread, np.zeros(new)])
        for one in np.flatnonzero(sizes != known):
            self._spread[one] = _variance(drifts[one])
        self._sizes = sizes

    def _least_between(self, one: int, drifts: list[Floats], smallest: float) -> float:
        """Variance of the difference to the assignment that shares the drift best.

        A twin shares the jitter too: then it is taken for no larger than the smallest variance.
        """
        least = np.inf
        for other, drift in enumerate(drifts):
            common = min(drift.size, drifts[one].size)
            if other == one or common < _ENOUGH:
                continue
            pair = (one, other) if one < other else (other, one)
            if self._between.get(pair, (0, 0.0))[0] != common:
                difference = drifts[one][:common] - drift[:common]
                self._between[pair] = (common, _variance(difference))
            twins = self._between[pair][1] <= ALIKE * self._spread[one]
            least = min(least, smallest if twins else self._between[pair][1])
        return least

    def _own(self, sizes: Floats, spread: Floats) -> Floats:
        """Each variance over documents, steadied by the others'; (m,).

        The smallest of many estimates from few documents is too small: it counts as what it is the
        median of.
        """
        full = spread[sizes >= min(self._n, _ENOUGH)]
        degrees = min(self._n, _ENOUGH) - 1
        # a quantile of chi-squared; importing scipy.stats takes half a second
        least = 2.0 * gammaincinv(degrees / 2.0, 1.0 - 0.5 ** (1.0 / full.size)) / degrees
        pooled = float(np.sum(sizes * spread) / np.sum(sizes))
        steady = min(pooled, float(np.min(full)) / min(float(least), 1.0))
        own = (sizes * spread + _OWN_WEIGHT * steady) / (sizes + _OWN_WEIGHT)
        return np.where(spread > 0.0, own, 0.0)


def _variance(values: Floats) -> float:
    """As numpy's with ddof=1, in a third of the time: it is asked thousands of times."""
    off = values - np.add.reduce(values) / values.size
    return float(np.add.reduce(off * off)) / (values.size - 1)


def deviations(z: float, n: int) -> float:
    """Standard errors, estimated on n documents, that are as rare as ``z`` exact ones."""
    return float(-stdtrit(n - 1, ndtr(-z)))  # a quantile of Student's t
