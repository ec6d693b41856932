"""LimitScale: a limit on distributions as the mean of one number per document, for a search.

A limit is about a mean over scored positions, so about the ratio of two sums over documents. The
base is at 0 by definition: it does not diverge from itself. Nothing there scatters, so the limit
itself is the yardstick, and drift is told in the figure's own unit, never in sigma:

    kl_mean      x = -sum of KL over the document's positions      nats
    same_top1    x = -number of positions with another top token   share of tokens
    same_topk    x = -sum of the shares of top tokens lost         share of tokens
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evalguard.core.divergence import Divergence, DocumentDivergence
from evalguard.core.limits import Limit
from evalguard.errors import UsageError

Floats = NDArray[np.float64]

SEARCHED = ("kl_mean", "same_top1", "same_topk")


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitScale:
    """How far documents diverge from the base, on the scale of one limit.

    Attributes:
        task: whose documents these are.
        limit: what the gate allows.
        doc_ids: of the n documents with a scored position, ascending.
        positions: of all of them together.
    """

    task: str
    limit: Limit
    doc_ids: tuple[int, ...]
    positions: int

    @classmethod
    def of(cls, limit: Limit, task: str, documents: Sequence[DocumentDivergence]) -> LimitScale:
        """The scale of a limit on one task.

        Args:
            documents: of the candidate that was compared.

        Raises:
            UsageError: the limit is not a mean over positions, or allows nothing at all.
        """
        name = f"{task} {limit.metric}"
        if limit.metric not in SEARCHED:
            raise UsageError(
                f"{name} is not a mean over scored tokens: no document has a part of it, so that "
                "settings cannot be told apart by it",
                hint=f"limits that are searched: {', '.join(SEARCHED)}",
            )
        counts = {one.doc_id: sum(asked.positions for asked in one.requests) for one in documents}
        scale = cls(
            task=task,
            limit=limit,
            doc_ids=tuple(sorted(doc_id for doc_id, count in counts.items() if count)),
            positions=sum(counts.values()),
        )
        if not (scale.doc_ids and scale.yardstick > 0.0):
            raise UsageError(f"{name}: no divergence is allowed that a search could be held to")
        return scale

    @property
    def key(self) -> tuple[str, str, str]:
        """(task, "", name of the limit)."""
        return self.task, "", self.limit.metric

    @property
    def unit(self) -> str:
        """In what a divergence is told."""
        return "nats" if self.limit.metric == "kl_mean" else "of the tokens"

    @property
    def yardstick(self) -> float:
        """What the limit allows; of a share that must not fall below it, what may be lost."""
        value = self.limit.value
        return value if self.limit.kind == "upper" else 1.0 - value

    @property
    def log_unit(self) -> float:
        """0: none of them is an exponential."""
        return 0.0

    def value(self, divergences: Sequence[Divergence]) -> float:
        """Sum over the positions of one document's requests; NaN where one has no distribution."""
        return float(sum(float(np.sum(self._lost(one))) for one in divergences))

    def scores(self, values: Floats) -> Floats:
        """Scores of documents by ``value``, shape (k,); higher is better, their mean is -figure."""
        return values * (-len(self.doc_ids) / self.positions)

    def sigma(self, drift: float) -> float:
        """A drift in yardsticks as a divergence in ``unit``."""
        return drift * self.yardstick

    def margin(self, amount: float) -> float:
        """A divergence in ``unit`` as a drift in yardsticks."""
        return amount / self.yardstick

    def figure(self, documents: Sequence[DocumentDivergence]) -> float:
        """The divergence of a model in ``unit``; NaN where it was not measured."""
        counted = [one for one in documents if any(asked.positions for asked in one.requests)]
        if {one.doc_id for one in counted} != set(self.doc_ids):
            return math.nan
        return float(sum(self.value(one.requests) for one in counted)) / self.positions

    def _lost(self, one: Divergence) -> Floats:
        if self.limit.metric == "kl_mean":
            return one.kl
        nowhere = (one.base_top < 0) | (one.candidate_top < 0)
        lost = (
            (one.base_top != one.candidate_top).astype(np.float64)
            if self.limit.metric == "same_top1"
            else 1.0 - one.shared_top / one.top_k
        )
        return np.where(nowhere, math.nan, lost)
