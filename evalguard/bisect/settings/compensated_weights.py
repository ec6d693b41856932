"""Weights of which one compensates for another of the same layer, told by reading both.

Values times 4 and the output projection by 4, a norm's weights multiplied into the matrices that
read it, heads in another order in all that holds them, experts in another one with their router,
rotary pairs as a switch of the configuration says: no score changes. Each half alone does harm, and
neither is to blame. Where a mistake is in one of them as well, that one is, and the others have to
go with it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evalguard.bisect.settings.reordered_experts import find_reordered_experts
from evalguard.bisect.settings.stored_names import StoredNames
from evalguard.bisect.settings.weight_names import WeightCause, name_tensor, name_weights
from evalguard.core.tensor_structure import find_rotary_blocks, find_row_order
from evalguard.models.checkpoint_files import open_stored_tensors, shape_of
from evalguard.models.unloaded_models import WeightPlace

Array = NDArray[Any]
_EXACT = 0.01  # of a tensor: what bfloat16 may leave of a factor, or of another order
_TELLING = 0.2  # logarithm of one number: a smaller one is not told from what a mistake does
_SMALLEST = 0.02  # likewise, standard deviation of those of channels that have each its own
_NEAR = 0.35  # of a factor's logarithm: a mistake inside moves the norms of channels that far
_FEWEST, _MOST = 0.1, 0.9  # of the channels: that have the factor; that have it or none
_ADDED = (0.0, 1.0)  # to the weights of a norm, by its kind


def find_compensated(
    stored: StoredNames,
    places: Mapping[str, WeightPlace],
    differing: Iterable[str],
    matrices: Collection[str],
    switches: Mapping[str, str],
) -> Iterator[WeightCause]:
    """Yield weights of which some compensate for others, of all layers alike as one.

    Args:
        differing: without matrices that are only rounded. They are read, a layer at a time.
        switches: attributes of the configuration that differ and say how rotary pairs are laid out
            -> in which order the candidate's are to be, as a name map has it.
    """
    differing = [*differing]
    switched = _find_switched(differing, stored, places, matrices, switches)
    if switched is not None:
        yield _join([switched], places)
        differing = [name for name in differing if name not in switched.tensors]
    layers: dict[int | None, list[str]] = defaultdict(list)
    # what is tied is one tensor; what loading stacks has no name of its own in a file
    seats = {stored.candidate.get(name, name): name for name in differing}
    for name in seats.values():
        if name in stored.stacked or {name} <= stored.base.keys() & stored.candidate.keys():
            layers[places[name].layer].append(name)
    alike: dict[tuple[str, ...], list[_Layout]] = defaultdict(list)
    for names in layers.values():
        reordered = [
            _Layout(tensors=tensors, wrong=wrong, words="reordered together")
            for tensors, wrong in find_reordered_experts(names, stored, places)
        ]
        taken = {name for layout in reordered for name in layout.tensors}
        remaining = [name for name in names if name not in taken]
        for layout in (*reordered, *_find_in_layer(remaining, stored, places, matrices)):
            alike[layout.way(places)].append(layout)
    for group in alike.values():
        parts = [_join([layout], places) for layout in group] if len(group) > 1 else []
        yield _join(group, places, parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """Weights of a layer that are the base's in another layout, but for what is wrong with some.

    ``wrong``: those of them that differ in more than a factor or an order; () where none does.
    ``words``: what they are where none does. ``switches``: what of the configuration says so.
    """

    tensors: tuple[str, ...]
    wrong: tuple[str, ...]
    words: str = "scaled against each other"
    switches: tuple[str, ...] = ()

    def way(self, places: Mapping[str, WeightPlace]) -> tuple[str, ...]:
        names = (name_tensor(name, places) for name in (*self.tensors, *self.wrong))
        return (self.words, str(len(self.wrong)), *names)


def _join(
    group: Sequence[_Layout],
    places: Mapping[str, WeightPlace],
    parts: Sequence[WeightCause] = (),
) -> WeightCause:
    """One cause of layers: called by what is wrong, with what has to go with it."""
    tensors = tuple(name for layout in group for name in layout.tensors)
    wrong = tuple(name for layout in group for name in layout.wrong)
    companions = dict.fromkeys(name_tensor(name, places) for name in tensors)
    for name in wrong:
        companions.pop(name_tensor(name, places), None)
    switches = group[0].switches
    along = [*(companions if wrong else ()), *(f"config.{switch}" for switch in switches)]
    phrases = [] if wrong else [group[0].words]
    phrases += [f"with {', '.join(along)}"] if along else []
    name = name_weights(wrong or tensors, places, " ".join(phrases))
    return WeightCause(name=name, tensors=tensors, parts=tuple(parts), switches=switches)


def _find_switched(
    names: Sequence[str],
    stored: StoredNames,
    places: Mapping[str, WeightPlace],
    matrices: Collection[str],
    switches: Mapping[str, str],
) -> _Layout | None:
    """Weights of attention whose rotary pairs stand as switches say, in most that differ of each
    module's name. The switch is one of all layers, and so are these."""
    roles: dict[str, dict[str, Array]] = defaultdict(dict)
    for name in names if switches else ():
        both = {name} <= stored.base.keys() & stored.candidate.keys()
        if both and name in matrices and places[name].kind == "attention":
            base, candidate = (weight.float().flatten(1).numpy() for weight in stored.read(name))
            order = find_row_order(base, candidate)
            roles[name_tensor(name, places)][name] = np.arange(0) if order is None else order
    tensors: list[str] = []
    wrong: list[str] = []
    matched: set[str] = set()
    for members in roles.values():
        orders = {member_order.tobytes(): member_order for member_order in members.values()}
        most, often = Counter(
            member_order.tobytes() for member_order in members.values()
        ).most_common(1)[0]
        order = orders[most]
        pairs = find_rotary_blocks(order) if 2 * often >= len(members) and order.size else None
        agreeing = {
            key
            for key, switch_order in switches.items()
            if pairs is not None and switch_order == pairs.order
        }
        if not agreeing:
            continue
        matched |= agreeing
        modules = {places[name].module for name in members}
        for name in (weight_name for weight_name in names if places[weight_name].module in modules):
            base, candidate = (side.numpy() for side in stored.read(name))
            tensors.append(name)
            if _differ(candidate[order], base) > _EXACT * float(np.linalg.norm(base)):
                wrong.append(name)
    if not tensors:
        return None
    return _Layout(
        tensors=tuple(tensors),
        wrong=tuple(wrong),
        words="reordered together",
        switches=tuple(key for key in switches if key in matched),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Channels:
    """One axis of a tensor: how its channels differ from the base's.

    Attributes:
        factors: logarithms of what their norms are multiplied by. scaled: whether they are factors,
            and all that there is.
        order: where channels of these norms stand in the base; () where the norms are others, or
            stand there as well. moved: whether that is all.
    """

    factors: Array
    scaled: bool
    order: tuple[int, ...] = ()
    moved: bool = False

    def is_compensated_by(self, other: _Channels) -> bool:
        """Whether another tensor's channels look as what compensates for these, or goes along."""
        if self.moved and self.order == other.order:
            return True
        if not self.scaled:
            return False
        several = float(np.std(self.factors)) >= _SMALLEST
        if (
            several
            and self.factors.shape == other.factors.shape
            and _size(self.factors + other.factors) <= _NEAR * _size(self.factors)
        ):
            return True
        number = _find_number(self.factors)
        taken = np.abs(other.factors + number) <= _NEAR * abs(number)
        none = np.abs(other.factors) <= _NEAR * abs(number)
        return bool(number and taken.mean() >= _FEWEST and (taken | none).mean() >= _MOST)


def _find_number(factors: Array) -> float:
    """The one number that all have of these that have any; 0 where there is none."""
    some = factors[np.abs(factors) > _EXACT]
    number = float(np.median(some)) if some.size else 0.0
    alike = abs(number) >= _TELLING and np.all(np.abs(some - number) <= _EXACT)
    return number if alike else 0.0


def _find_in_layer(
    names: Sequence[str],
    stored: StoredNames,
    places: Mapping[str, WeightPlace],
    matrices: Collection[str],
) -> Iterator[_Layout]:
    norms = [name for name in names if name not in matrices and places[name].kind == "norms"]
    channels = {name: _read_channels(name, stored) for name in names if name in matrices}
    if not channels or len(channels) + len(norms) < 2:
        return
    channels |= {name: _read_channels(name, stored) for name in norms}
    group: dict[object, object] = {}

    def find(one: object) -> object:
        while group.setdefault(one, one) != one:
            one = group[one]
        return one

    for first, second in combinations(channels, 2):
        kinds = {places[first].kind, places[second].kind} - {"norms"}
        pairs = [(a, b) for a in channels[first] for b in channels[second]]
        both = ((a, b) for pair in pairs for a, b in (pair, pair[::-1]))
        if len(kinds) == 1 and any(a.is_compensated_by(b) for a, b in both):
            group[find(first)] = group[find(second)] = find(kinds.pop())
    modules = {places[name].module: find(name) for name in channels if name in group}
    joined: dict[object, list[str]] = defaultdict(list)
    for name in names:  # a bias goes with the matrix of its module
        own = find(name) if name in group else None
        if name not in matrices:
            own = own or modules.get(places[name].module)
        if own is not None:
            joined[own].append(name)
    for tensors in joined.values():
        wrong = [
            name
            for name in tensors
            if name in channels and not any(axis.scaled or axis.moved for axis in channels[name])
        ]
        moved = any(axis.moved for name in tensors for axis in channels.get(name, ()))
        if moved and not wrong:
            continue  # one order of all of them is one mistake, or none, with a name of its own
        yield _Layout(tensors=tuple(tensors), wrong=tuple(wrong))


def _read_channels(name: str, stored: StoredNames) -> list[_Channels]:
    """Every axis of a matrix whose channels can be compared; of a norm's weights, as it scales.

    Of what loading stacks, the columns of all its matrices.
    """
    if name in stored.stacked:
        return _read_stacked_columns(stored.stacked[name], stored)
    base, candidate = (side.numpy() for side in stored.read(name))
    if base.ndim == 1:
        with np.errstate(all="ignore"):
            ways = [np.log(np.abs((candidate + added) / (base + added))) for added in _ADDED]
        known = (way for way in ways if np.isfinite(way).all())
        return [_Channels(factors=way, scaled=_size(way) >= _SMALLEST) for way in known]
    tolerance = _EXACT * float(np.linalg.norm(candidate))
    channels = []
    for axis in range(base.ndim):
        ours, theirs = (
            np.moveaxis(side, axis, 0).reshape(side.shape[axis], -1) for side in (base, candidate)
        )
        norms = np.linalg.norm(ours, axis=1), np.linalg.norm(theirs, axis=1)
        if not all(np.all(np.isfinite(side_norms) & (side_norms > 0.0)) for side_norms in norms):
            continue
        times, order = norms[1] / norms[0], _find_order(*norms)
        factors = np.log(times)
        scaled = _size(factors) >= _SMALLEST and _differ(theirs, times[:, None] * ours) <= tolerance
        moved = bool(order) and _differ(theirs, ours[[*order]]) <= tolerance
        channels.append(_Channels(factors=factors, scaled=scaled, order=order, moved=moved))
        if not scaled and not moved:  # noise adds to a norm, and not to what is left of the base
            with np.errstate(all="ignore"):
                shares = np.log(np.abs(np.sum(theirs * ours, axis=1)) / norms[0] ** 2)
            if np.isfinite(shares).all():
                channels.append(_Channels(factors=shares, scaled=False))
    return channels


def _read_stacked_columns(keys: Collection[str], stored: StoredNames) -> list[_Channels]:
    """The columns of all matrices that loading stacks, which are read one by one."""
    sums: Any = 0.0  # (3, columns): of the base's squares, of products, of the candidate's squares
    with ExitStack() as stack:
        sides = [open_stored_tensors(files, stack) for files in stored.files]
        if len({shape_of(side[key])[-1:] for side in sides for key in keys}) > 1:
            return []
        for key in keys:
            ours, theirs = (side[key][...].double().numpy() for side in sides)
            ours, theirs = (matrix.reshape(-1, matrix.shape[-1]) for matrix in (ours, theirs))
            pairs = ((ours, ours), (ours, theirs), (theirs, theirs))
            sums = sums + np.array([np.sum(first * second, axis=0) for first, second in pairs])
    with np.errstate(all="ignore"):
        times = np.sqrt(sums[2] / sums[0])
        factors, shares = np.log(times), np.log(np.abs(sums[1] / sums[0]))
        error = np.sum(sums[2] - 2.0 * times * sums[1] + times**2 * sums[0])
    if not np.isfinite([*factors, *shares]).all():
        return []
    scaled = _size(factors) >= _SMALLEST and error <= _EXACT**2 * np.sum(sums[2])
    channels = [_Channels(factors=factors, scaled=bool(scaled))]
    return channels if scaled else [*channels, _Channels(factors=shares, scaled=False)]


def _size(factors: Array) -> float:
    return float(np.sqrt(np.mean(factors**2)))


def _differ(one: Array, other: Array) -> float:
    return float(np.linalg.norm(one - other))


def _find_order(base: Array, candidate: Array) -> tuple[int, ...]:
    """Where channels of these norms stand in the base; () where they are others, or hardly move."""
    order = np.empty(base.size, dtype=np.intp)
    order[np.argsort(candidate)] = np.argsort(base)
    misplaced = np.abs(base[order] - candidate) > _EXACT * base[order]
    stay = np.abs(base - candidate) <= _EXACT * base
    return () if misplaced.any() or stay.mean() > _MOST else tuple(order.tolist())
