"""How often two models gave the same answer, whatever it was worth."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evalguard.core.paired_scores import PairedScores
from evalguard.stats.clusters import cluster_sums
from evalguard.stats.effective_sample import Share


@dataclass(frozen=True, slots=True, kw_only=True)
class SameAnswers:
    """The documents that both models answered in the same words, or with the same option.

    Attributes:
        share: of all documents, and its ``interval`` (exact binomial, of the effective number of
            clusters where documents share something).
        churn: documents that both got wrong, in different ways; None for a metric that is not 0/1.
    """

    share: float
    interval: tuple[float, float]
    churn: int | None


def same_answers(paired: PairedScores, *, binary: bool, confidence: float) -> SameAnswers | None:
    """Compare the answers; None where either run does not show them.

    Args:
        binary: whether the metric is 0/1, right or wrong.
    """
    ours, theirs = paired.base.answers, paired.candidate.answers
    if not ours or not theirs:
        return None
    same = np.array([one == other for one, other in zip(ours, theirs, strict=True)])
    labels = paired.clusters or tuple(map(str, paired.base.doc_ids.tolist()))
    sums = cluster_sums(same.astype(np.float64), None, labels)
    share = Share(hits=sums.values, positions=sums.weights)
    worst = 0.0 if paired.base.higher_is_better else 1.0
    wrong = (paired.base.values == worst) & (paired.candidate.values == worst)
    return SameAnswers(
        share=share.value,
        interval=share.interval(confidence=confidence),
        churn=int(np.sum(wrong & ~same)) if binary else None,
    )
