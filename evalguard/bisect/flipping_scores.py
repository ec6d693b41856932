"""Flips: scores that change in few documents, and otherwise not by a bit.

Of accuracy most documents score under a candidate as they do under the base. There, what changes
can be counted: the same documents change again wherever their cause is in, and where half of the
settings come and go without changing a single one, no jitter stands against what the others do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evalguard.bisect.blocks import few_change
from evalguard.bisect.oracle import Floats, Mask

_HALF = 0.5  # of the settings: who comes and goes with so many others shows their jitter
_LEAST = 0.1  # of the pairs of assignments: up to three culprits come and go in the others
_TENTH = 1.28  # standard deviations of a normal distribution
_UNSEEN = 0.5  # changes that are counted beside those seen, for and against (Jeffreys)


@dataclass(frozen=True, slots=True, kw_only=True)
class Flips:
    """The candidate's drift, (n,), in the order in which documents are asked; mostly 0."""

    drift: Floats

    @classmethod
    def of(cls, drift: Floats, *, counted: bool = False) -> Flips | None:
        """None where too many documents change, or none does; ``counted``: as ``few_change``."""
        return cls(drift=drift) if few_change(drift, counted=counted) else None

    @property
    def size(self) -> float:
        """Root mean square of a change."""
        return float(np.sqrt(np.sum(self.drift**2) / np.count_nonzero(self.drift)))

    @property
    def glance(self) -> float:
        """Variance of a mean over all documents that is known but for half a change."""
        return (_UNSEEN * self.size / self.drift.size) ** 2

    def jitter(self, masks: list[Mask], drifts: list[Floats]) -> float | None:
        """Variance over documents of what settings do that are not guilty; None if not known.

        Pairs of assignments differ by jitter, or by a culprit too: the tenth that differs least by
        jitter only. Those that count let half of the settings come in or go out together. Of the
        documents that the candidate changes, some may not be seen yet.

        ``drifts``: of the assignments ``masks``, each over a prefix; the base is among them unsaid.
        """
        n, changed = self.drift.size, np.cumsum(self.drift != 0.0)
        sides = [(np.zeros_like(masks[0]), np.zeros(n)), *zip(masks, drifts, strict=True)]
        pairs: list[tuple[float, Mask]] = []
        for at, (mask, drift) in enumerate(sides):
            for other, its in sides[:at]:
                common = min(drift.size, its.size)
                if seen := changed[common - 1]:
                    apart = drift[:common] - its[:common]
                    unseen = _UNSEEN * self.size**2 * (1.0 - seen / changed[-1]) / n
                    pairs.append((float(apart @ apart) / common + unseen, mask != other))
        moved = np.zeros_like(masks[0])
        for rank, (least, which) in enumerate(sorted(pairs, key=lambda pair: pair[0]), start=1):
            moved |= which
            if moved.sum() >= _HALF * moved.size and rank >= _LEAST * len(pairs):
                return self._mean_of(least)
        return None

    def _mean_of(self, least: float) -> float:
        """What a variance is on average of which the tenth that is least is this; 0 of 0.

        Changes are counted: of a mean c, the tenth is about c - 1.28 sqrt(c).
        """
        one = self.size**2 / self.drift.size  # a change
        below = _TENTH / 2.0
        return one * (below + float(np.sqrt(below**2 + least / one))) ** 2 if least else 0.0

    def estimate(self, drift: Floats, jitter: float) -> tuple[float, float]:
        """Mean drift over all documents, and its variance, of what is known on a prefix, (k,).

        Of the documents that the candidate changes, those to come are changed in the same share;
        that share is known by those that were seen (a beta posterior). The others jitter, and half
        a change may be among them.
        """
        k, n = drift.size, self.drift.size
        seen, left = self.drift[:k], self.drift[k:]
        changed = seen != 0.0
        count = int(np.count_nonzero(changed))
        alike = float(np.clip(drift @ seen / (seen @ seen), 0.0, 1.0)) * count if count else 0.0
        weight = count + 2.0 * _UNSEEN
        share = (alike + _UNSEEN) / weight
        uneven = share * (1.0 - share)
        beside = drift[~changed]
        mean = (float(drift.sum()) + share * float(left.sum())) / n
        variance = float(left.sum()) ** 2 * uneven / (weight + 1.0) + float(left @ left) * uneven
        rest = max(jitter, float(beside @ beside) / max(beside.size, 1))
        rest += _UNSEEN * self.size**2 / n
        return mean, (variance + (n - k) * rest) / n**2 + jitter / n
