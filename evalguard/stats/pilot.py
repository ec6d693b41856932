"""Pilot: what a sample of documents, or a stored comparison, tells about a metric's scatter."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from evalguard.core.comparison import Comparison
from evalguard.core.paired_scores import PairedScores
from evalguard.core.verdict import Margin
from evalguard.stats.drift import estimate_drift
from evalguard.stats.power import (
    NORMAL_KURTOSIS,
    Range,
    decidable_ratio,
    detectable_drift,
    detectable_flip_drift,
    documents_to_decide,
    flip_documents_to_detect,
    flip_documents_to_show_harmless,
    kurtosis,
    paired_documents_to_detect,
    ratio_range,
    scatter_factors,
    share_interval,
)
from evalguard.stats.probability import SIGN_FLIP, moments

_FEW_CARRIERS = 4.0
_UNSHAPED = "the tails of its documents are not stored, so the ranges take them for normal ones"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pilot:
    """The scatter of one metric, per document, and how well it is known.

    Attributes:
        n: documents of the pilot.
        base: the base's metric; ``base_stderr`` its standard error over the n documents.
        base_scatter: standard deviation per document behind it, on the scale of the drift (the
            log scale of a perplexity, where it is dimensionless).
        ratio: scatter of the paired differences / ``base_scatter``, the one number that decides
            how sharp a paired comparison is: SE_paired / SE_base at any number of documents.
        ratio_range: its interval at ``confidence``.
        flip_rate: share of documents that flip, for 0/1 metrics; else None.
        is_share: whether the metric lies between 0 and 1 by its kind, so that a margin of it may be
            in points.
        problem: why there are no such numbers, or "".
    """

    task: str
    filter: str
    metric: str
    higher_is_better: bool
    n: int
    confidence: float
    base: float | None = None
    base_stderr: float = 0.0
    base_scatter: float = 0.0
    ratio: float = 0.0
    ratio_range: Range = (0.0, math.inf)
    flip_rate: float | None = None
    is_share: bool = False
    problem: str = ""
    caveats: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scatter:
    """Standard errors over n documents, on the scale of the drift, and the documents' shape."""

    paired: float
    base: float
    paired_kurtosis: float = NORMAL_KURTOSIS
    base_kurtosis: float = NORMAL_KURTOSIS
    flips: tuple[int, int] | None = None


def pilot_of_scores(paired: PairedScores, comparison: Comparison, *, confidence: float) -> Pilot:
    """The pilot of a metric whose documents are at hand.

    Args:
        paired: both models' scores of the pilot's documents.
        comparison: of these scores, from ``compare_scores``; where it failed, so does the pilot.
    """
    if comparison.outcome == "failed":
        return _without_numbers(comparison, comparison.reason, confidence)
    drift = estimate_drift(paired, confidence=confidence)
    scatter = _Scatter(
        paired=drift.estimate.stderr,
        base=drift.unit,
        paired_kurtosis=kurtosis(_residuals(paired.d, paired.base.weights)),
        base_kurtosis=kurtosis(_residuals(paired.base.values, paired.base.weights)),
        flips=drift.flips,
    )
    caveats = _cautions(scatter, comparison.n_used)
    pilot = _pilot(comparison, scatter, confidence, caveats=caveats)
    return replace(pilot, is_share=paired.base.is_share)


def pilot_of_comparison(comparison: Comparison, *, confidence: float) -> Pilot:
    """The pilot of a metric of which only the comparison is stored.

    Standard errors in units of a perplexity are brought to its log scale by the delta method.
    """
    values = (comparison.base, comparison.base_stderr, comparison.candidate)
    if comparison.outcome == "failed" or comparison.paired_stderr is None or None in values:
        return _without_numbers(comparison, comparison.reason, confidence)
    base, stderr, candidate = (float(value or 0.0) for value in values)
    paired = comparison.paired_stderr
    if comparison.method.startswith("paired-t-log") and base > 0.0 and candidate > 0.0:
        paired, stderr = paired / candidate, stderr / base
    scatter = _Scatter(paired=paired, base=stderr, flips=comparison.flips)
    unknown = (_UNSHAPED,) if comparison.flips is None else ()
    caveats = (*_cautions(scatter, comparison.n_used), *unknown)
    pilot = _pilot(comparison, scatter, confidence, caveats=caveats)
    return replace(pilot, is_share=_is_share(comparison))


def _is_share(comparison: Comparison) -> bool:
    """Whether a metric lies between 0 and 1 by its kind, as its method tells.

    That of clustered documents is one for all kinds; perplexities and bits are better when low.
    """
    method = comparison.method
    known = "log" not in method and "ratio" not in method
    return known and (method != SIGN_FLIP or comparison.higher_is_better)


