"""Errors that cancel: a module that is laid out otherwise, with readers that undo it.

In a forced pass every module reads the base's tensors, so two modules whose errors undo each other
(queries and the columns that read them in another order, a norm's weights multiplied into the next
matrices) are both beyond the floor. Here the points between them are released: they keep the
candidate's own tensors, while all others are still replaced. Where every point that is replaced is
then within its floor, in every document, the released part computes what the base's does. What was
rounded anew, or undone by more than two modules, is tried in ``relayouts``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, isfinite
from typing import TYPE_CHECKING, Any

import numpy as np

from evalguard.core.trace_points import ROOT, PointName
from evalguard.errors import EvaluationError
from evalguard.tracing.measure.passes import as_array, sequence_key
from evalguard.tracing.measure.suspects import THRESHOLD, MeasuredPoint

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from evalguard.core.activation_sums import ErrorSums
    from evalguard.tracing.measure.module_hooks import PointEvent
    from evalguard.tracing.measure.passes import ActivationSource, TwinFloors


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleasedPasses:
    """How a trace runs its forced passes with some points released.

    Attributes:
        run: the sums of every sequence (:func:`sequence_key`). floors: of benign twins, likewise.
        apply: sets a point's floors of them.
        base: the base's own tensors. sequences: how many there are.
    """

    run: Callable[[frozenset[str]], Mapping[str, ErrorSums]]
    floors: Callable[[frozenset[str]], TwinFloors]
    apply: Callable[[MeasuredPoint, TwinFloors], None]
    base: ActivationSource
    sequences: int


def note_cancelling(
    points: Sequence[MeasuredPoint], events: Sequence[PointEvent], passes: ReleasedPasses
) -> str:
    """Note at every point whose error cancels where it has done so.

    A point's error does where it needs that of others: with theirs it is gone at the point itself,
    or without it the part that computes what the base's does no longer does. One that only is too
    small to be seen behind the part does not.

    Args:
        events: all points of the base, in order of execution.

    Returns:
        Why that could not be measured; "" where it was.
    """
    search = _Search(points, events, passes)
    try:
        for parts in search.rounds():
            search.measure(parts)
    except EvaluationError as error:
        for point in points:
            point.cancels_at = ""
        return f"whether errors cancel each other was not measured: {error}"
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """A part of the model, with its inner points to be released.

    Attributes:
        start: order of its first point. outer: points at which all that it makes is read.
        suspects: beyond the floor, in it or at its ends.
        given: input of the module that it is; "" where it is none.
    """

    start: int
    released: frozenset[str]
    outer: tuple[str, ...]
    suspects: tuple[MeasuredPoint, ...]
    given: str = ""

    def is_apart_from(self, other: _Part) -> bool:
        return (self.released | {*self.outer}).isdisjoint((*other.released, *other.outer))


_Ratios = Mapping[str, Mapping[int, float]]  # by point and sequence


@dataclass(slots=True)
class _Search:
    points: Sequence[MeasuredPoint]
    events: Sequence[PointEvent]
    passes: ReleasedPasses
    by_name: Mapping[str, MeasuredPoint] = field(init=False)
    order: Mapping[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self.by_name = {point.name: point for point in self.points}
        self.order = {event.name: number for number, event in enumerate(self.events)}

    def rounds(self) -> Iterator[Sequence[_Part]]:
        """Give parts that do not overlap and can be measured at once, the smallest first."""
        if len(self._beyond()) < 2:  # nothing is undone by one error
            return
        yield from _split(self._find_tensors())
        by_depth: dict[int, list[PointEvent]] = {}
        for event in self.events:
            point = PointName.parse(event.name)
            if point.end == "out" and not point.index and not event.leaf and self._may_be(event):
                by_depth.setdefault(event.module.count("."), []).append(event)
        for depth in sorted(by_depth, reverse=True):
            yield list(self._find_modules(by_depth[depth]))

    def _beyond(self) -> Mapping[str, MeasuredPoint]:
        """Points whose error could cancel, and the ends of those that do."""
        return {
            point.name: point
            for point in self.points
            if isfinite(point.run_ratio())
            and point.run_ratio() > THRESHOLD
            and not point.shapes
            and not point.misfed
        }

    def _may_be(self, event: PointEvent) -> bool:
        """Whether a module is a layer or in one, or holds no layers: else it is most of the model,
        whose end sees little of what one module does."""
        numbered = any(part.isdigit() for part in event.module.split("."))
        inside = (e.module for e in self.events if e.module.startswith(f"{event.module}."))
        return event.module != ROOT and (
            numbered or not any(part.isdigit() for name in inside for part in name.split("."))
        )

    def _find_modules(self, ends: Iterable[PointEvent]) -> Iterator[_Part]:
        """Give called modules with several errors inside, some of which is not known to cancel."""
        beyond = self._beyond()
        for end in ends:
            given = str(PointName(end.module, "in", call=PointName.parse(end.name).call))
            if given not in self.by_name or end.name not in self.by_name:
                continue
            first, last = self.order[given], self.order[end.name]
            inside = [event.name for event in self.events[first + 1 : last]]
            suspects = tuple(
                beyond[name]
                for name in (*inside, end.name)
                if name in beyond and all(self.order[p] >= first for p in beyond[name].since)
            )
            if len(suspects) < 2 or all(point.cancels_at for point in suspects):
                continue
            # Its other outputs (attention weights) need no floor where nothing reads them.
            other_outputs = [
                e.name for e in self.events[last + 1 :] if _is_other_output(e.name, end.name)
            ]
            yield _Part(
                start=first,
                released=frozenset((*inside, *other_outputs)),
                outer=(end.name,),
                suspects=suspects,
                given=given,
            )

    def _find_tensors(self) -> list[_Part]:
        """Give tensors that are beyond the floor, and so is what other modules make of them."""
        beyond, parts = self._beyond(), []
        for point in beyond.values():
            if PointName.parse(point.name).end != "out" or point.kind != "leaf":
                continue
            same = self._find_same(point.name)
            readers = {
                str(PointName(parsed.module, "out", call=parsed.call))
                for parsed in map(PointName.parse, same)
                if parsed.end == "in"
            }
            outer = tuple(
                event.name
                for event in self.events
                if event.name in readers and event.leaf and event.name not in same
            )
            suspects = tuple(beyond[name] for name in outer if name in beyond)
            if suspects and all(name in self.by_name for name in outer):
                parts.append(
                    _Part(
                        start=self.order[point.name],
                        released=frozenset((point.name, *same)),
                        outer=outer,
                        suspects=(point, *suspects),
                    )
                )
        return parts

    def _find_same(self, name: str) -> list[str]:
        """Give later points of the layer that are a tensor again: what reads it, as it is."""
        layer = layer_of(PointName.parse(name).module)
        values = [self._read(number, name) for number in range(self.passes.sequences)]
        return [
            event.name
            for event in self.events[self.order[name] + 1 :]
            if layer_of(event.module) == layer
            and all(
                _is_same(value, self._read(number, event.name))
                for number, value in enumerate(values)
            )
        ]

    def _read(self, sequence: int, point: str) -> NDArray[Any] | None:
        tensor = self.passes.base.get(sequence, point)
        return None if tensor is None else as_array(tensor)

    def measure(self, parts: Sequence[_Part]) -> None:
        """Release these parts, and note which errors in them cancel."""
        if not parts:
            return
        released = frozenset[str]().union(*(part.released for part in parts))
        sums, floors = self.passes.run(released), self.passes.floors(released)
        ratios = self._find_ratios(sums, floors)
        whole_parts = [
            part
            for part in self._drop_leaking(parts, released, ratios)
            if self._is_whole(part, ratios)
        ]
        if not whole_parts:
            return
        # The errors that are gone, by the same floors: of a longer way to a point they are wider.
        forced = self._find_ratios(self.passes.run(frozenset()), floors)
        # Outputs of one call together: a router's logits are read as its choice alone.
        remaining: list[tuple[_Part, dict[PointName, list[MeasuredPoint]]]] = []
        for part in whole_parts:
            calls: dict[PointName, list[MeasuredPoint]] = {}
            for suspect in part.suspects:
                if self._remains(suspect, part, ratios):
                    call = replace(PointName.parse(suspect.name), index=0)
                    calls.setdefault(call, []).append(suspect)
                elif max(forced[suspect.name].values()) > THRESHOLD:
                    _note(suspect, part)
            remaining.append((part, calls))
        while any(calls for _, calls in remaining):
            held = [(part, calls.popitem()[1]) for part, calls in remaining if calls]
            names = {point.name for _, each in held for point in each}
            without = self._find_ratios(self.passes.run(released - names), floors)
            for part, each in held:
                for suspect in each if not self._is_whole(part, without) else ():
                    _note(suspect, part)

    def _find_ratios(self, sums: Mapping[str, ErrorSums], floors: TwinFloors) -> _Ratios:
        """Give the ratio of every sequence at every point; infinite where it is not known."""
        ratios: dict[str, dict[int, float]] = {}
        for point in self.points:
            for number in range(self.passes.sequences):
                key = sequence_key(number, point.name)
                if point.local is None or self.passes.base.get(number, point.name) is None:
                    continue
                measured = MeasuredPoint(
                    name=key,
                    code=point.code,
                    kind=point.kind,
                    place=point.place,
                    order=point.order,
                    local=sums.get(key),
                )
                self.passes.apply(measured, floors)
                ratio = inf if measured.local is None else measured.run_ratio()
                ratios.setdefault(point.name, {})[number] = ratio
        return ratios

    def _is_whole(self, part: _Part, ratios: _Ratios) -> bool:
        """Whether what a part passes on is the base's, in every sequence."""
        return all(
            ratio <= THRESHOLD * self._share(number, part.given, name)
            for name in part.outer
            for number, ratio in ratios.get(name, {0: inf}).items()
        )

    def _share(self, sequence: int, given: str, made: str) -> float:
        """What a module adds to its input, as a share of its output: beside a large residual an
        error of what is added is small."""
        ours, theirs = (self._read(sequence, name) if name else None for name in (made, given))
        if ours is None or theirs is None or ours.shape != theirs.shape:
            return 1.0
        size = float(np.linalg.norm(ours.astype(np.float64)))
        added = float(np.linalg.norm(ours.astype(np.float64) - theirs))
        return min(1.0, added / size) if size else 1.0

    def _remains(self, one: MeasuredPoint, part: _Part, ratios: _Ratios) -> bool:
        """Whether a point's error is still there with those that it may need."""
        return one.name not in part.outer and max(ratios[one.name].values()) > THRESHOLD

    def _drop_leaking(
        self, parts: Sequence[_Part], released: Collection[str], measured: _Ratios
    ) -> list[_Part]:
        """Leave out parts of which something was read that is not at their ends.

        That is where a point is beyond the floor now, which was not: any part before it may be why.
        """
        outer = {name for part in parts for name in part.outer}
        hurt = [
            self.order[name]
            for name, ratios in measured.items()
            if name not in released
            and name not in outer
            and max(ratios.values()) > THRESHOLD
            and self.by_name[name].ratios()[0] <= THRESHOLD
        ]
        return [part for part in parts if part.start >= max(hurt, default=-1)]


