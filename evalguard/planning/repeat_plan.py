"""RepeatPlan: how many sampled answers to each document would be enough for a margin."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evalguard.core.pairing import PairedScores
from evalguard.stats.power import (
    decidable_ratio,
    detectable_drift,
    paired_documents_to_detect,
    repeats_to_show,
)
from evalguard.stats.scatter import FEWEST_FOR_T, Range, kurtosis, scatter_factors


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerScatter:
    """The variance of a document's difference, split into that of documents and of answers.

    The k-th answers of both models are subtracted. Where they share a seed and therefore noise,
    their difference has less of it, and ``within`` is that of the difference: nothing is assumed
    to be independent but the repeats of a document. The mean of K answers has the variance
    between + within / K over documents.

    Attributes:
        repeats: K, answers of each model to each document of the pilot.
        first_only: the metric is that of the first answer to a document, however many there are.
        between: variance over documents of the expected difference: the analysis of variance's,
            not below 0. In squared units of the metric; None of one answer that counts.
        within: variance of the difference of single answers to one document, unbiased; None
            likewise.
        base_within, candidate_within: likewise, of each model's own answers.
        at_zero: the estimate of ``between`` is at or below 0: the answers' own scatter explains
            all that the pilot shows.
        total: variance of the documents' mean differences, between + within / K as it was seen.
        total_range, within_range: what the pilot leaves open.
    """

    repeats: int
    first_only: bool = False
    between: float | None = None
    within: float | None = None
    base_within: float | None = None
    candidate_within: float | None = None
    at_zero: bool = False
    total: float = 0.0
    total_range: Range = (0.0, math.inf)
    within_range: Range = (0.0, math.inf)

    def variance(self, repeats: int) -> float:
        """Of the mean difference of so many answers, over documents."""
        return (self.between or 0.0) + (self.within or 0.0) / repeats

    def variance_range(self, repeats: int) -> Range:
        """What the pilot leaves open of it.

        total + within (1 / repeats - 1 / K) by the method of variance estimates recovery
        (G. Y. Zou, A. Donner, Stat. Med. 27, 2008, 1693-1702), its parts as if independent.
        """
        within, factor = self.within or 0.0, 1.0 / repeats - 1.0 / self.repeats
        estimate = self.total + within * factor
        less, more = (abs(factor * (end - within)) for end in self.within_range)
        if factor < 0.0:
            less, more = more, less
        low = estimate - math.hypot(self.total - self.total_range[0], less)
        high = estimate + math.hypot(self.total_range[1] - self.total, more)
        return max(low, 0.0), max(high, self.variance(repeats))


def answer_scatter(paired: PairedScores, *, confidence: float) -> AnswerScatter | None:
    """Split the scatter of documents that were answered several times.

    Returns:
        None where answers are not sampled, do not vary, or nobody shows every one of both models;
        without numbers where one answer to each document counts.
    """
    ours, theirs = paired.base.each_answer, paired.candidate.each_answer
    if ours is None or theirs is None or ours.shape != theirs.shape or ours.shape[0] < 2:
        return None
    n, repeats = ours.shape
    if repeats < 2:
        return AnswerScatter(repeats=1)
    if not (np.isfinite(ours).all() and np.isfinite(theirs).all()):
        return None
    apart = ours - theirs
    of_each = _variances(apart)
    within = float(of_each.mean())
    own = [float(_variances(side).mean()) for side in (ours, theirs)]
    if not any(own):
        return None
    values = paired.base.values, paired.candidate.values
    if not all(map(_are_means, values, (ours, theirs))):
        return AnswerScatter(repeats=repeats, first_only=True)
    means = apart.mean(axis=1)
    residuals = means - means.mean()
    total = float(np.square(residuals).sum()) / (n - 1)
    between = total - within / repeats
    of_total = scatter_factors(n, kurtosis=kurtosis(residuals), confidence=confidence)
    shape = 0.0 if within == 0.0 else float(of_each.var(ddof=1)) / within**2
    of_within = scatter_factors(n, kurtosis=shape + (n - 3) / (n - 1), confidence=confidence)
    return AnswerScatter(
        repeats=repeats,
        between=max(between, 0.0),
        within=within,
        base_within=own[0],
        candidate_within=own[1],
        at_zero=between <= 0.0,
        total=total,
        total_range=(total * of_total[0] ** 2, total * of_total[1] ** 2),
        within_range=(within * of_within[0] ** 2, within * of_within[1] ** 2),
    )


def _are_means(values: NDArray[np.float64], answers: NDArray[np.float64]) -> bool:
    return bool(np.allclose(values, answers.mean(axis=1), rtol=1e-9, atol=1e-12))


def _variances(values: NDArray[np.float64]) -> NDArray[np.float64]:
    variances: NDArray[np.float64] = values.var(axis=1, ddof=1)
    # of equal numbers it is 0, whatever their mean is rounded to
    return np.where(np.ptp(values, axis=1) == 0.0, 0.0, variances)


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatPlan:
    """The answers to each document that a margin takes, with the documents of the planned run.

    A margin in sigma is the drift that it is at the pilot's number of answers.

    Attributes:
        scatter: what it is planned from.
        needed_to_detect: answers to each document that detect a drift of the margin; None: no
            number does, or the pilot has one answer to each, which does not tell.
        needed_to_decide: answers after which the verdict is decided, whatever the true drift is.
        needed_to_detect_range, needed_to_decide_range: what the pilot leaves open.
        cheapest_documents, cheapest_repeats: the pair that detects a drift of the margin with the
            fewest answers, among all documents of the task; None where none does.
    """

    scatter: AnswerScatter
    needed_to_detect: int | None = None
    needed_to_detect_range: tuple[int | None, int | None] = (None, None)
    needed_to_decide: int | None = None
    needed_to_decide_range: tuple[int | None, int | None] = (None, None)
    cheapest_documents: int | None = None
    cheapest_repeats: int | None = None


def plan_repeats(
    scatter: AnswerScatter,
    effect: float,
    *,
    n: int,
    available: int,
    alpha: float,
    power: float,
    metrics: int = 1,
) -> RepeatPlan:
    """Plan the answers to each document.

    Since documents scatter beside their answers, n K answers show the most where K is small: the
    cheapest pair has the fewest answers to each with which the documents that there are do.

    Args:
        effect: the margin as a drift, in units of the metric.
        n: documents of the run that is planned.
        available: documents of the task.
        metrics: that the gate judges together.
    """
    if scatter.within is None:
        return RepeatPlan(scatter=scatter)
    level = alpha / max(metrics, 1)
    detect = detectable_drift(1.0, n, alpha=level, power=power) * math.sqrt(n)
    decide = decidable_ratio(alpha, metrics, power=power)

    def needed(quantiles: float, end: int | None = None) -> int | None:
        def variance(repeats: int) -> float:
            if end is None:
                return scatter.variance(repeats)
            return scatter.variance_range(repeats)[end]

        return repeats_to_show(effect, n=n, quantiles=quantiles, variance=variance)

    documents, repeats = _cheapest(scatter, effect, available, alpha=level, power=power)
    return RepeatPlan(
        scatter=scatter,
        needed_to_detect=needed(detect),
        needed_to_detect_range=(needed(detect, 0), needed(detect, 1)),
        needed_to_decide=needed(decide),
        needed_to_decide_range=(needed(decide, 0), needed(decide, 1)),
        cheapest_documents=documents,
        cheapest_repeats=repeats,
    )


def _cheapest(
    scatter: AnswerScatter, effect: float, available: int, *, alpha: float, power: float
) -> tuple[int | None, int | None]:
    quantiles = detectable_drift(1.0, available, alpha=alpha, power=power) * math.sqrt(available)
    repeats = repeats_to_show(effect, n=available, quantiles=quantiles, variance=scatter.variance)
    if repeats is None:
        return None, None
    deviation = math.sqrt(scatter.variance(repeats))
    documents = paired_documents_to_detect(deviation, effect, alpha=alpha, power=power)
    if documents is None:
        return None, None
    return min(max(documents, FEWEST_FOR_T), available), repeats
