"""Scales: answers, figures and limits as means of one number per document, for a search.

A document loops or does not, is valid or is not: a drift is a number of documents that changed, and
told as their share. The base may have none of them, so that nothing of it scatters, and what a
search tolerates is the yardstick. That is what the gate tolerates, and at least

    min(k - 1/2, half of the drift) / n     k: the fewest of n documents that could name a culprit

with at least half a document: what is below can be no culprit's, or is a smaller one's.

A limit is about a mean over scored positions, so about the ratio of two sums over documents. The
base is at 0 by definition: it does not diverge from itself. Nothing there scatters, so the limit
itself is the yardstick, and drift is told in the figure's own unit, never in sigma:

    kl_mean      x = -sum of KL over the document's positions      nats
    same_top1    x = -number of positions with another top token   share of tokens
    same_topk    x = -sum of the shares of top tokens lost         share of tokens
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from evalguard.core.divergence import Divergence, DocumentDivergence
from evalguard.core.document_scale import Floats
from evalguard.core.limits import Limit
from evalguard.core.scores import ScoreTable
from evalguard.errors import UsageError
from evalguard.stats.binary import mcnemar_mid_p

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
        counts = {
            document.doc_id: sum(asked.positions for asked in document.requests)
            for document in documents
        }
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
        return float(sum(float(np.sum(self._lost(divergence))) for divergence in divergences))

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
        counted = [
            document
            for document in documents
            if any(asked.positions for asked in document.requests)
        ]
        if {document.doc_id for document in counted} != set(self.doc_ids):
            return math.nan
        return float(sum(self.value(document.requests) for document in counted)) / self.positions

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


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerScale:
    """Which documents have another answer than the base's; as ``LimitScale``, base at 0.

    Attributes:
        task, filter, of: the metric by which an answer is taken.
        limit: what the gate allows: the smallest share of equal answers.
        doc_ids: of the base's n documents.
        answers: the base's.
    """

    task: str
    filter: str
    of: str
    limit: Limit
    doc_ids: tuple[int, ...]
    answers: tuple[str, ...]

    @classmethod
    def of_table(cls, limit: Limit, table: ScoreTable) -> AnswerScale:
        """The scale of a limit; ``table``: the base's.

        Raises:
            UsageError: the run shows no answers, or the limit allows no other one.
        """
        name = f"{table.task} {table.metric} {limit.metric}"
        if not table.answers:
            raise UsageError(f"{name}: the base shows no answers of single documents")
        if limit.value >= 1.0:
            raise UsageError(f"{name}: no other answer is allowed that a search could be held to")
        return cls(
            task=table.task,
            filter=table.filter,
            of=table.metric,
            limit=limit,
            doc_ids=tuple(int(doc_id) for doc_id in table.doc_ids),
            answers=tuple(table.answers),
        )

    @property
    def key(self) -> tuple[str, str, str]:
        """(task, filter, metric and name of the limit)."""
        return self.task, self.filter, f"{self.of} {self.limit.metric}"

    @property
    def metric_key(self) -> tuple[str, str, str]:
        """(task, filter, metric) whose table has the answers."""
        return self.task, self.filter, self.of

    @property
    def unit(self) -> str:
        """In what a drift is told."""
        return "of the answers"

    @property
    def yardstick(self) -> float:
        """The share of answers that may be others."""
        return 1.0 - self.limit.value

    @property
    def log_unit(self) -> float:
        """0: it is not an exponential."""
        return 0.0

    def values(self, table: ScoreTable, rows: Sequence[int]) -> Floats:
        """1 for every other answer, 0 for the same, NaN for none, shape (k,).

        Args:
            table: of the metric, with all of these documents or some.
            rows: documents, as places in ``doc_ids``.
        """
        answers = dict(zip(table.doc_ids.tolist(), table.answers, strict=False))
        asked = ((self.answers[row], answers.get(self.doc_ids[row])) for row in rows)
        changed = [
            np.nan if answer is None else float(base_answer != answer)
            for base_answer, answer in asked
        ]
        return np.array(changed, dtype=np.float64)

    def scores(self, values: Floats) -> Floats:
        """Scores of documents by ``values``, shape (k,); higher is better."""
        return -values

    def sigma(self, drift: float) -> float:
        """A drift in yardsticks as a share of the answers."""
        return drift * self.yardstick

    def margin(self, amount: float) -> float:
        """A share of the answers as a drift in yardsticks."""
        return amount / self.yardstick

    def figure(self, table: ScoreTable) -> float:
        """The share of the answers that are others; ``table``: a candidate's."""
        return float(np.mean(self.values(table, range(len(self.doc_ids)))))


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
        by_document = values_by_document(table)
        return np.array([by_document.get(doc, np.nan) for doc in self.doc_ids], dtype=np.float64)

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
