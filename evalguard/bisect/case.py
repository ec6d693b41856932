"""Case: the most probable answer, and how far it is proven."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from evalguard.bisect.belief import Belief
from evalguard.bisect.fit import Fit
from evalguard.bisect.oracle import Mask
from evalguard.bisect.verification import (
    Plan,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """The most probable answer, what proves it, and who is proven so far.

    ``missing``: assignments that the proof still needs on all documents; ``unseen``: those that an
    answer which is not certain needs on some of them. ``p_values``: of the steps of those measured
    on all documents; ``by_chance``: who would be proven but for that.
    """

    belief: Belief
    plan: Plan
    fit: Fit
    proven: frozenset[int]
    missing: tuple[Mask, ...]
    unseen: tuple[Mask, ...]
    p_values: Mapping[int, float] = field(default_factory=dict)
    by_chance: frozenset[int] = frozenset()

    @property
    def open(self) -> bool:
        """Whether the proof needs anything that is not measured."""
        return bool(self.missing or self.unseen)