def _split(parts: Iterable[_Part]) -> Sequence[Sequence[_Part]]:
    """Group parts so that none has a point of another: what one makes the next may read."""
    groups: list[list[_Part]] = []
    for part in parts:
        apart = (group for group in groups if all(part.is_apart_from(member) for member in group))
        group = next(apart, None)
        if group is None:
            groups.append([part])
        else:
            group.append(part)
    return groups


def _note(one: MeasuredPoint, part: _Part) -> None:
    one.cancels_at = one.cancels_at or (one.name if one.name in part.outer else part.outer[0])


def _is_other_output(name: str, end: str) -> bool:
    point, main = PointName.parse(name), PointName.parse(end)
    return (point.module, point.end, point.call) == (main.module, "out", main.call)


def layer_of(module: str) -> str:
    """Give the name of the layer that a module is in; "" for one that is in none."""
    parts = module.split(".")
    number = next((at for at, part in enumerate(parts) if part.isdigit()), None)
    return "" if number is None else ".".join(parts[: number + 1])


def _is_same(one: NDArray[Any] | None, other: NDArray[Any] | None) -> bool:
    """Whether two tensors are one, whatever its shape is: experts read a list of all tokens."""
    if one is None or other is None:
        return one is other
    return one.size == other.size and np.array_equal(one.reshape(-1), other.reshape(-1))
