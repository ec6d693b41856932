"""FigureScale: a share of generated answers as the mean of one number per document, for a search.

A document loops or does not, is valid or is not: a drift is a number of documents that changed, and
told as their share. The base may have none of them, so that nothing of it scatters, and what a
search tolerates is the yardstick. That is what the gate tolerates, and at least

    min(k - 1/2, half of the drift) / n     k: the fewest of n documents that could name a culprit

with at least half a document: what is below can be no culprit's, or is a smaller one's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from evalguard.core.limit_scale import Floats
from evalguard.core.scores import ScoreTable
from evalguard.errors import UsageError
from evalguard.stats.binary import mcnemar_mid_p

_HALF = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureScale:
    """Which documents have answers of a kind, beside the base's; higher scores are better.

    Attributes:
        key: (task, filter, figure).
        sign: from a table's values to scores.
        doc_ids: of the n documents that it is known of on both sides.
        tolerated: the share that the gate lets drift.
        yardstick: the share that a search tolerates.
    """

    key: tuple[str, str, str]
    sign: float
    doc_ids: tuple[int, ...]
    tolerated: float
    yardstick: float

    @classmethod
    def of(
        cls, base: ScoreTable, candidate: ScoreTable, *, tolerated: float, level: float
    ) -> FigureScale:
        """The scale of a figure.

        Args:
            base, candidate: both sides' tables of it.
            tolerated: share of the documents that the gate lets drift.
            level: one-sided, at which a culprit is named.

        Raises:
            UsageError: it is known of no document of both sides.
        """
        ours, theirs = values_by_document(base), values_by_document(candidate)
        doc_ids = tuple(sorted(ours.keys() & theirs.keys()))
        if not doc_ids:
            raise UsageError(f"{base.task} {base.metric} is known of no document of both sides")
        sign = 1.0 if base.higher_is_better else -1.0
        worse = sign * (sum(ours[doc] for doc in doc_ids) - sum(theirs[doc] for doc in doc_ids))
        least = max(min(fewest_to_blame(level) - _HALF, _HALF * worse), _HALF)
        return cls(
            key=base.key,
            sign=sign,
            doc_ids=doc_ids,
            tolerated=tolerated,
            yardstick=max(tolerated, least / len(doc_ids)),
        )

    @property
    def unit(self) -> str:
        """In what a drift is told."""
        return "of the answers"

    @property
    def log_unit(self) -> float:
        """0: it is not an exponential."""
        return 0.0

    def values(self, table: ScoreTable) -> Floats:
        """What a table has for the n documents, shape (n,); NaN of one that is not known."""
        found = values_by_document(table)
        return np.array([found.get(doc, np.nan) for doc in self.doc_ids], dtype=np.float64)

    def scores(self, values: Floats) -> Floats:
        """Scores of documents by their values in a table, shape (k,); higher is better."""
        return self.sign * values

    def sigma(self, drift: float) -> float:
        """A drift in yardsticks as a share of the answers."""
        return drift * self.yardstick

    def margin(self, amount: float) -> float:
        """A share of the answers as a drift in yardsticks."""
        return amount / self.yardstick


def fewest_to_blame(level: float) -> int:
    """Documents, all of them for the worse, of which McNemar's mid-p passes a level."""
    fewest = 1
    while mcnemar_mid_p(fewest, 0) > level:
        fewest += 1
    return fewest


def values_by_document(table: ScoreTable) -> Mapping[int, float]:
    """A table's values by doc_id, of the documents that it has one of."""
    pairs: Sequence[tuple[int, float]] = [
        *zip(table.doc_ids.tolist(), table.values.tolist(), strict=True)
    ]
    return {doc_id: value for doc_id, value in pairs if np.isfinite(value)}
