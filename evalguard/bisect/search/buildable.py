"""Which assignments can be built: declared constraints, and rules learnt from those that could not.

A rule that is not declared is taken to be of the form "a needs b": where a has its candidate
value, b must have it too. All at candidate can be built and all at reference too, so every
failure takes one setting in and another out.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evalguard.core.question import Floats, Mask
from evalguard.core.settings import Constraint

LIKELY_FAILS = 0.7
_UNEXPLAINED = 0.5  # chance to fail of a neighbour of a failure that no rule explains
_SUCCESSES = 4.0  # assignments that are taken to have been built before anything is tried


class Buildable:
    """What is known about which assignments can be built."""

    def __init__(self, settings: tuple[str, ...], constraints: Sequence[Constraint]) -> None:
        self._settings, self._constraints = settings, tuple(constraints)
        n = len(settings)
        self._possible: Mask = ~np.eye(n, dtype=np.bool_)  # [a, b]: "a needs b" is not excluded
        self._failed: dict[bytes, Mask] = {}
        self._built: dict[bytes, Mask] = {}

    def learn(self, mask: Mask, *, built: bool) -> None:
        """Take note that an assignment could be built, or could not."""
        if built:
            self._possible[np.ix_(mask, ~mask)] = False
            self._built[mask.tobytes()] = mask.copy()
        else:
            self._failed[mask.tobytes()] = mask.copy()

    def tie(self, names: Sequence[str]) -> None:
        """Take settings for one: no assignment parts them."""
        self._constraints += tuple(
            Constraint(when={first: side}, then={second: side})
            for first, second in zip(names, (*names[1:], names[0]), strict=True)
            for side in ("candidate", "reference")
        )

    def refused(self, mask: Mask) -> bool:
        """Whether it is known that this assignment cannot be built."""
        if mask.tobytes() in self._failed:
            return True
        values = self._values(mask)
        return any(rule.violated_by(values) for rule in self._constraints)

    def risks(self, masks: Mask) -> Floats:
        """The chance that each of these assignments, (m, n), cannot be built; (m,)."""
        risk = self._usual(masks)
        for failed in self._failed.values():
            rules = self._explaining(failed)
            if rules.any():
                hit = np.sum((masks @ rules.astype(np.float64)) * ~masks, axis=1)
                risk = np.maximum(risk, hit / rules.sum())
            else:
                risk = np.maximum(risk, _UNEXPLAINED * ((masks != failed).sum(1) <= 2))
        if self._failed or self._constraints:
            known = np.array([self.refused(mask) for mask in masks], dtype=np.bool_)
            risk = np.where(known, 1.0, risk)
        return risk

    def _usual(self, masks: Mask) -> Floats:
        """How often assignments like these failed: a step from base or candidate, or far from both.

        Near ones are tried on their own merits: they are what proves an answer.
        """
        near = _near(masks)
        risk = np.zeros(len(masks))
        if not self._failed:
            return risk
        failed = _near(np.array(list(self._failed.values())))
        built = _near(np.array(list(self._built.values())))
        for which in (True, False):
            failures = float(np.sum(failed == which))
            tried = failures + float(np.sum(built == which)) + _SUCCESSES
            risk[near == which] = failures / tried
        known = np.array([mask.tobytes() in self._built for mask in masks], dtype=np.bool_)
        return np.where(known, 0.0, risk)

    def likely(self, *masks: Mask) -> bool:
        """Whether all of these can be built, as far as is known."""
        return bool(np.all(self.risks(np.array(masks)) < LIKELY_FAILS))

    def completed(self, mask: Mask) -> Mask:
        """The assignment with what it needs put in; if nothing helps, as it is."""
        return self._mended(mask, put_in=True)

    def reduced(self, mask: Mask) -> Mask:
        """The assignment with what lacks something taken out; if nothing helps, as it is."""
        return self._mended(mask, put_in=False)

    def _mended(self, mask: Mask, *, put_in: bool) -> Mask:
        """Follow the rules that are most often met, one setting after the other."""
        mended = mask.copy()
        for _ in range(mask.size):
            if self.likely(mended):
                return mended
            if self._followed(mended, put_in=put_in):
                continue
            rules = self._broken(mended)
            if not rules.any():
                return mask
            if put_in:
                mended[np.argmax(rules.sum(0))] = True
            else:
                mended[np.argmax(rules.sum(1))] = False
        return mask

    def _followed(self, mask: Mask, *, put_in: bool) -> bool:
        """Do in ``mask`` what a declared constraint demands, if it is of the wanted direction."""
        wanted = "candidate" if put_in else "reference"
        for rule in self._constraints:
            if rule.violated_by(self._values(mask)):
                for name, value in rule.then.items():
                    at = self._settings.index(name)
                    if value == wanted and mask[at] != put_in:
                        mask[at] = put_in
                        return True
        return False

    def _broken(self, mask: Mask) -> Floats:
        """[a, b]: how strongly the failures say that this assignment breaks "a needs b"."""
        n = mask.size
        weight = np.zeros((n, n))
        for failed in self._failed.values():
            rules = self._explaining(failed)
            weight += rules / max(int(rules.sum()), 1)
        for needing, needed in self._declared():
            weight[needing, needed] += 1.0
        return np.where(mask[:, None] & ~mask[None, :], weight, 0.0)

    def _declared(self) -> list[tuple[int, int]]:
        """(a, b): a needs b, of constraints that say so."""
        number = {name: at for at, name in enumerate(self._settings)}
        pairs = []
        for rule in self._constraints:
            for dependent, value in rule.when.items():
                for needed, wanted in rule.then.items():
                    if value == wanted == "candidate":
                        pairs.append((number[dependent], number[needed]))
                    elif value == wanted == "reference":
                        pairs.append((number[needed], number[dependent]))
        return pairs

    def _values(self, mask: Mask) -> dict[str, str]:
        return {
            name: "candidate" if inside else "reference"
            for name, inside in zip(self._settings, mask, strict=True)
        }

    def _explaining(self, failed: Mask) -> Mask:
        """[a, b]: rules that explain a failure and that nothing excludes."""
        explaining: Mask = self._possible & failed[:, None] & ~failed[None, :]
        return explaining


def _near(masks: Mask) -> Mask:
    """Which differ from base or candidate in one setting at most; ``masks``: (m, n)."""
    inside = masks.sum(axis=1)
    near: Mask = (inside <= 1) | (inside >= masks.shape[1] - 1)
    return near
