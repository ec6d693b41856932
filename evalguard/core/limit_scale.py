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
from evalguard.core.scores import ScoreTable
from evalguard.errors import UsageError
from evalguard.stats.probability import SigmaScale, exact_sum, moments

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


# AnswerScale: a limit on equal answers as the mean of one number per document, for a search.


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
            doc_ids=tuple(int(one) for one in table.doc_ids),
            answers=table.answers,
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
        found = dict(zip(table.doc_ids.tolist(), table.answers, strict=False))
        asked = ((self.answers[row], found.get(self.doc_ids[row])) for row in rows)
        told = [np.nan if other is None else float(one != other) for one, other in asked]
        return np.array(told, dtype=np.float64)

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


# DocumentScale: a metric as the mean of one number per document, for a search over settings.
#
# Whatever the metric, the numbers are better when higher, and their mean over all documents is
# what the metric is a monotone function of; a drift of that mean in standard errors of the base
# maps to the comparison's sigma (``evalguard.stats.drift`` has the scales and their source):
#
# mean x = +-value sigma is the drift itself perplexity x = log-likelihood sigma = (exp(drift SE) -
# 1) / SE weighted_perplexity x = log-likelihood n / W likewise, W = sum of the words or bytes
# bits_per_byte x = log-likelihood n / W / ln 2


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentScale:
    """Scores of single documents, made from the base's table of one metric.

    Attributes:
        key: (task, filter, metric).
        factor: from a document's value in the table to its score, sign included.
        on_sigma: the metric's own scale, on which the drift of the mean is estimated.
    """

    key: tuple[str, str, str]
    factor: float
    on_sigma: SigmaScale

    @classmethod
    def of(cls, table: ScoreTable, *, population: int = 0) -> DocumentScale:
        """The scale of the base's scores.

        Args:
            table: the base's.
            population: documents that sigma is about where the table has a random part of them: a
                run that stopped early tells the sigma of all; 0: those of the table.

        Raises:
            UsageError: the metric is no sum over documents, or the base's scores give no standard
                error that a drift could be measured in.
        """
        name = f"{table.task} ({table.filter}) {table.metric}"
        if table.aggregation == "other" or table.rescoring is not None:
            raise UsageError(
                f"{name} is not a sum over documents: no document has a score of its own, so that "
                "settings cannot be told apart by it",
                hint="gate another metric of the task (a mean, a perplexity, bits per byte)",
            )
        to_bits = 1.0 / math.log(2.0) if table.aggregation == "bits_per_byte" else 1.0
        return cls(
            key=table.key,
            factor=_sign(table) * _per_document(table) * to_bits,
            on_sigma=SigmaScale(
                unit=_stderr(table, name) * to_bits * math.sqrt(table.n / (population or table.n)),
                log_sign=SigmaScale.log_sign_of(table),
            ),
        )

    @property
    def yardstick(self) -> float:
        """Standard error of the base's mean score, as the comparison's sigma has it; above 0."""
        return self.on_sigma.unit

    @property
    def log_unit(self) -> float:
        """The base's relative standard error where the metric is exp(-mean score), else 0."""
        return self.on_sigma.unit if self.on_sigma.log_sign == 1 else 0.0

    def scores(self, values: Floats) -> Floats:
        """Scores of documents by their values in a table, shape (n,); higher is better."""
        return values * self.factor

    def values(self, table: ScoreTable) -> Floats:
        """Scores of a table's documents, shape (n,), be they all of the base's or some.

        Raises:
            UsageError: the table is of another metric.
        """
        if table.key != self.key:
            raise UsageError(f"{table.key} was asked for scores of {self.key}")
        return self.scores(table.values)

    def sigma(self, drift: float) -> float:
        """The comparison's sigma of a drift of the mean score in yardsticks, positive is worse."""
        return self.on_sigma.sigma_of(drift * self.yardstick)

    def margin(self, sigma: float) -> float:
        """A margin in the comparison's sigma as a drift in yardsticks: what ``sigma`` undoes.

        It is infinite where no drift reaches the margin, which only an inverted perplexity has.
        """
        return self.on_sigma.drift_of(sigma) / self.yardstick


def _stderr(table: ScoreTable, name: str) -> float:
    """The base's standard error in the unit of its values."""
    finite = table.n >= 2 and bool(np.isfinite(table.values).all())
    found = moments(table.values, table.weights).stderr if finite else math.nan
    if not (math.isfinite(found) and found > 0.0):
        raise UsageError(
            f"{name}: the base's {table.n:,} documents give no standard error above 0 that a drift "
            "could be measured in",
            hint="settings can be told apart where the base's documents differ; try more of them",
        )
    return found


def _sign(table: ScoreTable) -> float:
    """+1 where a higher value in the table is better."""
    loglikelihoods = table.aggregation != "mean"
    return 1.0 if table.higher_is_better != loglikelihoods else -1.0


def _per_document(table: ScoreTable) -> float:
    """What makes the mean of the values the ratio of sums."""
    return 1.0 if table.weights is None else table.n / exact_sum(table.weights)
