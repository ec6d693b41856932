"""Structure: a possible answer, and what it predicts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from evalguard.bisect.components import Component
from evalguard.bisect.oracle import Mask


@dataclass(frozen=True, slots=True, kw_only=True)
class Structure:
    """Components, and whether the rest of the drift is spread over all settings."""

    components: tuple[Component, ...]
    diffuse: bool

    @property
    def members(self) -> frozenset[int]:
        """The settings that it blames, by number."""
        return blamed(self.components)

    def mask(self, n: int) -> Mask:
        """(n,): its members at their candidate value."""
        inside = np.zeros(n, dtype=np.bool_)
        inside[list(self.members)] = True
        return inside


def blamed(components: Iterable[Component]) -> frozenset[int]:
    """Who must be put right so that none of the components acts.

    What acts only together is put right by any of its members: where one is to blame for something
    else, the others are not to blame for what they do beside it.
    """
    guilty = frozenset(one for c in components if c.acts_alone for one in c.members)
    pairs = [frozenset(c.members) for c in components if not c.acts_alone]
    return guilty.union(*[members for members in pairs if not members & guilty])


NOTHING = Structure(components=(), diffuse=False)


def material(sizes: Sequence[float], margin: float) -> list[int]:
    """Which effects it takes to get past the margin; the others could stay.

    The largest are added up until the margin is passed: that is a minimal failing set. It is left
    out, and the rest is asked again, for either sign.
    """
    if all(abs(size) > margin for size in sizes):
        return list(range(len(sizes)))
    order = sorted(range(len(sizes)), key=lambda at: -abs(sizes[at]))
    kept: list[int] = []
    for sign in (1.0, -1.0):
        side = [at for at in order if sign * sizes[at] > 0.0]
        while sum(abs(sizes[at]) for at in side) > margin:
            total = 0.0
            while total <= margin:
                total += abs(sizes[side[0]])
                kept.append(side.pop(0))
    return sorted(kept)
