"""Codes and scales of a packed weight that stand where others should.

A weight is codes, often of a few bits, and a scale of each group of them. What moves one and leaves
the other makes numbers that are in no order of the base's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evalguard.core.tensor_structure import StructureFault, find_structure

Array = NDArray[Any]
_LEAST_ROLLED = 15  # scales by which those of others are told: of fewer a pair may be exchanged
_LEAST_SPREAD = 0.01  # of their logarithms: scales that are all alike may be exchanged unseen
_MOST_KNOWN = 0.95  # of the groups: those of which the factor is known
_LEFT = 0.25  # of the squares of all factors
_IN_PLACE = 0.5  # of a scale's logarithm: other codes of a group are as much larger or smaller
_AGREEING = 0.75  # of a field's bits: an importance matrix takes codes one off, chance half of all
_ONE_OFF = 0.25  # relative L2 error that codes which are one off make in their lowest bits


def find_moved_scales(
    factors: Array, sizes: Array, places: Sequence[int] = (1,), rows: int = 1
) -> tuple[int, int] | None:
    """Find by how many places along which axis each group's scale was moved to the next ones: those
    of (rows, groups) numbers; None where they are not what explains the factors.

    Args:
        factors: logarithms of what groups are multiplied by; not finite where that is not known.
        sizes: logarithms of the scales that they should have.
        places: along a row. rows: that share a scale.
    """
    steps = [(0, rows), *((1, count) for count in places)]
    for axis, step in ((axis, sign * size) for axis, size in steps for sign in (1, -1)):
        # the first ones may have the scales of the last, or of others
        inner = slice(step, None) if step > 0 else slice(None, step)
        expected = np.moveaxis(np.roll(sizes, step, axis) - sizes, axis, 0)[inner]
        seen = np.moveaxis(factors, axis, 0)[inner]
        known = np.isfinite(seen) & np.isfinite(expected)
        if known.sum() < max(_LEAST_ROLLED * rows, _MOST_KNOWN * known.size):
            continue
        seen, expected = seen[known], expected[known]
        varied = np.abs(expected) >= _LEAST_SPREAD  # neighbours may have one scale
        if np.std(seen) < _LEAST_SPREAD or not varied.any():
            continue
        rest = seen - expected
        rest -= np.median(rest)  # numbers that are cut off make all factors smaller
        # one group that is far off makes a correlation, and is no move of all others
        most = np.median(np.abs(rest[varied])) <= _LEFT**0.5 * np.median(np.abs(expected[varied]))
        if most and np.var(rest) <= _LEFT * np.var(seen):
            return axis, step
    return None


def rolled_text(what: str, axis: int, step: int, *, along: bool) -> str:
    """Return "each group of 32 has the scale of the one before it in its row".

    Args:
        along: whether several of them are in a row.
    """
    where = f"{'before' if step > 0 else 'behind'} it"
    if along:
        where += " in its row" if axis else " in its column"
    return f"each {what} has the scale of the one {where}"


def find_moved_codes(
    base: Array, candidate: Array, width: int, *, signed: bool, heads: bool, rounding: float
) -> StructureFault | None:
    """Say that the codes of a packed candidate are in another order, and their scales are not; None
    where that is not so.

    Of both sides the scales and least values of groups are taken away. What is left of the base is
    what its codes are on a finer scale, whatever is packed how.

    Args:
        base, candidate: (rows, columns), in groups of ``width`` neighbours.
        signed: whether scales are negative where the greatest element of a group is positive.
        heads, rounding: as of :func:`find_structure`.
    """
    plain = base
    (base, ours), (candidate, theirs) = (
        standardise_groups(matrix, width) for matrix in (base, candidate)
    )
    if base.shape != candidate.shape or not (np.isfinite(base).all() and np.isfinite(theirs).all()):
        return None
    held = (ours > 0) & (theirs > 0)
    if not held.any() or np.sqrt(np.mean(np.log(theirs[held] / ours[held]) ** 2)) > _IN_PLACE:
        return None
    fault = _find_order(base, candidate, heads=heads, rounding=rounding)
    if fault is None and signed:
        turned = np.repeat(_find_signs(plain, width), width, axis=1)
        fault = _find_order(base * turned, candidate * turned, heads=heads, rounding=rounding)
    return None if fault is None else _name(fault, "codes without their scales")


def _find_order(
    base: Array, candidate: Array, *, heads: bool, rounding: float
) -> StructureFault | None:
    fault = find_structure(base, candidate, heads=heads, rounding=rounding)
    return None if fault is None or fault.by is not None else fault


def _name(found: StructureFault, what: str) -> StructureFault:
    return replace(found, detail=f"{what}, {found.detail}", rule="")


def standardise_groups(values: Array, width: int) -> tuple[Array, Array]:
    """Return rows of which each group of neighbours has mean 0 and standard deviation 1, float32,
    and the deviations that they had: (rows, groups)."""
    groups = values.reshape(len(values), -1, width).astype(np.float32)
    groups = groups - groups.mean(axis=2, keepdims=True)
    spread = groups.std(axis=2)
    laid = groups / np.where(spread > 0, spread, 1)[..., None]
    return laid.reshape(values.shape), spread


def _find_signs(values: Array, width: int) -> Array:
    """Return the sign of the greatest element of each group of neighbours: (rows, groups)."""
    groups = values.reshape(len(values), -1, width)
    signs = np.sign(groups.max(axis=2) + groups.min(axis=2))
    return np.where(signs == 0, 1, signs).astype(np.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeField:
    """Some bits of all codes, that lie in a field of their own.

    Attributes:
        lowest: bit of a code. bits: how many. held: what the field has of each code, a whole number
            from 0 on.
    """

    lowest: int
    bits: int
    held: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class CutCodes:
    """Codes of a packed weight whose bits lie in several fields.

    Attributes:
        zero: what a code of 0 stands for, of each element. step: what one more is.
        fields: by their names.
    """

    zero: Array
    step: Array
    fields: Mapping[str, CodeField]

    def list_moved(self, base: Array) -> Sequence[tuple[str, Array, Array]]:
        """Return which fields have other bits than the base's numbers ask for, with these and those
        that they have; () where none or all have."""
        codes = sum(field.bits for field in self.fields.values())
        with np.errstate(all="ignore"):
            wanted = np.where(self.step != 0, (base.reshape(-1) - self.zero) / self.step, 0)
        whole = np.clip(np.nan_to_num(np.rint(wanted)), 0, 2**codes - 1).astype(np.uint8)
        moved = []
        for name, field in self.fields.items():
            bits = (whole >> field.lowest) & (2**field.bits - 1)
            if np.mean(bits == field.held) < _AGREEING:
                moved.append((name, bits, field.held))
        return moved if len(moved) < len(self.fields) else ()


def find_moved_bits(codes: CutCodes, base: Array, *, heads: bool) -> StructureFault | None:
    """Say that bits of one field of the codes are in another order, and the other bits are not;
    None where that is not so.

    Args:
        base: (rows, columns). heads: as of :func:`find_structure`.
    """
    for name, *sides in codes.list_moved(base):
        middle = (2 ** codes.fields[name].bits - 1) / 2
        laid = (bits.reshape(base.shape).astype(np.float32) - np.float32(middle) for bits in sides)
        fault = _find_order(*laid, heads=heads, rounding=_ONE_OFF)
        if fault is not None:
            return _name(fault, f"{name} of its codes alone")
    return None
