"""Components: the ways in which settings make drift, one on/off function of an assignment each.

A single setting acts when it is in. A pair or three act only together (all in); a pair is
redundant (one in is enough). The drift of an assignment is the sum of the effects of what acts
in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from math import comb
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from evalguard.core.question import Floats, Mask

Kind = Literal["additive", "together", "redundant"]
# Prior odds that one more component is there, shared among all of its kind and size.
_ADDITIVE, _PAIR, _THREE = 0.5, 0.04, 0.01
_BESIDE = 0.3  # likewise, that settings of which each drifts alone do more or less together
MOST_IN_THREES = 16  # settings of which threes are considered
_ALL = slice(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """One component; ``members`` are settings by number, in order."""

    kind: Kind
    members: tuple[int, ...]

    @property
    def acts_alone(self) -> bool:
        """Whether one member is enough."""
        return self.kind == "redundant" or len(self.members) == 1

    def acts(self, masks: Mask) -> Mask:
        """Whether it acts in each assignment; ``masks``: (..., n_settings), the result (...)."""
        inside = masks[..., list(self.members)]
        if self.kind == "redundant":
            inside = ~inside
        together: Mask = np.logical_and.reduce(inside, axis=-1)
        return ~together if self.kind == "redundant" else together


@dataclass(frozen=True, slots=True, kw_only=True)
class Components:
    """Everything that is considered, J components.

    Attributes:
        members: (J, 3) settings by number; a single stands there three times, a pair with its
            second one twice.
        redundant: (J,) whether one member is enough.
        log_prior: (J,).
    """

    members: NDArray[np.intp]
    redundant: Mask
    log_prior: Floats

    def __getitem__(self, number: int) -> Component:
        members = tuple(sorted(set(self.members[number].tolist())))
        kind: Kind = "additive" if len(members) == 1 else "together"
        return Component(kind="redundant" if self.redundant[number] else kind, members=members)

    def acting(self, masks: Mask, numbers: NDArray[np.intp] | slice = _ALL) -> Mask:
        """(m, J): which components act in each of m assignments, (m, n_settings)."""
        members = self.members[numbers]
        first, second, third = (masks[:, members[:, position]] for position in range(3))
        return np.where(self.redundant[numbers], first | second, first & second & third)


@lru_cache(maxsize=8)
def components_of(
    n: int,
    suspects: tuple[int, ...],
    drifting: tuple[int, ...],
    weights: tuple[float, ...] | None = None,
) -> Components:
    """All singles and pairs of n settings, and threes of the suspects.

    Whoever is suspected, a three's prior is that of one among all threes of n settings.
    ``drifting``: settings that drift alone. Interactions are likelier among them than anywhere else
    (effect heredity; Hamada and Wu 1992). ``weights``: (n,), above 0, how likely each setting is to
    be a member beside the others; None: all alike.
    """
    few = _singles_and_pairs(n)
    threes = np.array(list(combinations(suspects, 3)), dtype=np.intp).reshape(-1, 3)
    pairs = comb(n, 2)
    sizes = [n, pairs, pairs, len(threes)]
    odds = [_ADDITIVE, _PAIR, _PAIR, _THREE]
    shared = [n, pairs, pairs, comb(n, 3)]
    log_odds = [np.log(share / max(among, 1)) for share, among in zip(odds, shared, strict=True)]
    members, log_prior = np.concatenate([few, threes]), np.repeat(log_odds, sizes)
    if weights is not None:
        log_prior = log_prior + _tilt(np.log(np.array(weights))[members], sizes)
    redundant = np.repeat([False, False, True, False], sizes)
    beside = np.isin(members, drifting).all(axis=1) & ~redundant
    beside[:n] = False
    if beside.any():
        log_prior[beside] = np.log(_BESIDE / np.sum(beside))
    return Components(members=members, redundant=redundant, log_prior=log_prior)


def _tilt(log_weights: Floats, sizes: Sequence[int]) -> Floats:
    """What weights add to log priors, (J,): of each kind the chances stay the same in all.

    A component weighs as its members do on (geometric) average; ``log_weights``: (J, 3).
    """
    first, middle, last = log_weights.T
    members = np.where(middle == last, 0.5 * (first + last), log_weights.mean(axis=1))
    kinds = np.split(members, np.cumsum(sizes)[:-1])
    return np.concatenate(
        [
            weights - np.log(np.mean(np.exp(weights))) if weights.size else weights
            for weights in kinds
        ]
    )


@lru_cache(maxsize=8)
def _singles_and_pairs(n: int) -> NDArray[np.intp]:
    """Members of all singles, of all pairs that act together, of all redundant ones."""
    singles = np.repeat(np.arange(n)[:, None], 3, axis=1)
    first, second = np.triu_indices(n, 1)
    pairs = np.column_stack([first, second, second])
    return np.concatenate([singles, pairs, pairs])


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
    guilty = frozenset(member for c in components if c.acts_alone for member in c.members)
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
    needed: list[int] = []
    for sign in (1.0, -1.0):
        side = [at for at in order if sign * sizes[at] > 0.0]
        while sum(abs(sizes[at]) for at in side) > margin:
            total = 0.0
            while total <= margin:
                total += abs(sizes[side[0]])
                needed.append(side.pop(0))
    return sorted(needed)


def overlapping(components: Sequence[Component]) -> bool:
    """Whether two different components have a setting in common."""
    distinct = set(components)
    return sum(len(c.members) for c in distinct) > len(
        {member for c in distinct for member in c.members}
    )


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
    settings = sorted({member for c in components for member in c.members})
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
