"""Estimates: the mean drift of an assignment over all documents, by what part of them shows.

The same documents that make the drift of one assignment more than it is on average do so to
others like it. Where one like it is known on all documents, that is corrected (a regression
estimator: Cochran 1977, Sampling Techniques, 7.2); else the same draw of documents would look
like as many measurements as there are assignments.
"""

from __future__ import annotations

import numpy as np

from evalguard.bisect.flipping_scores import Flips
from evalguard.bisect.jitter import Jitter
from evalguard.bisect.oracle import Floats, Mask

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
