"""PairedScores: two aligned score tables."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evalguard.core.scores import ScoreTable


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedScores:
    """Two aligned score tables: the same documents, in the same ascending order of doc_id.

    Attributes:
        allow: differences that the user declared ("prompt", "tokens").
        caveats: what differs as declared, and what could not be checked.
    """

    base: ScoreTable
    candidate: ScoreTable
    allow: frozenset[str] = frozenset()
    caveats: tuple[str, ...] = ()

    @property
    def clusters(self) -> tuple[str, ...]:
        """Labels of the documents that belong together, n of them; () where each stands alone."""
        return self.base.clusters

    @property
    def d(self) -> NDArray[np.float64]:
        """Per-document differences, float64, shape (n,), positive where the candidate is worse.

        In the unit of the values: nats for log-likelihoods, else the metric's unit. A
        log-likelihood that falls makes a perplexity rise, hence the two cases.
        """
        loglikelihoods = self.base.aggregation != "mean"
        higher_values_are_better = self.base.higher_is_better != loglikelihoods
        if higher_values_are_better:
            return self.base.values - self.candidate.values
        return self.candidate.values - self.base.values
