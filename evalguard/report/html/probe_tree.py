"""The measurements of a bisection as a tree, each below the smallest one that holds it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeBranch:
    """A place in the tree: ``probe`` is the position of a measurement, ``depth`` below the root.

    The root is the candidate itself, all settings at their candidate value.
    """

    probe: int
    depth: int


def build_probe_tree(settings: Sequence[frozenset[str]]) -> tuple[ProbeBranch, ...]:
    """Lay measurements out as a tree, depth first, in the order in which they were made.

    Above a measurement stands the smallest set of settings measured before it that holds all of its
    own; a second measurement of one set stands beside the first. Those that no earlier one holds
    are below the root.
    """
    below: dict[int, list[int]] = {}
    for number, own in enumerate(settings):
        below.setdefault(_parent_probe(own, settings[:number]), []).append(number)
    laid: list[ProbeBranch] = []
    open_ = [(number, 1) for number in reversed(below.get(-1, []))]
    while open_:
        number, depth = open_.pop()
        laid.append(ProbeBranch(probe=number, depth=depth))
        open_ += [(child, depth + 1) for child in reversed(below.get(number, []))]
    return tuple(laid)


def _parent_probe(own: frozenset[str], earlier: Sequence[frozenset[str]]) -> int:
    """Position of the smallest strict superset, of equal ones the latest; -1: the root."""
    holding = [(len(other), -place) for place, other in enumerate(earlier) if own < other]
    return -min(holding)[1] if holding else -1
