"""Scores that no conversion of a model makes: unrelated to the base's, or far better than these.

Neither is a regression, and neither has to be a fault; but answers that went to other documents
leave every mean as it was, and log-likelihoods in another unit look like a better model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from evalguard.core.comparison import Comparison
from evalguard.core.findings import Finding
from evalguard.core.scores import ScoreTable

_LIKELIHOODS = frozenset({"perplexity", "weighted_perplexity", "bits_per_byte"})
# Two models' log-likelihoods of the same documents have rank correlations of 0.6 and more, quite
# different models included: some documents are harder than others. Of unrelated ones it is 0.
_LOWEST = 0.4
_ERRORS = 4.0  # standard errors, 1 / sqrt(n - 1) of unrelated scores, that it must be below that


def find_unexpected_scores(
    base: Sequence[ScoreTable], candidate: Sequence[ScoreTable], comparisons: Sequence[Comparison]
) -> tuple[Finding, ...]:
    """What to say of a run's scores, whatever its verdict."""
    candidates = {table.key: table for table in candidate}
    related = [
        finding
        for table in base
        if (candidate_table := candidates.get(table.key))
        and (finding := _unrelated(table, candidate_table))
    ]
    return (*related[:1], *_far_better(comparisons))


def rank_correlation(base: ScoreTable, candidate: ScoreTable) -> float | None:
    """Spearman's, of the documents' scores; None where documents differ or a score is not finite.

    Scores of whole texts are taken per word or byte: longer texts have lower sums in any model.
    """
    if not np.array_equal(base.doc_ids, candidate.doc_ids):
        return None
    values = [_rates(base), _rates(candidate)]
    finite = np.isfinite(values[0]) & np.isfinite(values[1])
    ours, theirs = (of[finite] for of in values)
    if ours.size < 3 or np.ptp(ours) == 0.0 or np.ptp(theirs) == 0.0:
        return None
    return float(np.corrcoef(_ranks(ours), _ranks(theirs))[0, 1])


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ranks from 1 on, ties in the middle of theirs."""
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    middles = np.cumsum(counts) - (counts - 1) / 2.0
    return np.asarray(middles[which], dtype=np.float64)


def _rates(table: ScoreTable) -> NDArray[np.float64]:
    if table.weights is None:
        return table.values
    weights = np.where(table.weights > 0.0, table.weights, np.nan)
    return np.asarray(table.values / weights)


def _unrelated(base: ScoreTable, candidate: ScoreTable) -> Finding | None:
    if base.aggregation not in _LIKELIHOODS or base.n < 3:
        return None
    correlation = rank_correlation(base, candidate)
    if correlation is None or correlation + _ERRORS / math.sqrt(base.n - 1) >= _LOWEST:
        return None
    return Finding(
        kind="scores_unrelated",
        text="the two sides' scores of the same documents have nothing in common"
        f" (rank correlation {correlation:.2f}): answers of other documents, or another model",
        task=base.task,
        filter=base.filter,
        metric=base.metric,
        values={"rank_correlation": correlation, "documents": base.n},
    )


def _far_better(comparisons: Sequence[Comparison]) -> Iterator[Finding]:
    """The metric whose whole interval lies beyond its margin on the better side, the best first."""
    better = [
        (c.sigma, c)
        for c in comparisons
        if c.outcome == "improved" and c.sigma is not None and c.sigma_interval is not None
        and c.sigma_interval[1] < -(1.0 if c.margin is None else c.margin)
        and math.isfinite(c.sigma)
    ]  # fmt: skip
    if better:
        sigma, best = min(better, key=lambda entry: entry[0])
        suffix = f", {len(better) - 1} more so" if len(better) > 1 else ""
        yield Finding(
            kind="far_better",
            text=f"{-sigma:.3g} sigma better than the base's{suffix}: a "
            "conversion seldom improves a model; look whether both are scored alike",
            task=best.task,
            filter=best.filter,
            metric=best.metric,
            values={"sigma": sigma, "metrics": len(better)},
        )
