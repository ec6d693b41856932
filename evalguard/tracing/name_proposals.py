"""Which point of a model a tensor of somebody else's dump may be: proposed, for a person to read.

Tensors whose names differ in one number (``ffn_out-0``, ``ffn_out-1``) are a family, and get one
rule. A family is a point whose values it has nearly, in one of a few layouts; where a port is too
far off for that, the one point of its shape and number that nothing else has taken.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evalguard.core.name_map import Layout, NameRule
from evalguard.core.trace_points import OUTPUT

Array = NDArray[np.generic]
_NUMBER = re.compile(r"\d+")
# A relative L2 error: two tensors of which one is not the other, however a port rounds.
_OTHER = 0.3
# How many times nearer the nearest has to be than the next one.
_NEARER = 3.0
_MOST_ALTERNATIVES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposedRule:
    """A rule of a name map, or a family that none was found for.

    Attributes:
        cand: pattern of the family's names; ``count``: of its tensors; ``shape``: of the first.
        rule: None where nothing is proposed.
        error: relative L2 error of the first of them; None where values say nothing.
        alternatives: points that it may as well be, by shape and number.
    """

    cand: str
    count: int
    shape: tuple[int, ...]
    rule: NameRule | None = None
    error: float | None = None
    alternatives: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NamedTensor:
    """A tensor that is read when it is asked for. ``name``: of a dump's tensor, or of a point."""

    name: str
    shape: tuple[int, ...]
    read: Callable[[], Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Family:
    pattern: str
    numbers: tuple[int, ...]
    first: NamedTensor

    @property
    def count(self) -> int:
        return max(len(self.numbers), 1)


def propose_rules(
    points: Sequence[NamedTensor], tensors: Sequence[NamedTensor]
) -> tuple[ProposedRule, ...]:
    """Propose which of a model's points each tensor of a dump is, family by family.

    Args:
        points: of the model, in the order in which it computes them, of one sequence.
        tensors: of the dump, of the same sequence.
    """
    single = [_Family(pattern=point.name, numbers=(), first=point) for point in points]
    ours = _Points([*(family for family in _find_families(points) if family.numbers), *single])
    theirs = [part for family in _find_families(tensors) for part in _split(family, ours, tensors)]
    proposals = [_propose_by_values(part, ours) for part in theirs]
    taken = {proposal.rule.base for proposal in proposals if proposal.rule is not None}
    return tuple(
        proposal
        if proposal.rule is not None or proposal.alternatives
        else _propose_by_shape(family, ours, taken)
        for family, proposal in zip(theirs, proposals, strict=True)
    )


class _Points:
    """The model's families, and each of its points by itself, with what is cheap to compare."""

    def __init__(self, families: Sequence[_Family]) -> None:
        self.families = families
        self._sums: dict[str, tuple[int, float]] = {}

    def __iter__(self) -> Iterator[_Family]:
        return iter(self.families)

    def size_and_norm(self, family: _Family) -> tuple[int, float]:
        """Those of the family's first tensor, read once."""
        name = family.first.name
        if name not in self._sums:
            self._sums[name] = _size_and_norm(family.first.read())
        return self._sums[name]


def _split(family: _Family, points: _Points, tensors: Sequence[NamedTensor]) -> list[_Family]:
    """A family as it is; its tensors one by one where the model counts none like it.

    Wildcards of a rule stand for the same text on both sides: layers from 1 are none from 0.
    """
    if any(point.numbers == family.numbers for point in points):
        return [family]
    before, _, after = family.pattern.partition("*")
    names = {f"{before}{number}{after}" for number in family.numbers}
    return [
        _Family(pattern=tensor.name, numbers=(), first=tensor)
        for tensor in tensors
        if tensor.name in names
    ]


def _find_families(tensors: Sequence[NamedTensor]) -> list[_Family]:
    """Tensors by the pattern that most of them share; each tensor is in one family."""
    members: dict[str, dict[int, NamedTensor]] = {}
    for tensor in tensors:
        for pattern, number in _patterns(tensor.name):
            members.setdefault(pattern, {})[number] = tensor
    families: dict[str, _Family] = {}
    for tensor in tensors:
        own = max(
            (pattern for pattern, _ in _patterns(tensor.name)),
            key=lambda pattern: len(members[pattern]),
            default="",
        )
        if not own or len(members[own]) < 2:
            families[tensor.name] = _Family(pattern=tensor.name, numbers=(), first=tensor)
        elif own not in families:
            numbers = tuple(sorted(members[own]))
            families[own] = _Family(pattern=own, numbers=numbers, first=members[own][numbers[0]])
    return list(families.values())


def _patterns(name: str) -> Iterator[tuple[str, int]]:
    """A name with one of its numbers left open, for each that says which layer it may be.

    The index of an output (":out.1") and of a call ("#2") say nothing of layers.
    """
    for match in _NUMBER.finditer(name):
        before = name[: match.start()]
        if not before.endswith((":out.", "#")):
            yield f"{before}*{name[match.end() :]}", int(match[0])


def _size_and_norm(values: Array) -> tuple[int, float]:
    """What is the same in whatever order the elements lie."""
    return values.size, float(np.linalg.norm(values.reshape(-1).astype(np.float64)))


def _propose_by_values(family: _Family, points: _Points) -> ProposedRule:
    values = family.first.read()
    size, norm = _size_and_norm(values)
    errors: list[tuple[float, int, _Family, Layout]] = []
    for index, point in enumerate(points):
        if point.numbers != family.numbers or not norm > 0.0:
            continue
        own_size, own_norm = points.size_and_norm(point)
        if own_size != size or not abs(own_norm - norm) <= _OTHER * max(own_norm, norm):
            continue
        base = point.first.read()
        for layout in _layouts(base.shape, values.shape):
            error = _relative_error(base, layout.apply(values))
            if error < _OTHER:
                errors.append((error, index, point, layout))
    blank = ProposedRule(cand=family.pattern, count=family.count, shape=family.first.shape)
    if not errors:
        return blank
    # of one value under several names the output: behind the last point nothing is known
    errors.sort(key=lambda match: (match[0], match[2].pattern != OUTPUT, match[1]))
    best = errors[0]
    alternatives = [
        match for match in errors if match[0] <= _NEARER * best[0] + 1e-12 and match[0] > best[0]
    ]
    if any(_differs(match[2], best[2]) for match in alternatives):
        names = dict.fromkeys(match[2].pattern for match in (best, *alternatives))
        return _with_alternatives(blank, tuple(names))
    rule = NameRule(base=best[2].pattern, cand=family.pattern, layout=best[3])
    return ProposedRule(
        cand=blank.cand, count=blank.count, shape=blank.shape, rule=rule, error=best[0]
    )


def _differs(one: _Family, other: _Family) -> bool:
    """Whether two points hold other values: what one module gives, the next one may take."""
    ours, theirs = one.first.read(), other.first.read()
    return ours.shape != theirs.shape or not np.array_equal(ours, theirs)


def _propose_by_shape(family: _Family, points: _Points, taken: set[str]) -> ProposedRule:
    blank = ProposedRule(cand=family.pattern, count=family.count, shape=family.first.shape)
    free = [
        (point, layout)
        for point in points
        if point.numbers == family.numbers and point.pattern not in taken
        for layout in _layouts(point.first.shape, family.first.shape)[:1]
    ]
    if len(free) == 1:
        rule = NameRule(base=free[0][0].pattern, cand=family.pattern, layout=free[0][1])
        return ProposedRule(cand=blank.cand, count=blank.count, shape=blank.shape, rule=rule)
    return _with_alternatives(blank, tuple(point.pattern for point, _ in free))


def _with_alternatives(blank: ProposedRule, names: tuple[str, ...]) -> ProposedRule:
    return ProposedRule(
        cand=blank.cand,
        count=blank.count,
        shape=blank.shape,
        alternatives=names[:_MOST_ALTERNATIVES],
    )


def _layouts(base: Sequence[int], candidate: Sequence[int]) -> list[Layout]:
    """Layouts in which a tensor of the candidate's shape has the base's, up to leading ones.

    As it lies; with its two axes exchanged, as ggml prints them; with its heads joined.
    """
    ours, theirs = _without_leading_ones(base), _without_leading_ones(candidate)
    layouts = [Layout()] if ours == theirs else []
    if len(theirs) == 2 and theirs[::-1] == ours:
        n_leading = len(candidate) - 2
        layouts.append(Layout(transpose=(*range(n_leading), n_leading + 1, n_leading)))
    if len(ours) == 2 and len(theirs) == 3 and (theirs[0], theirs[1] * theirs[2]) == ours:
        layouts.append(Layout(reshape=(-1, ours[1])))
    return layouts


def _without_leading_ones(shape: Sequence[int]) -> tuple[int, ...]:
    trimmed = list(shape)
    while len(trimmed) > 1 and trimmed[0] == 1:
        trimmed.pop(0)
    return tuple(trimmed)


def _relative_error(base: Array, candidate: Array) -> float:
    ours, theirs = (array.reshape(-1).astype(np.float64) for array in (base, candidate))
    norm = float(np.linalg.norm(ours))
    error = float(np.linalg.norm(ours - theirs)) / norm if norm else np.inf
    return error if np.isfinite(error) else np.inf
