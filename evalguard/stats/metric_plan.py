"""MetricPlan: what n documents would show about one metric, and how many would be enough."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from evalguard.core.verdict import Margin
from evalguard.stats.compare_scores import FIGURE_MARGIN
from evalguard.stats.documents_needed import decidable_ratio, documents_to_decide
from evalguard.stats.flip_power import (
    detectable_flip_drift,
    flip_documents_to_detect,
    flip_documents_to_show_harmless,
)
from evalguard.stats.pilot import Pilot
from evalguard.stats.power import detectable_drift, paired_documents_to_detect
from evalguard.stats.repeat_plan import FEWEST_FOR_T, RepeatPlan, plan_repeats
from evalguard.stats.scatter import Range

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
        detectable_sigma: the smallest drift that n documents detect; None without numbers, and
            where the base does not scatter.
        detectable_sigma_range, needed_to_detect_range: what the pilot leaves open.
        needed_to_show_harmless_range, needed_to_decide_range: likewise.
        detectable_change: the same in units of the metric.
        needed_to_detect: documents that detect a drift of the margin; may exceed n. At least
            ``FEWEST_FOR_T`` where a t test decides.
        needed_to_show_harmless: documents after which a candidate without a drift is shown to
            stay below the margin (non-inferiority).
        needed_to_decide: documents after which the verdict is decided, whatever the true drift is:
            those that an undecided comparison of the pilot's documents asks for.
        repeats: the answers to each document that it takes; None where these are not sampled, do
            not vary, or nobody shows them.
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
    repeats: RepeatPlan | None = None
    method: str = "none"

    @property
    def margin_text(self) -> str:
        """The drift that matters, in the unit in which it was given."""
        return self.given.text if self.given else f"{self.margin:.12g} sigma"


def plan_metric(
    pilot: Pilot,
    *,
    n: int,
    margin: float | Margin,
    alpha: float,
    power: float,
    metrics: int = 1,
    available: int | None = None,
) -> MetricPlan:
    """Plan a run of n documents (at least 2) from a pilot.

    With r = ``pilot.ratio``, n documents detect (t_{1-alpha} + t_{power}) r sigma, whatever n: the
    base's standard error shrinks as the paired one does. A margin in sigma is therefore taken at
    the n of the run that is planned, where it is a drift of margin * s_base / sqrt(n), and the
    documents needed are those that detect this drift. A margin in points or percent is the same
    drift whatever n; it is relative to the pilot's base.

    Args:
        metrics: that the gate judges together.
        available: documents of the task; None: n.
    """
    given = margin if isinstance(margin, Margin) else Margin(margin)
    base_stderr = pilot.base_stderr * math.sqrt(pilot.n / n)
    if pilot.in_points:
        given = FIGURE_MARGIN if given.unit == "sigma" else given
        base_stderr = 1.0 / math.sqrt(n)
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
    sigma = None if pilot.in_points else at.sigma
    repeats = None
    if pilot.answers is not None:
        repeats = plan_repeats(
            pilot.answers,
            in_sigma * base_stderr,
            n=n,
            available=max(n, available or n),
            alpha=alpha,
            power=power,
            metrics=metrics,
        )
    return MetricPlan(
        pilot=pilot,
        n=n,
        margin=None if pilot.in_points else in_sigma,
        given=given,
        alpha=alpha,
        power=power,
        base_stderr=0.0 if pilot.in_points else base_stderr,
        detectable_sigma=sigma,
        detectable_sigma_range=None if sigma is None else (ends[0].sigma, ends[1].sigma),
        detectable_change=at.sigma * base_stderr,
        needed_to_detect=at.detect,
        needed_to_detect_range=(ends[0].detect, ends[1].detect),
        needed_to_show_harmless=at.harmless,
        needed_to_show_harmless_range=(ends[0].harmless, ends[1].harmless),
        needed_to_decide=_deciding(pilot, pilot.ratio, tolerated, *aim),
        needed_to_decide_range=(deciding[0], deciding[1]),
        repeats=repeats,
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