def _pilot(
    of: Comparison, scatter: _Scatter, confidence: float, *, caveats: tuple[str, ...]
) -> Pilot:
    n = of.n_used
    problem = _problem(scatter, n)
    if problem:
        return _without_numbers(of, problem, confidence)
    root = math.sqrt(n)
    below = scatter_factors(n, kurtosis=scatter.base_kurtosis, confidence=confidence)
    flip_rate = None
    if scatter.flips is None:
        ratio = scatter.paired / scatter.base
        above = scatter_factors(n, kurtosis=scatter.paired_kurtosis, confidence=confidence)
        spread = ratio_range(ratio, above, below)
    else:
        flips = sum(scatter.flips)
        flip_rate = flips / n
        ratio = math.sqrt(flip_rate) / (scatter.base * root)
        spread = _flip_range(flips, n, scatter.base * root, below, confidence)
    return Pilot(
        task=of.task,
        filter=of.filter,
        metric=of.metric,
        higher_is_better=of.higher_is_better,
        n=n,
        confidence=confidence,
        base=of.base,
        base_stderr=of.base_stderr or 0.0,
        base_scatter=scatter.base * root,
        ratio=ratio,
        ratio_range=spread,
        flip_rate=flip_rate,
        caveats=caveats,
    )


def _flip_range(flips: int, n: int, base_scatter: float, below: Range, confidence: float) -> Range:
    low, high = (math.sqrt(end) for end in share_interval(flips, n, confidence=confidence))
    if flips == 0:  # a log scale has no place for 0
        return 0.0, high / (base_scatter * below[0])
    seen = math.sqrt(flips / n)
    return ratio_range(seen / base_scatter, (low / seen, high / seen), below)


def _problem(scatter: _Scatter, n: int) -> str:
    if n < 2:
        there = "is 1" if n == 1 else f"are {n}"
        return f"a standard error needs at least 2 documents, and there {there}"
    if scatter.base == 0.0:
        return (
            f"the base's scores of these {n:,} documents do not scatter, so that sigma has no unit "
            "here; a larger pilot may show some"
        )
    if not (math.isfinite(scatter.base) and math.isfinite(scatter.paired)):
        return "its standard errors are not finite"
    if scatter.flips is None and scatter.paired == 0.0:
        _, unseen = share_interval(0, n, confidence=0.9)
        return (
            f"the two models differ alike on all of these {n:,} documents, or not at all: there is "
            f"no scatter to plan with; at most {100.0 * unseen:.2g}% of all documents are "
            "otherwise (95% confidence)"
        )
    return ""


def _cautions(scatter: _Scatter, n: int) -> tuple[str, ...]:
    if scatter.flips is not None:
        flipped = sum(scatter.flips)
        return () if flipped else (f"no document of {n:,} flipped: plan by the upper ends",)
    carriers = n / scatter.paired_kurtosis  # k equal outliers among n zeros have kurtosis n / k
    if carriers >= _FEW_CARRIERS:
        return ()
    return (
        f"heavy tails: the scatter of {n:,} documents comes from about {max(1, round(carriers))} "
        "of them, so that another pilot may find more or less; a larger one knows it better",
    )


def _without_numbers(of: Comparison, problem: str, confidence: float) -> Pilot:
    return Pilot(
        task=of.task,
        filter=of.filter,
        metric=of.metric,
        higher_is_better=of.higher_is_better,
        n=of.n,
        confidence=confidence,
        base=of.base,
        problem=problem,
    )


def _residuals(
    values: NDArray[np.float64], weights: NDArray[np.float64] | None
) -> NDArray[np.float64]:
    point = moments(values, weights).point
    return values - point * (1.0 if weights is None else weights)


# MetricPlan: what n documents would show about one metric, and how many would be enough.


# Of fewer documents a t interval is not to be trusted, however small their scatter.
FEWEST_FOR_T = 30

