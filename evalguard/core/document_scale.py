"""DocumentScale: a metric as the mean of one number per document, for a search over settings.

Whatever the metric, the numbers are better when higher, and their mean over all documents is
what the metric is a monotone function of; a drift of that mean in standard errors of the base
maps to the comparison's sigma (``evalguard.stats.drift`` has the scales and their source):

    mean                 x = +-value               sigma is the drift itself
    perplexity           x = log-likelihood        sigma = (exp(drift SE) - 1) / SE
    weighted_perplexity  x = log-likelihood n / W  likewise, W = sum of the words or bytes
    bits_per_byte        x = log-likelihood n / W / ln 2
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evalguard.core.moments import exact_sum, moments
from evalguard.core.scores import ScoreTable
from evalguard.core.verdict import SigmaScale
from evalguard.errors import UsageError

Floats = NDArray[np.float64]


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
    stderr = moments(table.values, table.weights).stderr if finite else math.nan
    if not (math.isfinite(stderr) and stderr > 0.0):
        raise UsageError(
            f"{name}: the base's {table.n:,} documents give no standard error above 0 that a drift "
            "could be measured in",
            hint="settings can be told apart where the base's documents differ; try more of them",
        )
    return stderr


def _sign(table: ScoreTable) -> float:
    """+1 where a higher value in the table is better."""
    loglikelihoods = table.aggregation != "mean"
    return 1.0 if table.higher_is_better != loglikelihoods else -1.0


def _per_document(table: ScoreTable) -> float:
    """What makes the mean of the values the ratio of sums."""
    return 1.0 if table.weights is None else table.n / exact_sum(table.weights)
