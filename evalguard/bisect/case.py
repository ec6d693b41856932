"""Case: the most probable answer, and how far it is proven."""

from __future__ import annotations

from dataclasses import dataclass

from evalguard.bisect.belief import Belief
from evalguard.bisect.fit import Fit
from evalguard.bisect.oracle import Mask
from evalguard.bisect.verification import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """The most probable answer, what proves it, and who is proven so far.

    ``missing``: assignments that the proof still needs on all documents; ``unseen``: those that an
    answer which is not certain needs on some of them.
    """

    belief: Belief
    plan: Plan
    fit: Fit
    proven: frozenset[int]
    missing: tuple[Mask, ...]
    unseen: tuple[Mask, ...]

    @property
    def open(self) -> bool:
        """Whether the proof needs anything that is not measured."""
        return bool(self.missing or self.unseen)
