"""Caveats: what stands in the way of reading a comparison's numbers as they are."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from evalguard.core.pairing import PairedScores
from evalguard.core.scores import Rescoring
from evalguard.core.verdict import Verdict
from evalguard.stats.bootstrap import ENOUGH_DIFFERING
from evalguard.stats.clusters import FEWEST_FOR_T, cluster_count, compared_units
from evalguard.stats.drift import Drift
from evalguard.stats.estimate import SIGN_FLIP, Estimate, scatters
from evalguard.stats.judgement import number_text, p_text
from evalguard.stats.sign_flip import SEED
from evalguard.stats.skewness import (
    CR2,
    SKEW,
    Skewness,
    skewness,
    uncorrected,
    unequal_weights,
    worst_documents,
)

_ENOUGH_RESAMPLES = 1_000
# A drift of nearly 0 is any number of times smaller than what one document adds to it.
_MOST_PERCENT = 10.0
# Relative standard error s of a perplexity beyond which exp is not linear over its scatter: for a
# normal mean log-likelihood a bootstrap gives sqrt(exp(s^2) - 1) exp(s^2 / 2) / s times the delta
# method's, 1.05 at 0.25 and 1.21 at 0.5.
_LINEAR = 0.25


def documents_of_task(paired: PairedScores) -> int:
    """Documents that the task has, scored or not; 0 where neither run knows."""
    return max(paired.base.n_total, paired.candidate.n_total)


def own_provenance(paired: PairedScores) -> list[str]:
    """How a comparison's numbers were made, where that is not what one would take for granted."""
    table, sentences = paired.base, []
    total = documents_of_task(paired)
    if table.n < total:
        sentences.append(f"only {table.n:,} of the task's {total:,} documents were scored")
    if table.weights is not None:
        sentences.append(
            "lm-eval reports no standard error here; it is computed by the ratio estimator over "
            f"{table.n:,} documents"
        )
    return sentences


def own_caveats(
    paired: PairedScores, drift: Drift, verdict: Verdict, *, tolerated: float
) -> list[str]:
    """What to know about a comparison's numbers beside what pairing and the runs had to say."""
    table, caveats = paired.base, []
    if table.rescoring is not None:
        caveats.append(_bootstrap(table.rescoring, _differing(paired)))
        if drift.undefined:
            caveats.append(
                f"{100.0 * drift.undefined:.2g}% of the resamples have no number (a category that "
                "the aggregation needs was not drawn) and are left out of the interval"
            )
    if paired.clusters:
        caveats.append(_clusters(paired, drift))
    for name, moments in (("base", drift.base), ("candidate", drift.candidate)):
        if math.isinf(moments.point):
            caveats.append(f"the {name}'s {table.metric} overflows and counts as infinite")
    if drift.log_sign and drift.unit > _LINEAR:
        caveats.append(
            f"the base's {table.metric} is known to {number_text(100.0 * drift.unit)}% only: its "
            "standard error is by the delta method, and lm-eval's bootstrap would give a larger one"
        )
    return [*caveats, *_unflipped(paired, drift, tolerated), *_doubts(paired, drift, verdict)]


def _unflipped(paired: PairedScores, drift: Drift, tolerated: float) -> list[str]:
    """Whether so few answers, none of them flipped, leave room for a drift above the margin."""
    high = drift.estimate.high
    if drift.flips != (0, 0) or paired.clusters or high <= tolerated:
        return []
    return [
        f"no answer flipped, which is said of these {paired.base.n:,} documents: over all others "
        f"a drift of up to {100.0 * high:.2g} percentage points, above the margin, is not excluded "
        f"({100.0 * drift.estimate.confidence:g}%, Tango's interval)"
    ]


def _doubts(paired: PairedScores, drift: Drift, verdict: Verdict) -> list[str]:
    """What stands in the way of reading a t interval as it says."""
    if (drift.flips is not None and not paired.clusters) or not np.any(paired.d):
        return []
    d, n = paired.d, paired.base.n
    if not scatters(drift.estimate):
        return [f"all {n:,} documents drift alike: nothing scatters{_alike(drift.estimate)}"]
    if drift.flips is not None:  # differences of 1 have no tail
        return _of_the_interval(paired, drift)
    doubts = []
    tail = worst_documents(d)
    if tail.heavy and verdict.outcome != "unchanged":
        doubts.append(
            f"heavy tails: the {tail.count:,} most affected of {n:,} documents carry "
            f"{_part(tail.share)} the total drift (normal scatter would give them "
            f"{_part(tail.normal_share).removesuffix(' of')})"
        )
    return doubts + _of_the_interval(paired, drift)


