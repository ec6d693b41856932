"""Differences of two tensors, summed block by block, in the terms of torch.testing.assert_close.

The base is what assert_close calls expected, the candidate actual: an element is mismatched where
``|candidate - base| > atol + rtol * |base|``, or where one of them is NaN.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evalguard.core.error_bounds import SEARCHED

Array = NDArray[Any]
BLOCK = 32  # elements, as most formats have them: in such runs damage is counted
_EXCUSED = ("cut", "searched", "excused_noise", "excused_squares")
_COUNTS = ("unequal", "mismatched", "sign_flips", "zero_on_one_side")


def common_dtype(base: np.dtype[Any], candidate: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype in which two tensors are compared: float32 unless one of them needs more."""
    kinds = {base.kind, candidate.kind}
    if kinds <= set("biu"):
        large = any(dtype.kind == "u" and dtype.itemsize == 8 for dtype in (base, candidate))
        return np.dtype(np.float64 if large else np.int64)
    wide = any(
        (dtype.kind == "f" and dtype.itemsize > 4) or (dtype.kind in "iu" and dtype.itemsize > 2)
        for dtype in (base, candidate)
    )
    return np.dtype(np.float64 if wide else np.float32)


@dataclass(slots=True)
class Extreme:
    """The greatest value so far and its flat index; -1 before there is one."""

    value: float = 0.0
    index: int = -1

    def take(self, other: Extreme) -> None:
        """Take the greater of two, the earlier of equal ones."""
        if other.index >= 0 and (self.index < 0 or other.value > self.value):
            self.value, self.index = other.value, other.index


@dataclass(slots=True, kw_only=True)
class SideSums:
    """What is counted of one side alone. ``squares`` and ``total`` are of its finite elements."""

    zeros: int = 0
    nans: int = 0
    infs: int = 0
    total: float = 0.0
    squares: float = 0.0

    def merge(self, other: SideSums) -> None:
        """Add the counts of further elements."""
        self.zeros += other.zeros
        self.nans += other.nans
        self.infs += other.infs
        self.total += other.total
        self.squares += other.squares

    def add(self, block: Array) -> Array:
        """Count a block; return where it is zero."""
        zeros: Array = block == 0
        self.zeros += int(np.count_nonzero(zeros))
        if block.dtype.kind != "f":
            wide = block.astype(np.float64)
            self.total += float(wide.sum())
            self.squares += float(wide @ wide)
            return zeros
        with np.errstate(over="ignore", invalid="ignore"):
            squares = float(block @ block)
        if math.isfinite(squares):
            self.total += float(block.sum())
            self.squares += squares
            return zeros
        self.nans += int(np.isnan(block).sum())
        self.infs += int(np.isinf(block).sum())
        finite = block[np.isfinite(block)].astype(np.float64)
        self.total += float(finite.sum())
        self.squares += float(finite @ finite)
        return zeros

    @property
    def broken(self) -> int:
        """NaN and infinite elements so far."""
        return self.nans + self.infs


