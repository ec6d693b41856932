"""Positions: every scored token of one task, and the documents (or clusters) they belong to.

Positions of one document are not independent. All standard errors are those of a ratio of sums
over documents, or over clusters of them: sums per document, with its positions as weight.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from evalguard.core.distribution_comparison import (
    Figure,
    Percentile,
    TokenPosition,
)
from evalguard.core.divergence import Divergence, DocumentDivergence
from evalguard.stats.effective_sample import Share, rank_limits
from evalguard.stats.estimate import Estimate, t_estimate
from evalguard.stats.moments import Array, exact_sum, ratio_moments
from evalguard.stats.skewed.corrected_t import corrected_t


@dataclass(frozen=True, kw_only=True)
class Positions:
    """T positions in ascending doc_id, then in reading order.

    Attributes:
        divergences: of all requests with a scored token, with the (doc_id, request) of each beside
            them in ``requests``.
        units: number of the document or cluster that each position belongs to, shape (T,).
        confidence: of all intervals.
    """

    divergences: tuple[Divergence, ...]
    requests: tuple[tuple[int, int], ...]
    units: NDArray[np.int64]
    confidence: float

    @classmethod
    def of(
        cls,
        documents: Sequence[DocumentDivergence],
        *,
        confidence: float,
        clusters: Mapping[int, str] | None = None,
    ) -> Positions:
        """Collect the positions of documents; with ``clusters``, doc_id -> label, those count."""
        found = [
            (document.doc_id, number, divergence)
            for document in sorted(documents, key=lambda document: document.doc_id)
            for number, divergence in enumerate(document.requests)
            if divergence.positions
        ]
        labels = [doc_id if clusters is None else clusters[doc_id] for doc_id, _, _ in found]
        numbers = {label: number for number, label in enumerate(dict.fromkeys(labels))}
        lengths = [divergence.positions for _, _, divergence in found]
        units = np.repeat(np.array([numbers[label] for label in labels], dtype=np.int64), lengths)
        return cls(
            divergences=tuple(divergence for _, _, divergence in found),
            requests=tuple((doc_id, number) for doc_id, number, _ in found),
            units=units,
            confidence=confidence,
        )

    @property
    def documents(self) -> int:
        """Documents with a scored token."""
        return len({doc_id for doc_id, _ in self.requests})

    def __len__(self) -> int:
        return int(self.units.shape[0])

    def column(self, name: str) -> Array:
        """A field of all divergences, float64, shape (T,)."""
        return np.concatenate([getattr(d, name) for d in self.divergences]).astype(np.float64)

    @cached_property
    def weights(self) -> Array:
        """Positions of each unit, shape (G,)."""
        return np.bincount(self.units).astype(np.float64)

    def sums(self, values: Array) -> Array:
        """Sum of ``values``, shape (T,), over each unit, shape (G,)."""
        return np.bincount(self.units, weights=values).astype(np.float64)

    def mean(self, values: Array) -> Figure:
        """Mean over all positions; a t interval over the units.

        Widened where few units carry it all (see :mod:`evalguard.stats.few_units`). Infinite
        where a value is; nothing where values are infinite on both sides.
        """
        sums = self.sums(values)
        if not np.isfinite(sums).all():
            total = float(values[~np.isfinite(values)].sum())
            return Figure(value=None if math.isnan(total) else total)
        if len(self.weights) < 2:
            return Figure(value=exact_sum(sums) / exact_sum(self.weights))
        estimate = ratio_estimate(sums, self.weights, confidence=self.confidence)
        return Figure(
            value=estimate.point, stderr=estimate.stderr, interval=(estimate.low, estimate.high)
        )

    def share(self, values: Array) -> Figure:
        """Mean of values from 0 to 1, with the interval of a share (:class:`Share`)."""
        share = Share(hits=self.sums(values), positions=self.weights)
        if len(self.weights) < 2:
            return Figure(value=share.value)
        return Figure(
            value=share.value,
            stderr=ratio_moments(share.hits, share.positions).stderr,
            interval=share.interval(confidence=self.confidence),
        )

    def percentiles(
        self, values: Array, percents: Sequence[float], *, reach: tuple[float, float]
    ) -> tuple[Percentile, ...]:
        """Percentiles of ``values``, shape (T,), with intervals from order statistics.

        Args:
            reach: the smallest and largest value there can be; an interval ends there where no
                order statistic bounds it.
        """
        ordered = np.sort(values)
        return tuple(
            Percentile(percent=percent, figure=self._percentile(values, ordered, percent, reach))
            for percent in percents
        )

    def _percentile(
        self, values: Array, ordered: Array, percent: float, reach: tuple[float, float]
    ) -> Figure:
        n, probability = len(self), percent / 100.0
        value = float(ordered[rank_of(percent, n) - 1])
        if percent in (0.0, 100.0) or len(self.weights) < 2:
            return Figure(value=value)
        below = Share(hits=self.sums((values <= value).astype(np.float64)), positions=self.weights)
        effective = below.effective(confidence=self.confidence)
        low, high = rank_limits(probability, n, effective, confidence=self.confidence)
        return Figure(
            value=value,
            interval=(
                float(ordered[low - 1]) if low > 0 else reach[0],
                float(ordered[high - 1]) if high <= n else reach[1],
            ),
        )

    def place(self, index: int) -> TokenPosition:
        """Where a position, counted over all of them, is."""
        ends = np.cumsum([divergence.positions for divergence in self.divergences])
        which = int(np.searchsorted(ends, index, side="right"))
        divergence, (doc_id, request) = self.divergences[which], self.requests[which]
        position = index - (int(ends[which]) - divergence.positions)
        token_id = int(divergence.token_ids[position])
        return TokenPosition(doc_id=doc_id, request=request, position=position, token_id=token_id)


def ratio_estimate(sums: Array, weights: Array, *, confidence: float) -> Estimate:
    """Ratio of sums over G units, both of shape (G,), G >= 2, with its (corrected) t interval."""
    found, df = ratio_moments(sums, weights), sums.shape[0] - 1
    plain = t_estimate(found.point, found.stderr, df=df, confidence=confidence, method="t-ratio")
    return corrected_t(plain, sums, weights, 1.0)


def rank_of(percent: float, n: int) -> int:
    """Rank, from 1 to n, of the smallest value that ``percent`` per cent do not exceed."""
    return min(n, max(1, math.ceil(percent / 100.0 * n - 1e-9)))
