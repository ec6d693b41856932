"""Pilot: what a sample of documents, or a stored comparison, tells about a metric's scatter."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from evalguard.core.comparison import Comparison
from evalguard.core.figures import FIGURES, is_figure
from evalguard.core.moments import moments
from evalguard.core.pairing import PairedScores
from evalguard.planning.repeat_plan import AnswerScatter, answer_scatter
from evalguard.stats.clusters import compared_units
from evalguard.stats.drift import estimate_drift
from evalguard.stats.estimate import SIGN_FLIP
from evalguard.stats.judgement import fewest_documents
from evalguard.stats.scatter import (
    NORMAL_KURTOSIS,
    Range,
    carried_by_few,
    carriers,
    kurtosis,
    planned_churn,
    ratio_range,
    scatter_factors,
    share_interval,
)
from evalguard.stats.skewness import uncorrected

_UNSHAPED = "the tails of its documents are not stored, so the ranges take them for normal ones"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pilot:
    """The scatter of one metric, per document, and how well it is known.

    Attributes:
        higher_is_better: which way the metric is better.
        n: documents of the pilot.
        per_unit: documents in each of the units that are compared: 1, or of the mean cluster.
        base: the base's metric; ``base_stderr`` its standard error over the n documents.
        base_scatter: standard deviation per document behind it, on the scale of the drift (the
            log scale of a perplexity, where it is dimensionless).
        ratio: scatter of the paired differences / ``base_scatter``, the one number that decides
            how sharp a paired comparison is: SE_paired / SE_base at any number of documents. With
            what so few flips, or so skewed documents, leave open (``planned_churn``,
            ``planned_scatter``).
        ratio_range: its interval at ``confidence``.
        carried_by_few: so few documents carry the scatter that ``ratio`` has no upper end, and is
            what was seen.
        fewest: documents of which so many differ that their signs alone can decide; 0 where that
            asks for no more.
        flip_rate: share of documents that flip, for 0/1 metrics; else None.
        is_share: whether the metric lies between 0 and 1 by its kind, so that a margin of it may be
            in points.
        in_points: the base's documents do not scatter, of a figure of generated answers, whose
            margin is in points then: scatters and ``ratio`` are in units of the metric.
        answers: how far single answers to a document scatter; None where they do not, nobody shows
            them, or documents belong to clusters.
        problem: why there are no such numbers, or "".
    """

    task: str
    filter: str
    metric: str
    higher_is_better: bool
    n: int
    confidence: float
    per_unit: float = 1.0
    base: float | None = None
    base_stderr: float = 0.0
    base_scatter: float = 0.0
    ratio: float = 0.0
    ratio_range: Range = (0.0, math.inf)
    flip_rate: float | None = None
    carried_by_few: bool = False
    fewest: int = 0
    is_share: bool = False
    in_points: bool = False
    answers: AnswerScatter | None = None
    problem: str = ""
    caveats: tuple[str, ...] = ()

    @property
    def scatter_ratio(self) -> float | None:
        """Paired standard error over the base's; None without numbers."""
        return None if self.problem or self.in_points else self.ratio

    @property
    def scatter_ratio_range(self) -> Range | None:
        """What the pilot leaves open of it."""
        return None if self.problem or self.in_points else self.ratio_range


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scatter:
    """Standard errors over n documents, on the scale of the drift, and the documents' shape."""

    paired: float
    base: float
    paired_kurtosis: float = NORMAL_KURTOSIS
    base_kurtosis: float = NORMAL_KURTOSIS
    flips: tuple[int, int] | None = None
    planned: float | None = 1.0
    fewest: int = 0


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
        paired_kurtosis=kurtosis(_residuals(*compared_units(paired))),
        base_kurtosis=kurtosis(_residuals(paired.base.values, paired.base.weights)),
        flips=drift.flips if drift.documents else None,
        planned=drift.planned_scatter,
        fewest=fewest_documents(drift, comparison.n_used),
    )
    caveats = _cautions(scatter, comparison)
    pilot = _pilot(comparison, scatter, confidence, caveats=caveats)
    answers = None if paired.clusters else answer_scatter(paired, confidence=confidence)
    return replace(pilot, is_share=paired.base.is_share, answers=answers)


