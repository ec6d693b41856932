"""Sums over pairs of tensors: all that is kept of a point, whatever its size."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, nan, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evalguard.core.trace_record import ActivationError, ConstantRelation

# Of the squared difference: what may be left where one number explains it.
_UNEXPLAINED = 2e-3
_WIDE = 16  # elements: in shorter vectors much of any error lies along the vector


@dataclass(slots=True)
class ErrorSums:
    """Sums over the elements of a base's and a candidate's tensor; they add up over sequences.

    ``coherent``: of the squared error that lies along the base's own vector, over all vectors of
    the last axis, which has ``width`` elements; ``width`` is 0 where it is too short to tell.
    """

    squared_difference: float = 0.0
    squared_base: float = 0.0
    squared_candidate: float = 0.0
    product: float = 0.0
    max_abs: float = 0.0
    sum_base: float = 0.0
    sum_candidate: float = 0.0
    elements: int = 0
    nonfinite: int = 0
    coherent: float = 0.0
    width: int = 0

    def add(self, base: NDArray[np.generic], candidate: NDArray[np.generic]) -> None:
        """Add a pair of tensors of the same shape.

        Elements that are the same infinity or nan on both sides agree (masks hold such); others
        that are not finite are counted in ``nonfinite`` and make the error nan.
        """
        if base.shape != candidate.shape:
            raise ValueError(f"shapes differ: {base.shape} and {candidate.shape}")
        b, c = _as_floats(base), _as_floats(candidate)
        with np.errstate(invalid="ignore", over="ignore"):
            difference = c - b
            total = float(np.dot(difference, difference))
        if not np.isfinite(total):
            b, c = b.astype(np.float64), c.astype(np.float64)
            bad = ~(np.isfinite(b) & np.isfinite(c))
            same = bad & ((b == c) | (np.isnan(b) & np.isnan(c)))
            self.nonfinite += int(np.count_nonzero(bad & ~same))
            b, c = np.where(bad, 0.0, b), np.where(bad, 0.0, c)
            difference = c - b
            total = float(np.dot(difference, difference))
        if base.ndim > 1 and base.shape[-1] >= _WIDE:
            self.width = base.shape[-1]
            self.coherent += _sum_coherent(b, difference, self.width)
        self.squared_difference += total
        self.squared_base += float(np.dot(b, b))
        self.squared_candidate += float(np.dot(c, c))
        self.product += float(np.dot(b, c))
        if difference.size:
            self.max_abs = max(self.max_abs, float(np.max(np.abs(difference))))
        self.sum_base += float(np.sum(b, dtype=np.float64))
        self.sum_candidate += float(np.sum(c, dtype=np.float64))
        self.elements += int(difference.size)

    @property
    def relative_l2(self) -> float:
        """L2 norm of the difference over the base's; see ActivationError."""
        if self.nonfinite:
            return nan
        if self.squared_base == 0.0:
            return inf if self.squared_difference else 0.0
        return sqrt(self.squared_difference / self.squared_base)

    @property
    def relative_coherent(self) -> float:
        """L2 norm of the coherent part of the difference over the base's norm."""
        return sqrt(self.coherent / self.squared_base) if self.squared_base else 0.0

    def relation(self) -> ConstantRelation | None:
        """Give the one number that the candidate is times the base, or plus; None: it is not."""
        if self.nonfinite or not self.squared_base or not self.squared_difference:
            return None
        if self.elements < _WIDE:
            return None
        factor = self.product / self.squared_base
        along = (factor - 1.0) ** 2 * self.squared_base
        cosine = self.error().cosine
        if abs(along / self.squared_difference - 1.0) < _UNEXPLAINED:
            return ConstantRelation(kind="factor", value=factor, cosine=cosine)
        offset = (self.sum_candidate - self.sum_base) / self.elements
        shifted = offset**2 * self.elements
        if abs(shifted / self.squared_difference - 1.0) < _UNEXPLAINED:
            return ConstantRelation(kind="offset", value=offset, cosine=cosine)
        return None

    def error(self) -> ActivationError:
        """Give what these sums say."""
        norms = sqrt(self.squared_base) * sqrt(self.squared_candidate)
        count = max(self.elements, 1)
        return ActivationError(
            relative_l2=self.relative_l2,
            cosine=nan if self.nonfinite or norms == 0.0 else self.product / norms,
            max_abs=nan if self.nonfinite else self.max_abs,
            sum_base=self.sum_base,
            sum_candidate=self.sum_candidate,
            mean_base=self.sum_base / count,
            mean_candidate=self.sum_candidate / count,
            elements=self.elements,
        )


def _sum_coherent(base: NDArray[np.float64], difference: NDArray[np.float64], width: int) -> float:
    """Sum (b.d)^2 / (b.b) over vectors b of the base and d of the difference."""
    vectors, errors = base.reshape(-1, width), difference.reshape(-1, width)
    along = np.einsum("ij,ij->i", vectors, errors).astype(np.float64)
    norms = np.einsum("ij,ij->i", vectors, vectors).astype(np.float64)
    return float(np.sum(np.divide(along**2, norms, out=np.zeros_like(norms), where=norms > 0.0)))


def _as_floats(values: NDArray[np.generic]) -> NDArray[np.float64]:
    """Flatten; float32 where that holds every value exactly, else float64."""
    exact = values.dtype in (np.float16, np.float32)
    wide: Any = np.float32 if exact else np.float64
    return np.ascontiguousarray(values, dtype=wide).reshape(-1)
