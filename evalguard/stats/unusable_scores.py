"""Scores that give no number: which, and why."""

from __future__ import annotations

import numpy as np

from evalguard.core.paired_scores import PairedScores
from evalguard.core.scores import ScoreTable
from evalguard.stats.clusters import cluster_count

# Beyond this the square of a score overflows; no log-likelihood or metric comes near it.
_LARGEST_SCORE = 1e150


def unusable(paired: PairedScores) -> str:
    """Why these scores give no number, or "".

    Fewer than two documents or clusters, NaN or infinite scores, weights that are no counts.
    """
    if paired.base.n < 2:
        return f"a standard error needs at least 2 documents, and there {_count(paired.base.n)}"
    if cluster_count(paired) == 1:
        return (
            f"all {paired.base.n:,} documents share one {paired.base.cluster_field or 'cluster'}: "
            "a standard error needs at least 2 clusters"
        )
    problems = [_unusable_scores(table) for table in (paired.base, paired.candidate)]
    problems.append(_unusable_weights(paired.base))
    return "; ".join(problem for problem in problems if problem)


def _count(documents: int) -> str:
    return "is 1" if documents == 1 else f"are {documents}"


def _unusable_scores(table: ScoreTable) -> str:
    usable = np.abs(table.values) <= _LARGEST_SCORE  # False for NaN too
    if bool(np.all(usable)):
        return ""
    first = int(np.argmin(usable))
    return (
        f"{int(np.sum(~usable)):,} of {table.n:,} documents of {table.source or 'a run'} have NaN "
        f"or infinite scores (first: doc_id {table.doc_ids[first]}, {table.values[first]!s})"
    )


def _unusable_weights(table: ScoreTable) -> str:
    if table.weights is None:
        return ""
    usable = (table.weights >= 0.0) & (table.weights <= _LARGEST_SCORE)
    if not bool(np.all(usable)):
        first = int(np.argmin(usable))
        return (
            f"{int(np.sum(~usable)):,} of {table.n:,} documents have a weight that is not a "
            "count of "
            f"words or bytes (first: doc_id {table.doc_ids[first]}, {table.weights[first]!s})"
        )
    return "" if float(np.sum(table.weights)) > 0.0 else "the documents' weights sum to 0"
