"""Caveats: what stands in the way of reading a comparison's numbers as they are."""

from __future__ import annotations

import math

import numpy as np

from evalguard.pairing import PairedScores
from evalguard.stats.drift import Drift
from evalguard.stats.tails import skewness, unequal_weights, worst_documents
from evalguard.verdict import Verdict


def documents_of_task(paired: PairedScores) -> int:
    """Documents that the task has, scored or not; 0 where neither run knows."""
    return max(paired.base.n_total, paired.candidate.n_total)


def own_caveats(paired: PairedScores, drift: Drift, verdict: Verdict) -> list[str]:
    """What to know about a comparison's numbers beside what pairing and the runs had to say."""
    table, caveats = paired.base, []
    total = documents_of_task(paired)
    if table.n < total:
        caveats.append(f"only {table.n:,} of the task's {total:,} documents were scored")
    if table.weights is not None:
        caveats.append(
            "lm-eval reports no standard error here; it is computed by the ratio estimator over "
            f"{table.n:,} documents"
        )
    for name, moments in (("base", drift.base), ("candidate", drift.candidate)):
        if math.isinf(moments.point):
            caveats.append(f"the {name}'s {table.metric} overflows and counts as infinite")
    return [*caveats, *_doubts(paired, drift, verdict)]


def _doubts(paired: PairedScores, drift: Drift, verdict: Verdict) -> list[str]:
    """What stands in the way of reading a t interval as it says."""
    if drift.flips is not None or not np.any(paired.d):
        return []
    d, n = paired.d, paired.base.n
    if drift.estimate.stderr == 0.0:
        return [f"all {n:,} documents drift alike: nothing scatters, and the interval is a point"]
    doubts = []
    tail = worst_documents(d)
    if tail.heavy and verdict.outcome != "unchanged":
        doubts.append(
            f"heavy tails: the {tail.count:,} most affected of {n:,} documents carry "
            f"{100.0 * tail.share:.0f}% of the total drift (normal scatter would give them "
            f"{100.0 * tail.normal_share:.0f}%)"
        )
    skew = skewness(d, paired.base.weights)
    if skew.needed > n:
        side = "worse" if skew.value > 0.0 else "better"
        doubts.append(
            f"skewed differences: a true drift {side} than the whole interval is likelier than "
            f"its confidence says (skewness {skew.value:.1f} asks for {math.ceil(skew.needed):,} "
            f"documents, here {n:,})"
        )
    return doubts + _unequal(paired)


def _unequal(paired: PairedScores) -> list[str]:
    """Whether too few long documents weigh too much for the ratio estimator."""
    weights, n = paired.base.weights, paired.base.n
    if weights is None or unequal_weights(weights).needed <= n:
        return []
    inequality = unequal_weights(weights)
    return [
        f"few or very unequal texts: {n:,} documents weigh like {inequality.effective:.0f} of one "
        f"length, and the interval is approximate below {math.ceil(inequality.needed):,} documents"
    ]
