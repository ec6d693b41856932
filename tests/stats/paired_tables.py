"""Paired score tables made from arrays, for the tests of the statistics."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from evalguard.core.pairing import PairedScores, pair
from evalguard.core.scores import Aggregation, ScoreTable

LOWER_IS_BETTER = ("perplexity", "weighted_perplexity", "bits_per_byte")
WEIGHTED = ("weighted_perplexity", "bits_per_byte")
METRICS: dict[Aggregation, str] = {
    "mean": "score",
    "perplexity": "perplexity",
    "weighted_perplexity": "word_perplexity",
    "bits_per_byte": "bits_per_byte",
}


def score_table(
    values: ArrayLike,
    aggregation: Aggregation = "mean",
    *,
    weights: ArrayLike | None = None,
    higher_is_better: bool | None = None,
    source: str = "model orig",
    **fields: object,
) -> ScoreTable:
    """A table over documents 0..n-1 with hashes of its own; other fields as given."""
    array = np.asarray(values, dtype=np.float64)
    names = tuple(str(index) for index in range(array.shape[0]))
    if higher_is_better is None:
        higher_is_better = aggregation not in LOWER_IS_BETTER
    return ScoreTable(
        **{
            "task": "passages",
            "filter": "none",
            "metric": METRICS.get(aggregation, "score"),
            "aggregation": aggregation,
            "higher_is_better": higher_is_better,
            "doc_ids": np.arange(array.shape[0]),
            "values": array,
            "weights": None if weights is None else np.asarray(weights, dtype=np.float64),
            "doc_hashes": names,
            "prompt_hashes": names,
            "target_hashes": names,
            "token_hashes": names,
            "source": source,
            **fields,
        }
    )


def paired(
    base: ArrayLike,
    candidate: ArrayLike,
    aggregation: Aggregation = "mean",
    *,
    weights: ArrayLike | None = None,
    higher_is_better: bool | None = None,
    **fields: object,
) -> PairedScores:
    """Two tables over the same documents, paired; other fields as given, the same for both."""
    fields = {"weights": weights, "higher_is_better": higher_is_better, **fields}
    return pair(
        score_table(base, aggregation, **fields),
        score_table(candidate, aggregation, source="model port", **fields),
    )
