"""Simulated scores as the package takes them: ScoreTables, paired by ``pair``."""

from __future__ import annotations

from functools import cache

import numpy as np

from benchmarks.differences import Array
from evalguard.core.pairing import PairedScores, pair
from evalguard.core.scores import Aggregation, ScoreTable, rescoring


@cache
def names(n: int) -> tuple[str, ...]:
    """A name for each document, standing for its hashes."""
    return tuple(map(str, range(n)))


@cache
def _ids(n: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.arange(n)


def scored(
    base: Array,
    candidate: Array,
    aggregation: Aggregation,
    *,
    weights: Array | None = None,
    clusters: Array | None = None,
    task: str = "simulated",
    metric: str = "simulated",
) -> PairedScores:
    """Pair two models' scores of the same documents; ``clusters`` are numbers, one a document."""
    n = base.shape[0]
    labels = () if clusters is None else tuple(clusters.astype(np.str_).tolist())
    sides = [
        ScoreTable(
            task=task, filter="none", metric=metric, aggregation=aggregation,
            higher_is_better=aggregation == "mean", doc_ids=_ids(n), values=values,
            weights=weights, doc_hashes=names(n), prompt_hashes=names(n), target_hashes=names(n),
            token_hashes=names(n), clusters=labels, cluster_field="passage" if labels else "",
        )
        for values in (base, candidate)
    ]  # fmt: skip
    return pair(sides[0], sides[1])


def rescored(base: list[object], candidate: list[object], name: str, aggregate) -> PairedScores:  # type: ignore[no-untyped-def]
    """Pair two models' items of a metric that is no mean."""
    n = len(base)
    sides = [
        ScoreTable(
            task="simulated", filter="none", metric=name, aggregation="other",
            higher_is_better=True, doc_ids=_ids(n), values=np.zeros(n),
            rescoring=rescoring(items, name, aggregate), doc_hashes=names(n),
            prompt_hashes=names(n), target_hashes=names(n), token_hashes=names(n),
        )
        for items in (base, candidate)
    ]  # fmt: skip
    return pair(sides[0], sides[1])
