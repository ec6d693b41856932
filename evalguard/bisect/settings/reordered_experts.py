"""Experts in another order, and the router that has to be in the same one.

Rows of the router that moved with the experts choose the same ones: no score changes. Either
without the other does harm, and neither is to blame. Read are a few rows of each expert, which tell
it from the others; whole experts only where they moved, one at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evalguard.bisect.settings.stored_names import StoredNames
from evalguard.models.checkpoint_files import open_stored_tensors, shape_of
from evalguard.models.unloaded_models import WeightPlace

Array = NDArray[Any]
_ROWS = 4  # of each matrix of an expert
_SAME = 0.3  # of those rows: what may have been done to an expert that is the same one
_APART = 0.5  # of the distance to the next one that is like it
_EXACT = 0.01  # of a tensor: what bfloat16 may leave
_UNKNOWN = -1


def find_reordered_experts(
    names: Sequence[str], stored: StoredNames, places: Mapping[str, WeightPlace]
) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Yield experts of one layer that are in another order, with their router if it differs.

    Args:
        names: of tensors of the layer that differ.

    Yields:
        Names of them, and which of those differ in more than that order.
    """
    with ExitStack() as stack:
        sides = tuple(open_stored_tensors(files, stack) for files in stored.files)
        blocks: dict[str, list[_Experts]] = {}
        for name in names:
            experts = _Experts.of(name, stored, places, sides)
            if experts is not None:
                blocks.setdefault(_holder(name, places), []).append(experts)
        for block, held in blocks.items():
            orders = {experts.name: experts.find_order() for experts in held}
            order = max(
                orders.values(),
                key=lambda candidate_order: int(np.sum(candidate_order != _UNKNOWN)),
            )
            if not _moves(order):
                continue
            router = [
                name
                for name in names
                if name not in orders
                and places[name].module.startswith(f"{block}.")
                and name in stored.candidate
                and shape_of(sides[1][stored.candidate[name]])[:1] == (order.size,)
            ]
            if not router:
                continue
            wrong = [experts.name for experts in held if not experts.is_only_moved(order)]
            wrong += [name for name in router if not _follows(*stored.read(name), order)]
            yield (*orders, *router), tuple(wrong)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Experts:
    """A tensor of all experts of a layer, however the files hold it.

    ``parts``: for each side, of each expert the tensors in a file that are its own, and its number
    in them, None where each expert has tensors of its own.
    """

    name: str
    parts: tuple[Sequence[tuple[Sequence[Any], int | None]], ...]

    @classmethod
    def of(
        cls,
        name: str,
        stored: StoredNames,
        places: Mapping[str, WeightPlace],
        sides: tuple[Mapping[str, Any], ...],
    ) -> _Experts | None:
        """None of what is no tensor of experts."""
        if name in stored.stacked:
            cut = _cut_by_number(stored.stacked[name])
            if len(cut) < 2:
                return None
            own = [[([side[key] for key in keys], None) for keys in cut] for side in sides]
            return cls(name=name, parts=tuple(own))
        if places[name].kind != "mlp" or name not in stored.base or name not in stored.candidate:
            return None
        held = [
            side[of[name]] for side, of in zip(sides, (stored.base, stored.candidate), strict=True)
        ]
        shapes = {shape_of(tensor) for tensor in held}
        if len(shapes) > 1 or len(shape := shapes.pop()) != 3 or shape[0] < 2:
            return None
        return cls(
            name=name,
            parts=tuple([([tensor], number) for number in range(shape[0])] for tensor in held),
        )

    def _read(self, side: int, expert: int, rows: int | None = None) -> Array:
        """The elements of one expert, (n,): of so many rows of each of its matrices."""
        tensors, number = self.parts[side][expert]
        read = [
            tensor[:rows] if number is None else tensor[number : number + 1, :rows]
            for tensor in tensors
        ]
        return np.concatenate([matrix.double().numpy().ravel() for matrix in read])

    def find_order(self) -> Array:
        """Which expert of the base each of the candidate's is, (n,); _UNKNOWN: like none."""
        count = len(self.parts[0])
        base, candidate = (
            np.array([self._read(side, expert, _ROWS) for expert in range(count)])
            for side in (0, 1)
        )
        order = np.full(count, _UNKNOWN)
        for expert, row in enumerate(candidate):
            away = np.linalg.norm(base - row, axis=1)
            first, second = np.argsort(away)[:2]
            if away[first] <= min(_APART * away[second], _SAME * np.linalg.norm(row)):
                order[expert] = first
        known = order[order != _UNKNOWN]
        if np.unique(known).size < known.size:  # copies of an expert are no order
            return np.full(count, _UNKNOWN)
        if known.size == count - 1:
            order[order == _UNKNOWN] = np.setdiff1d(np.arange(count), known)
        return order

    def is_only_moved(self, order: Array) -> bool:
        """Whether the candidate's are the base's in an order, all that is known of it."""
        if np.any(order == _UNKNOWN):
            return False
        for expert, source in enumerate(order.tolist()):
            theirs, ours = self._read(1, expert), self._read(0, source)
            if not np.linalg.norm(theirs - ours) <= _EXACT * np.linalg.norm(ours):
                return False
        return True


def _cut_by_number(keys: Iterable[str]) -> list[list[str]]:
    """The keys of each expert: by the one number in them that tells them apart; [] if none does."""
    parted = {key: key.split(".") for key in sorted(keys)}
    numbers = [
        at
        for at in range(min(map(len, parted.values())))
        if all(parts[at].isdigit() for parts in parted.values())
        and len({parts[at] for parts in parted.values()}) > 1
    ]
    if len(numbers) != 1:
        return []
    cut: dict[int, list[str]] = {}
    for key, parts in parted.items():
        cut.setdefault(int(parts[numbers[0]]), []).append(key)
    return [cut[number] for number in sorted(cut)]


def _holder(name: str, places: Mapping[str, WeightPlace]) -> str:
    """The module that holds the experts, and the router beside them."""
    return places[name].module.rpartition(".")[0]


def _moves(order: Array) -> bool:
    """Whether most of the experts are known, and some of them stand elsewhere."""
    known = order != _UNKNOWN
    elsewhere = order[known] != np.arange(order.size)[known]
    return 2 * int(known.sum()) > order.size and bool(elsewhere.any())


def _follows(base: Any, candidate: Any, order: Array) -> bool:
    """Whether rows of the router are in the experts' order, those of unknown ones in any."""
    ours, theirs = (router.numpy().reshape(order.size, -1) for router in (base, candidate))
    known = order != _UNKNOWN
    rest = ours[np.setdiff1d(np.arange(order.size), order[known])]
    error = [np.linalg.norm(theirs[known] - ours[order[known]])]
    error += [np.linalg.norm(rest - row, axis=1).min() for row in theirs[~known]]
    return bool(np.linalg.norm(error) <= _EXACT * np.linalg.norm(ours))
