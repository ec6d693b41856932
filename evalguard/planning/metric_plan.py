"""MetricPlan: what n documents would show about one metric, and how many would be enough."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from evalguard.core.verdict import Margin
from evalguard.planning.pilot import Pilot
from evalguard.planning.repeat_plan import RepeatPlan, plan_repeats
from evalguard.stats.compare_scores import FIGURE_MARGIN
from evalguard.stats.power import (
    decidable_ratio,
    detectable_drift,
    detectable_flip_drift,
    documents_to_decide,
    flip_documents_to_detect,
    flip_documents_to_show_harmless,
    paired_documents_to_detect,
)
from evalguard.stats.scatter import FEWEST_FOR_T, Range


@dataclass(frozen=True, slots=True, kw_only=True)
class AimFacts:
    """What a plan is made for.

    Attributes:
        margin: the drift that matters, in standard errors of the base (sigma); where it was given
            in another unit, the smallest that it comes to over the metrics.
        alpha: one-sided level of the test, (1 - confidence) / 2.
        power: chance to see a drift that is there.
        confidence: of all intervals.
    """

    margin: float
    alpha: float
    power: float
    confidence: float


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
        detectable_sigma: the smallest drift that n documents show to be real among the gated
            metrics; None without numbers, and where the base does not scatter.
        detectable_sigma_range, needed_to_detect_range: what the pilot leaves open.
        needed_to_show_harmless_range, needed_to_decide_range: likewise.
        detectable_change: the same in units of the metric.
        needed_to_detect: documents that detect a drift of the margin; may exceed n. At least
            ``FEWEST_FOR_T``, or so many clusters, where a t test decides.
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
    aim = _Aim(margin=in_sigma, n=n, alpha=alpha, power=power, metrics=max(metrics, 1))
    ends = [rule(pilot, ratio, aim) for ratio in pilot.ratio_range]
    at = _UNSAID if pilot.carried_by_few else rule(pilot, pilot.ratio, aim)
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
        detectable_sigma_range=(
            None if pilot.in_points else (ends[0].sigma or 0.0, ends[1].sigma or math.inf)
        ),
        detectable_change=None if at.sigma is None else at.sigma * base_stderr,
        needed_to_detect=at.detect,
        needed_to_detect_range=(ends[0].detect, ends[1].detect),
        needed_to_show_harmless=at.harmless,
        needed_to_show_harmless_range=(ends[0].harmless, ends[1].harmless),
        needed_to_decide=at.decide,
        needed_to_decide_range=(ends[0].decide, ends[1].decide),
        repeats=repeats,
        method="paired-t" if pilot.flip_rate is None else "mcnemar-mid-p",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Aim:
    """What n documents are to show: a margin in sigma, at the level that each metric may need."""

    margin: float
    n: int
    alpha: float
    power: float
    metrics: int

    @property
    def tolerated(self) -> float:
        """The margin in units of the base's scatter, where SE_base over n is 1 / sqrt(n)."""
        return self.margin / math.sqrt(self.n)

    @property
    def level(self) -> float:
        """At which a drift is real, whatever Holm's procedure asks (Bonferroni's)."""
        return self.alpha / self.metrics


@dataclass(frozen=True, slots=True)
class _Answer:
    sigma: float | None
    detect: int | None
    harmless: int | None
    decide: int | None


_UNSAID = _Answer(None, None, None, None)


def _deciding(pilot: Pilot, ratio: float, aim: _Aim) -> int | None:
    """Documents that decide; ``ratio`` in units of the base's scatter."""
    fewest = max(_documents(FEWEST_FOR_T, pilot), pilot.fewest)
    if not (ratio > 0.0 and math.isfinite(ratio) and aim.tolerated > 0.0):
        return fewest if ratio == 0.0 and aim.tolerated > 0.0 else None
    least = decidable_ratio(aim.alpha, aim.metrics, power=aim.power)
    fresh = math.ceil((least * ratio / aim.tolerated) ** 2)
    if fresh <= pilot.n:
        return max(fewest, fresh)
    needed = documents_to_decide(
        aim.tolerated / ratio * math.sqrt(pilot.n),
        known=pilot.n,
        alpha=aim.alpha,
        metrics=aim.metrics,
        fixed=True,
        power=aim.power,
    )
    return None if needed is None else max(needed, fewest)


def _documents(units: int, pilot: Pilot) -> int:
    """In so many units, documents or clusters of them."""
    return math.ceil(units * pilot.per_unit)


def _mean_rule(pilot: Pilot, ratio: float, aim: _Aim) -> _Answer:
    """In units of the base's scatter; of clusters, by how many of them there are."""
    scatter = ratio / math.sqrt(pilot.per_unit)  # of a mean over one of the units

    def needed(level: float) -> int | None:
        count = paired_documents_to_detect(scatter, aim.tolerated, alpha=level, power=aim.power)
        return None if count is None else _documents(max(FEWEST_FOR_T, count), pilot)

    detectable, units = math.inf, max(2, math.floor(aim.n / pilot.per_unit))
    if math.isfinite(ratio):
        shown = detectable_drift(scatter, units, alpha=aim.level, power=aim.power)
        detectable = shown * math.sqrt(pilot.per_unit * units)
    return _Answer(detectable, needed(aim.level), needed(aim.alpha), _deciding(pilot, ratio, aim))


def _flip_rule(pilot: Pilot, ratio: float, aim: _Aim) -> _Answer:
    """The share of flips behind a ratio is (ratio * s_base)^2; a drift flips its own at least."""
    unit = pilot.base_scatter / math.sqrt(aim.n)
    tolerated = aim.margin * unit
    rate = min(1.0, (ratio * pilot.base_scatter) ** 2)
    scatter = math.sqrt(min(1.0, max(rate, tolerated))) / pilot.base_scatter
    return _Answer(
        detectable_flip_drift(rate, aim.n, alpha=aim.level, power=aim.power) / unit,
        flip_documents_to_detect(rate, tolerated, alpha=aim.level, power=aim.power),
        flip_documents_to_show_harmless(rate, tolerated, alpha=aim.alpha, power=aim.power),
        _deciding(pilot, scatter, aim),
    )
