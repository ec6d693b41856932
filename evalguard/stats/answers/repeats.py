"""Scores of documents with several answers: pass@k and mean@k, and figures of paired documents."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from evalguard.core.distribution_comparison import Figure
from evalguard.core.paired_scores import PairedScores
from evalguard.core.reports.generations import PairedFigure
from evalguard.core.scores import ScoreTable
from evalguard.stats.drift import estimate_drift
from evalguard.stats.moments import exact_sum, mean_moments

Array = NDArray[np.float64]


def pass_at_k(n: int, c: int, k: int) -> float:
    """Chance that at least one of k answers is right, from n answers of which c are.

    1 - C(n - c, k) / C(n, k): the share of the subsets of k answers that hold a right one. It is
    unbiased, for any k up to n, where answers are independent draws (M. Chen et al., Evaluating
    Large Language Models Trained on Code, 2021); 1 - (1 - c / n)^k is not. Exact as a ratio of
    whole numbers, rounded once.

    Raises:
        ValueError: unless 0 <= c <= n and 1 <= k <= n.
    """
    if not (0 <= c <= n and 1 <= k <= n):
        raise ValueError(f"pass@{k} of {n} answers, {c} of them right, does not exist")
    every = math.comb(n, k)
    return (every - math.comb(n - c, k)) / every


def powers_up_to(n: int) -> list[int]:
    """Values of k for pass@k: 2, 4, 8, ... below n, and n; [] for fewer than two answers."""
    return [*(2**power for power in range(1, n.bit_length()) if 2**power < n), n] if n > 1 else []


def compare_figures(
    base: Sequence[float] | Array,
    candidate: Sequence[float] | Array,
    *,
    confidence: float,
    labels: Sequence[str] = (),
) -> PairedFigure:
    """Compare a figure that each document has of both models, one value of each.

    Documents are what is sampled: what a document has of several answers is averaged before. The
    difference goes by the rules of any metric's drift (``stats.drift``): t, exact signs of few
    documents, McNemar's flips of zeros and ones, clusters resampled whole.

    Args:
        base, candidate: finite, shape (n,), of the same documents in the same order.
        labels: of clusters, n of them; () where each document stands alone.
    """
    ours, theirs = (np.asarray(one, dtype=np.float64) for one in (base, candidate))
    n = ours.shape[0]
    if n < 2:
        values = [float(one[0]) if n else None for one in (ours, theirs)]
        apart = values[1] - values[0] if values[0] is not None and values[1] is not None else None
        first, second = (Figure(value=value) for value in values)
        return PairedFigure(
            base=first, candidate=second, difference=Figure(value=apart), n=n, method="none"
        )
    paired = PairedScores(base=_table(ours, labels), candidate=_table(theirs, labels))
    drift = estimate_drift(paired, confidence=confidence).estimate
    moments = [mean_moments(one) for one in (ours, theirs)]
    return PairedFigure(
        base=Figure(value=moments[0].point, stderr=moments[0].stderr),
        candidate=Figure(value=moments[1].point, stderr=moments[1].stderr),
        difference=Figure(
            value=0.0 - drift.point,  # a drift is positive where the figure falls
            stderr=drift.stderr,
            interval=(0.0 - drift.high, 0.0 - drift.low),
        ),
        n=n,
        method=drift.method,
    )


def mean(values: Sequence[float]) -> float:
    """Mean of a document's answers."""
    if len(values) == 1:
        return float(values[0])
    return exact_sum(np.asarray(values, dtype=np.float64)) / len(values)


def _table(values: Array, labels: Sequence[str]) -> ScoreTable:
    n = values.shape[0]
    return ScoreTable(
        task="", filter="", metric="", aggregation="mean", higher_is_better=True,
        doc_ids=np.arange(n, dtype=np.int64), values=values, doc_hashes=("",) * n,
        prompt_hashes=("",) * n, target_hashes=("",) * n, clusters=tuple(labels),
    )  # fmt: skip