def _part(share: float) -> str:
    """A share of a drift: "64% of"; more than ten times it, "350 times"."""
    return f"{100.0 * share:.0f}% of" if share <= _MOST_PERCENT else f"{number_text(share)} times"


def _alike(estimate: Estimate) -> str:
    """What a drift without scatter leaves of an interval."""
    if math.isinf(estimate.high):
        return ", and so few could all have lost or won by chance: any drift is possible"
    return ", and the interval is a point" if estimate.low == estimate.high else ""


def _of_the_interval(paired: PairedScores, drift: Drift) -> list[str]:
    """Whether documents, or clusters of them, are too few and too lopsided for a t interval."""
    if drift.estimate.interval_method == SIGN_FLIP:
        return []
    d, weights = compared_units(paired)
    n, noun = d.shape[0], "clusters" if paired.clusters else "documents"
    doubts = skewed_differences(skewness(d, weights), n, noun, drift)
    by_signs = uncorrected(drift.estimate.interval_method) == SIGN_FLIP
    return doubts if weights is None or by_signs else doubts + _unequal(weights, noun, drift)


def skewed_differences(skew: Skewness, n: int, noun: str, drift: Drift) -> list[str]:
    """Whether n units are too few and too lopsided for a t interval, and what became of it."""
    if skew.needed <= n:
        return []
    side = "worse" if skew.value > 0.0 else "better"
    return [
        f"skewed differences (skewness {skew.value:.1f} asks for {math.ceil(skew.needed):,} "
        f"{noun}, here {n:,}): a true drift {side} than the whole interval is likelier than "
        f"its confidence says{_beside(drift, SKEW)}"
    ]


def _beside(drift: Drift, correction: str) -> str:
    """That the interval takes account of it, and the plain one in sigma; "" where it does not."""
    plain = drift.plain
    if plain is None or correction not in drift.estimate.method:
        return ""
    low, high = (number_text(drift.sigma_of(end)) for end in (plain.low, plain.high))
    test = "sign flips" if plain.method == SIGN_FLIP else "plain t"
    return (
        f", although interval and p are corrected for it ({test}: {low} to {high} sigma, p "
        f"{p_text(plain.p_value)})"
    )


def _unequal(weights: NDArray[np.float64], noun: str, drift: Drift) -> list[str]:
    """Whether a few long texts, or large clusters, weigh too much for the ratio estimator."""
    n, inequality = weights.shape[0], unequal_weights(weights)
    if inequality.needed <= n:
        return []
    what, alike = ("texts", "length") if noun == "documents" else ("clusters", "size")
    return [
        f"few or very unequal {what}: {n:,} {noun} weigh like {inequality.effective:.0f} of one "
        f"{alike}, and the interval is approximate below {math.ceil(inequality.needed):,} {noun}"
        f"{_beside(drift, CR2)}"
    ]


def _differing(paired: PairedScores) -> int:
    """Documents whose items differ between the two models."""
    base, candidate = paired.base.rescoring, paired.candidate.rescoring
    if base is None or candidate is None:
        return int(np.count_nonzero(paired.d))
    return sum(ours != theirs for ours, theirs in zip(base.items, candidate.items, strict=True))


def _bootstrap(rescoring: Rescoring, differing: int) -> str:
    count = rescoring.resamples
    rough = (
        ""
        if count >= _ENOUGH_RESAMPLES
        else (": few, because this aggregation takes long, so that the interval's ends are rough")
    )
    few = ""
    if differing < ENOUGH_DIFFERING:
        few = (
            f"; only {differing:,} documents differ: the interval is joined with the jackknife's "
            "t, and a 95% one held the truth in 93% to 99% of simulated runs"
        )
    return (
        f"{rescoring.name} is not a mean: standard errors, interval and p by bootstrap, "
        f"{count:,} resamples of the documents, the same for both models, seed {SEED}{rough}{few}"
    )


def _clusters(paired: PairedScores, drift: Drift) -> str:
    count, field = cluster_count(paired), paired.base.cluster_field
    few = ""
    if uncorrected(drift.estimate.interval_method) == SIGN_FLIP:
        few = f"; fewer than {FEWEST_FOR_T}: whole clusters change sign, instead of a t test, "
        few += "which holds where they gain as far as they lose"
        if math.isinf(drift.estimate.low):
            few += f", and {count} are too few for any interval of this confidence"
    elif paired.base.rescoring is not None and count is not None and count < FEWEST_FOR_T:
        few = "; a bootstrap of so few is approximate"
    return (
        f"documents with the same {field or 'cluster'} are not independent: {count:,} clusters of "
        f"{paired.base.n:,} documents{few}. The unit of sigma stays lm-eval's standard error, "
        "which takes documents as independent"
    )
