"""AnswerScale: a limit on equal answers as the mean of one number per document, for a search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evalguard.core.limit_scale import Floats
from evalguard.core.limits import Limit
from evalguard.core.scores import ScoreTable
from evalguard.errors import UsageError


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
