"""Contributions: what each document adds to the drift of a metric."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evalguard.core.paired_scores import PairedScores
from evalguard.stats.drift import Drift
from evalguard.stats.moments import Array, exact_sum


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TaskContributions:
    """The documents of one task in a drift that is linear in them.

    Attributes:
        doc_ids: int64, shape (n,), ascending.
        values: float64, shape (n,): d_i / n for a mean, d_i / sum w for a ratio; their sum is what
            the task adds to the drift.
        shares: float64, shape (n,), summing to 1: 1 / n, or w_i / sum w.
        doc_hashes: n strings; clusters: n labels, or () where each document stands alone.
    """

    task: str
    doc_ids: np.ndarray[tuple[int], np.dtype[np.int64]]
    values: Array
    shares: Array
    doc_hashes: Sequence[str] = ()
    clusters: tuple[str, ...] = ()

    @property
    def total(self) -> float:
        """What the task adds to the drift."""
        return exact_sum(self.values)

    @property
    def residuals(self) -> Array:
        """The linearised residuals, values - total * shares, which sum to 0."""
        return self.values - self.total * self.shares


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Contributions:
    """A metric's drift as a sum over documents, on its estimation scale (see ``drift``).

    Attributes:
        parts: one for the metric of a task, several for that of a group of tasks.
        unit: standard error of the base on that scale, so that values / unit are in sigma (to
            first order on a log scale).
        log_sign: of that scale, see ``SigmaScale``.
    """

    task: str
    filter: str
    metric: str
    unit: float
    parts: tuple[TaskContributions, ...]
    log_sign: int = 0

    @property
    def key(self) -> tuple[str, str, str]:
        """(task, filter, metric)."""
        return (self.task, self.filter, self.metric)

    @property
    def total(self) -> float:
        """The drift."""
        return math.fsum(part.total for part in self.parts)


def contributions(paired: PairedScores, drift: Drift) -> Contributions | None:
    """Take a drift apart into its documents; None where no sum makes it (bootstrapped metrics)."""
    table = paired.base
    if table.rescoring is not None:
        return None
    weights = np.ones(table.n) if table.weights is None else table.weights
    total = exact_sum(weights)
    scale = 1.0 / math.log(2.0) if table.aggregation == "bits_per_byte" else 1.0
    part = TaskContributions(
        task=table.task,
        doc_ids=table.doc_ids,
        values=paired.d * (scale / total),
        shares=weights / total,
        doc_hashes=table.doc_hashes,
        clusters=paired.clusters,
    )
    return Contributions(
        task=table.task,
        filter=table.filter,
        metric=table.metric,
        unit=drift.unit,
        parts=(part,),
        log_sign=drift.log_sign,
    )
