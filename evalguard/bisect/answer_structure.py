"""Structure: a possible answer, and whom it blames."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from evalguard.bisect.components import Component
from evalguard.bisect.oracle import Floats, Mask

_MOST = 10  # settings of which all subsets are looked at


@dataclass(frozen=True, slots=True, kw_only=True)
class Structure:
    """Components, and whether the rest of the drift is spread over all settings.

    ``members``: the settings that it blames, by number.
    """

    components: tuple[Component, ...]
    diffuse: bool
    members: frozenset[int]

    def mask(self, n: int) -> Mask:
        """(n,): its members at their candidate value."""
        inside = np.zeros(n, dtype=np.bool_)
        inside[list(self.members)] = True
        return inside


def blame_setting(components: Iterable[Component]) -> frozenset[int]:
    """Who must be put right so that none of the components acts.

    What acts only together is put right by any of its members: where one is to blame for something
    else, the others are not to blame for what they do beside it.
    """
    guilty = frozenset(one for c in components if c.acts_alone for one in c.members)
    pairs = [frozenset(c.members) for c in components if not c.acts_alone]
    return guilty.union(*[members for members in pairs if not members & guilty])


NOTHING = Structure(components=(), diffuse=False, members=frozenset())


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


def overlapping(components: Sequence[Component]) -> bool:
    """Whether two different components have a setting in common."""
    distinct = set(components)
    return sum(len(c.members) for c in distinct) > len({one for c in distinct for one in c.members})


def blame_pair(
    components: Sequence[Component], mean: Floats, root: Floats, margin: float
) -> frozenset[int] | None:
    """Who is to blame for components that have settings in common; None if these are too many.

    The same drift has several descriptions there: a setting alone, another alone, and what they do
    more together; or what either does, and the rest of each. So what counts are the drifts of the
    subsets of the settings, which are the same: of those past the margin the smallest is left out,
    and the rest is asked again, for either sign.

    ``mean``: (c,) of the effects; ``root``: (c, ...) of their covariance.
    """
    settings = sorted({one for c in components for one in c.members})
    if len(settings) > _MOST:
        return None
    subsets = _subsets(len(settings))
    inside = np.zeros((len(subsets), settings[-1] + 1), dtype=np.bool_)
    inside[:, settings] = subsets
    acting = np.array([c.acts(inside) for c in components], dtype=np.float64).T
    expected = acting @ mean
    drift = np.copysign(np.hypot(expected, np.linalg.norm(acting @ root, axis=1)), expected)
    guilty = np.zeros(len(settings), dtype=np.bool_)
    for sign in (1.0, -1.0):
        while True:
            failing = (sign * drift > margin) & ~(subsets & guilty).any(axis=1)
            if not failing.any():
                break
            fewest = failing & (subsets.sum(axis=1) == subsets[failing].sum(axis=1).min())
            guilty |= subsets[np.argmax(np.where(fewest, sign * drift, -np.inf))]
    return frozenset(settings[at] for at in np.flatnonzero(guilty))


@lru_cache(maxsize=_MOST)
def _subsets(count: int) -> Mask:
    """(2 ** count, count): all subsets of so many."""
    inside: Mask = (np.arange(1 << count)[:, None] >> np.arange(count)) % 2 == 1
    return inside