DocumentRange = tuple["int | None", "int | None"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricPlan:
    """The plan of one metric. A sigma is one standard error of the base over all n documents.

    Attributes:
        pilot: what it is planned from.
        n: documents of the run that is planned.
        margin: the drift that matters, in sigma; None where it is known in another unit only.
            ``given``: as it was given; None for a number of sigmas.
        base_stderr: the base's standard error over n documents, in units of the metric.
        detectable_sigma: the smallest drift that n documents detect; None without numbers.
        detectable_change: the same in units of the metric.
        needed_to_detect: documents that detect a drift of the margin; may exceed n. At least
            ``FEWEST_FOR_T`` where a t test decides.
        needed_to_show_harmless: documents after which a candidate without a drift is shown to
            stay below the margin (non-inferiority).
        needed_to_decide: documents after which the verdict is decided, whatever the true drift is:
            those that an undecided comparison of the pilot's documents asks for.
        The ``_range`` beside a number is what the pilot leaves open, at the pilot's confidence.
        method: the test that the plan is for.
    """

    pilot: Pilot
    n: int
    margin: float | None
    alpha: float
    power: float
    given: Margin | None = None
    base_stderr: float | None = None
    detectable_sigma: float | None = None
    detectable_sigma_range: Range | None = None
    detectable_change: float | None = None
    needed_to_detect: int | None = None
    needed_to_detect_range: DocumentRange = (None, None)
    needed_to_show_harmless: int | None = None
    needed_to_show_harmless_range: DocumentRange = (None, None)
    needed_to_decide: int | None = None
    needed_to_decide_range: DocumentRange = (None, None)
    method: str = "none"


def plan_metric(
    pilot: Pilot,
    *,
    n: int,
    margin: float | Margin,
    alpha: float,
    power: float,
    metrics: int = 1,
) -> MetricPlan:
    """Plan a run of n documents (at least 2) from a pilot.

    With r = ``pilot.ratio``, n documents detect (t_{1-alpha} + t_{power}) r sigma, whatever n: the
    base's standard error shrinks as the paired one does. A margin in sigma is therefore taken at
    the n of the run that is planned, where it is a drift of margin * s_base / sqrt(n), and the
    documents needed are those that detect this drift. A margin in points or percent is the same
    drift whatever n; it is relative to the pilot's base.

    Args:
        metrics: that the gate judges together.
    """
    given = margin if isinstance(margin, Margin) else Margin(margin)
    base_stderr = pilot.base_stderr * math.sqrt(pilot.n / n)
    in_sigma = given.value if given.unit == "sigma" else None
    if not pilot.problem:
        base = math.nan if pilot.base is None else pilot.base
        try:
            in_sigma = given.in_sigma(base, base_stderr, is_share=pilot.is_share)
        except ValueError as error:
            pilot = replace(pilot, problem=str(error))
    if pilot.problem or in_sigma is None:
        return MetricPlan(pilot=pilot, n=n, margin=in_sigma, given=given, alpha=alpha, power=power)
    rule = _flip_rule if pilot.flip_rate is not None else _mean_rule
    ends = [rule(pilot, ratio, n, in_sigma, alpha, power) for ratio in pilot.ratio_range]
    at = rule(pilot, pilot.ratio, n, in_sigma, alpha, power)
    tolerated, aim = in_sigma / math.sqrt(n), (alpha, power, metrics)
    deciding = [_deciding(pilot, ratio, tolerated, *aim) for ratio in pilot.ratio_range]
    return MetricPlan(
        pilot=pilot,
        n=n,
        margin=in_sigma,
        given=given,
        alpha=alpha,
        power=power,
        base_stderr=base_stderr,
        detectable_sigma=at.sigma,
        detectable_sigma_range=(ends[0].sigma, ends[1].sigma),
        detectable_change=at.sigma * base_stderr,
        needed_to_detect=at.detect,
        needed_to_detect_range=(ends[0].detect, ends[1].detect),
        needed_to_show_harmless=at.harmless,
        needed_to_show_harmless_range=(ends[0].harmless, ends[1].harmless),
        needed_to_decide=_deciding(pilot, pilot.ratio, tolerated, *aim),
        needed_to_decide_range=(deciding[0], deciding[1]),
        method="paired-t" if pilot.flip_rate is None else "mcnemar-mid-p",
    )


def _deciding(
    pilot: Pilot, ratio: float, tolerated: float, alpha: float, power: float, metrics: int
) -> int | None:
    """Documents that decide; ``ratio`` and the tolerated drift in units of the base's scatter."""
    if not (ratio > 0.0 and math.isfinite(ratio) and tolerated > 0.0):
        return FEWEST_FOR_T if ratio == 0.0 and tolerated > 0.0 else None
    least = decidable_ratio(alpha, metrics, power=power)
    fresh = math.ceil((least * ratio / tolerated) ** 2)
    if fresh <= pilot.n:
        return max(FEWEST_FOR_T, fresh)
    return documents_to_decide(
        tolerated / ratio * math.sqrt(pilot.n),
        known=pilot.n,
        alpha=alpha,
        metrics=metrics,
        fixed=True,
        power=power,
    )


@dataclass(frozen=True, slots=True)
class _Answer:
    sigma: float
    detect: int | None
    harmless: int | None


def _mean_rule(
    _: Pilot, ratio: float, n: int, margin: float, alpha: float, power: float
) -> _Answer:
    """In units of the base's scatter, where SE_base over n documents is 1 / sqrt(n)."""
    tolerated = margin / math.sqrt(n)
    needed = paired_documents_to_detect(ratio, tolerated, alpha=alpha, power=power)
    needed = None if needed is None else max(FEWEST_FOR_T, needed)
    detectable = math.inf
    if math.isfinite(ratio):
        detectable = detectable_drift(ratio, n, alpha=alpha, power=power) * math.sqrt(n)
    return _Answer(detectable, needed, needed)


def _flip_rule(
    pilot: Pilot, ratio: float, n: int, margin: float, alpha: float, power: float
) -> _Answer:
    """The share of flips behind a ratio is (ratio * s_base)^2."""
    rate = min(1.0, (ratio * pilot.base_scatter) ** 2)
    unit = pilot.base_scatter / math.sqrt(n)
    tolerated = margin * unit
    return _Answer(
        detectable_flip_drift(rate, n, alpha=alpha, power=power) / unit,
        flip_documents_to_detect(rate, tolerated, alpha=alpha, power=power),
        flip_documents_to_show_harmless(rate, tolerated, alpha=alpha, power=power),
    )