def pilot_of_comparison(comparison: Comparison, *, confidence: float) -> Pilot:
    """The pilot of a metric of which only the comparison is stored.

    Standard errors in units of a perplexity are brought to its log scale by the delta method.
    """
    values = (comparison.base, comparison.base_stderr, comparison.candidate)
    if comparison.outcome == "failed" or comparison.paired_stderr is None or None in values:
        return _without_numbers(comparison, comparison.reason, confidence)
    base, stderr, candidate = (float(value or 0.0) for value in values)
    paired = comparison.paired_stderr
    if _is_on_log_scale(comparison) and base > 0.0 and candidate > 0.0:
        paired, stderr = paired / candidate, stderr / base
    scatter = _Scatter(
        paired=paired,
        base=stderr,
        flips=comparison.flips if comparison.clusters is None else None,
        planned=comparison.planned_scatter,
    )
    unknown = (_UNSHAPED,) if comparison.flips is None else ()
    caveats = (*_cautions(scatter, comparison), *unknown)
    pilot = _pilot(comparison, scatter, confidence, caveats=caveats)
    return replace(pilot, is_share=_is_share(comparison))


def _is_on_log_scale(comparison: Comparison) -> bool:
    """Whether a drift is on the log scale, which the method for clusters does not say."""
    of_clusters = comparison.clusters is not None and not comparison.higher_is_better
    return comparison.method.startswith("paired-t-log") or (
        of_clusters and comparison.drift is None
    )


def _is_share(comparison: Comparison) -> bool:
    """Whether a metric lies between 0 and 1 by its kind, as its method tells.

    That of clustered documents is one for all kinds; perplexities and bits are better when low.
    """
    method = comparison.method
    known = "log" not in method and "ratio" not in method
    return known and (uncorrected(method) != SIGN_FLIP or comparison.higher_is_better)


def _pilot(
    of: Comparison, scatter: _Scatter, confidence: float, *, caveats: tuple[str, ...]
) -> Pilot:
    n, units = of.n_used, of.clusters or of.n_used
    root = math.sqrt(n)
    in_points = n > 1 and scatter.base == 0.0 and _is_share_figure(of)
    if in_points:
        scatter = replace(scatter, base=1.0 / root)
    problem = _problem(scatter, n)
    if problem:
        return _without_numbers(of, problem, confidence)
    below = (1.0, 1.0)
    if not in_points:
        below = scatter_factors(n, kurtosis=scatter.base_kurtosis, confidence=confidence)
    flip_rate = None
    if scatter.flips is None:
        ratio = scatter.paired / scatter.base * (scatter.planned or 1.0)
        above = scatter_factors(units, kurtosis=scatter.paired_kurtosis, confidence=confidence)
        spread = ratio_range(ratio, above, below)
        if scatter.planned is None:
            spread = spread[0], math.inf
    else:
        flips = sum(scatter.flips)
        flip_rate = flips / n
        ratio = math.sqrt(planned_churn(flips, n)) / (scatter.base * root)
        spread = _flip_range(flips, n, scatter.base * root, below, confidence)
    return Pilot(
        task=of.task,
        filter=of.filter,
        metric=of.metric,
        higher_is_better=of.higher_is_better,
        n=n,
        per_unit=n / units,
        confidence=confidence,
        base=of.base,
        base_stderr=of.base_stderr or 0.0,
        base_scatter=scatter.base * root,
        ratio=ratio,
        ratio_range=spread,
        flip_rate=flip_rate,
        carried_by_few=scatter.flips is None and scatter.planned is None,
        fewest=scatter.fewest,
        in_points=in_points,
        caveats=caveats,
    )


def _is_share_figure(of: Comparison) -> bool:
    return is_figure(of.filter, of.metric) and FIGURES[of.metric].unit == "share"


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


def _cautions(scatter: _Scatter, of: Comparison) -> tuple[str, ...]:
    n, units = of.clusters or of.n_used, "clusters" if of.clusters else "documents"
    if scatter.flips is not None:
        if sum(scatter.flips):
            return ()
        share = 100.0 * planned_churn(0, n)
        return (
            f"no document of {n:,} flipped: planned as if {share:.2g}% of all did, which is "
            "about the most that this leaves open (97% confidence)",
        )
    if scatter.planned is None:
        return (
            f"heavy tails: so few of the {n:,} {units} carry the scatter that no number of "
            "documents can be said; a larger pilot may tell",
        )
    if not carried_by_few(scatter.paired_kurtosis, n):
        return ()
    carry = max(1, round(carriers(scatter.paired_kurtosis, n)))
    return (
        f"heavy tails: the scatter of {n:,} {units} comes from about {carry} of them, so that "
        "another pilot may find more or less; a larger one knows it better",
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