@dataclass(slots=True, kw_only=True)
class PairSums:
    """What two tensors of one shape differ by, so far.

    ``noise`` is the sum of (candidate - base)², ``dot`` that of candidate * base, both over
    elements that are finite on both sides. ``beyond`` are elements that no healthy quantiser to the
    stored format leaves so, ``beyond_blocks`` the runs of 32 that hold them; ``cut`` elements that
    an importance matrix let be cut off and ``searched`` those of blocks whose scale it moved, with
    ``excused_noise`` and ``excused_squares`` of both; ``chunks`` the sizes
    (difference², base²) of parts that are not bit-identical. ``mismatched_abs`` and
    ``mismatched_rel`` are the greatest differences of mismatched elements, as assert_close reports
    them; ``greatest_abs`` and ``greatest_rel`` those of all.
    """

    rtol: float
    atol: float
    elements: int = 0
    base: SideSums = field(default_factory=SideSums)
    candidate: SideSums = field(default_factory=SideSums)
    unequal: int = 0
    mismatched: int = 0
    sign_flips: int = 0
    zero_on_one_side: int = 0
    noise: float = 0.0
    dot: float = 0.0
    beyond: int = 0
    beyond_blocks: int = 0
    cut: int = 0
    searched: int = 0
    excused_noise: float = 0.0
    excused_squares: float = 0.0
    chunks: list[tuple[float, float]] = field(default_factory=list, compare=False)
    greatest_abs: Extreme = field(default_factory=Extreme)
    greatest_rel: Extreme = field(default_factory=Extreme)
    mismatched_abs: Extreme = field(default_factory=Extreme)
    mismatched_rel: Extreme = field(default_factory=Extreme)

    def merge(self, other: PairSums) -> None:
        """Add what was summed of elements that come later."""
        self.base.merge(other.base)
        self.candidate.merge(other.candidate)
        for name in (*_COUNTS, *_EXCUSED, "elements", "beyond", "beyond_blocks"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.noise += other.noise
        self.dot += other.dot
        self.chunks += other.chunks
        for name in ("greatest_abs", "greatest_rel", "mismatched_abs", "mismatched_rel"):
            getattr(self, name).take(getattr(other, name))

    def judge(self, base: Array, candidate: Array, allowed: Array) -> None:
        """Count elements of a block that are farther off than their format explains.

        Args:
            base, candidate: flat, as for :meth:`add`.
            allowed: the greatest healthy error of each of them.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            difference = np.abs(candidate - base)
            wrong = difference > allowed
        excused = np.flatnonzero(allowed >= SEARCHED)
        if excused.size:
            cut = int(np.count_nonzero(np.isinf(allowed[excused])))
            self.cut += cut
            self.searched += excused.size - cut
            self.excused_noise += float(np.sum(difference[excused].astype(np.float64) ** 2))
            self.excused_squares += float(np.sum(base[excused].astype(np.float64) ** 2))
        count = int(np.count_nonzero(wrong))
        if count:
            self.beyond += count
            self.beyond_blocks += len(np.unique(np.flatnonzero(wrong) // BLOCK))

    def add_identical(self, block: Array) -> None:
        """Count elements whose bits are the same on both sides."""
        own = SideSums()
        own.add(block)
        self.base.merge(own)
        self.candidate.merge(own)
        self.elements += block.size
        self.dot += own.squares
        self.unequal += own.nans
        self.mismatched += own.nans

    def add(self, base: Array, candidate: Array, offset: int) -> None:
        """Count a block of both sides.

        Args:
            base, candidate: flat, of one size and of one dtype: float32, float64 or int64.
            offset: index of their first element in the whole tensor, flattened.
        """
        if base.size == 0:
            return
        broken = self.base.broken + self.candidate.broken
        noise, squares = self.noise, self.base.squares
        zeros = self.base.add(base), self.candidate.add(candidate)
        self.elements += base.size
        if self.base.broken + self.candidate.broken == broken:
            self._add_finite(base, candidate, offset, zeros)
        else:
            self._add_not_finite(base, candidate, offset)
        self.chunks.append((self.noise - noise, self.base.squares - squares))

    def _add_finite(
        self, base: Array, candidate: Array, offset: int, zeros: tuple[Array, Array]
    ) -> None:
        # a difference of two finite numbers may be infinite
        with np.errstate(over="ignore"):
            difference = candidate - base
        if difference.dtype.kind == "f":
            self._add_noise(difference)
            self.dot += _dot(base, candidate)
        else:
            wide = difference.astype(np.float64)
            self.noise += float(wide @ wide)
            self.dot += float(base.astype(np.float64) @ candidate.astype(np.float64))
        self._count_signs((base < 0) != (candidate < 0), zeros)
        size = np.abs(difference, out=difference)
        self._add_extremes(size, np.abs(base), offset, zeros=bool(zeros[0].any()))

    def _count_signs(self, flips: Array, zeros: tuple[Array, Array]) -> None:
        """Count opposite signs; ``flips`` is where one is below zero and the other is not."""
        self.sign_flips += int(np.count_nonzero(flips))
        if zeros[0].any() or zeros[1].any():
            one_sided = zeros[0] != zeros[1]
            self.zero_on_one_side += int(np.count_nonzero(one_sided))
            self.sign_flips -= int(np.count_nonzero(flips & one_sided))

    def _add_noise(self, difference: Array) -> None:
        with np.errstate(over="ignore", invalid="ignore"):
            squares = float(difference @ difference)
        if not math.isfinite(squares):
            wide = difference[np.isfinite(difference)].astype(np.float64)
            squares = float(wide @ wide)
        self.noise += squares

    def _add_extremes(self, size: Array, scale: Array, offset: int, *, zeros: bool) -> None:
        """Take the greatest differences; ``size`` is |difference|, ``scale`` |base| (used up)."""
        largest = int(size.argmax())
        if size[largest] == 0:
            return
        self.unequal += int(np.count_nonzero(size != 0))
        if size.dtype.kind != "f":
            size, scale = size.astype(np.float64), scale.astype(np.float64)
        self.greatest_abs.take(Extreme(float(size[largest]), offset + largest))
        allowed = scale * size.dtype.type(self.rtol)
        allowed += size.dtype.type(self.atol)
        wrong = size > allowed
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            relative = np.divide(size, scale, out=scale)
        if zeros:  # 0 / 0 is no difference
            relative[np.isnan(relative)] = 0
        widest = int(relative.argmax())
        self.greatest_rel.take(Extreme(float(relative[widest]), offset + widest))
        count = int(np.count_nonzero(wrong))
        if count:
            self.mismatched += count
            # the greatest of all is mostly mismatched itself
            for values, at, extreme in (
                (size, largest, self.mismatched_abs),
                (relative, widest, self.mismatched_rel),
            ):
                if not wrong[at]:
                    at = int(np.where(wrong, values, 0).argmax())
                extreme.take(Extreme(float(values[at]), offset + at))

    def _add_not_finite(self, base: Array, candidate: Array, offset: int) -> None:
        """The same for a block with NaN or inf: rare, so it may be slow.

        Infinities of one sign are equal. NaN is mismatched, and has no difference.
        """
        nan = np.isnan(base) | np.isnan(candidate)
        finite = np.isfinite(base) & np.isfinite(candidate)
        own = PairSums(rtol=self.rtol, atol=self.atol)
        own.add(np.where(finite, base, 0), np.where(finite, candidate, 0), offset)
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(own, name))
        self.noise += own.noise
        self.dot += own.dot
        for name in ("greatest_abs", "greatest_rel", "mismatched_abs", "mismatched_rel"):
            getattr(self, name).take(getattr(own, name))
        wrong = ~finite & (nan | (base != candidate))
        count = int(np.count_nonzero(wrong))
        self.unequal += count
        self.mismatched += count
        endless = wrong & ~nan
        if endless.any():
            at = Extreme(math.inf, offset + int(endless.argmax()))
            for extreme in (self.greatest_abs, self.mismatched_abs):
                extreme.take(at)
            if np.isfinite(base[endless]).any():  # inf over inf is no number
                here = endless & np.isfinite(base)
                at = Extreme(math.inf, offset + int(here.argmax()))
                for extreme in (self.greatest_rel, self.mismatched_rel):
                    extreme.take(at)

    @property
    def relative_l2(self) -> float:
        """Norm of the difference over the norm of the base; inf where only the base is zero."""
        return divide(math.sqrt(self.noise), math.sqrt(self.base.squares))

    @property
    def snr(self) -> float | None:
        """Signal to noise in dB, 10 log10(sum base² / sum difference²); None without noise.

        Without elements that an importance matrix explains.
        """
        noise = self.noise - self.excused_noise
        squares = self.base.squares - self.excused_squares
        if noise <= 1e-12 * self.noise:
            return None
        if squares <= 0.0:
            return -math.inf
        return 10.0 * math.log10(squares / noise)

    @property
    def cosine(self) -> float | None:
        """Cosine of the two tensors; None where one of them is zero."""
        norms = math.sqrt(self.base.squares) * math.sqrt(self.candidate.squares)
        return self.dot / norms if norms else None


def divide(part: float, whole: float) -> float:
    """Return part / whole, where 0 / 0 is 0 and anything else over 0 is infinite."""
    if whole == 0.0:
        return 0.0 if part == 0.0 else math.inf
    return part / whole


def _dot(one: Array, other: Array) -> float:
    with np.errstate(over="ignore", invalid="ignore"):
        product = float(one @ other)
    if math.isfinite(product):
        return product
    return float(one.astype(np.float64) @ other.astype(np.float64))
