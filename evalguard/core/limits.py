"""Limits: absolute bounds of a gate, on how far two models' distributions and answers differ.

A margin in sigmas asks whether a metric got worse than its own noise. A limit asks whether a
figure of its own, KL say, stays below (a share: above) a number that the user set.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from evalguard.core.comparison import Comparison
from evalguard.core.noise_floor import DistributionComparison, Figure
from evalguard.core.reports.findings import Finding
from evalguard.errors import UsageError, nearest

Kind = Literal["upper", "lower"]
LimitState = Literal["passed", "regressed", "undecided", "failed"]

_PERCENTILES = {"kl_median": 50.0, "kl_p90": 90.0, "kl_p95": 95.0, "kl_p99": 99.0,
                "kl_p99.9": 99.9, "kl_max": 100.0}  # fmt: skip
KINDS: dict[str, Kind] = {
    "kl_mean": "upper",
    **dict.fromkeys(_PERCENTILES, "upper"),
    "dp_mean": "upper",
    "dp_rms": "upper",
    "same_top1": "lower",
    "same_topk": "lower",
    "same_answer": "lower",
}
OF_ANSWERS = "same_answer"
# The largest value that was seen has no interval: documents not seen may reach beyond.
_LITERAL = ("kl_max",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """An absolute limit: the largest value allowed; for a share, the smallest.

    ``dp_mean`` is about the size of the mean change in probability, whatever its sign.

    Raises:
        UsageError: for an unknown name, or a number that the figure cannot have.
    """

    metric: str
    value: float

    def __post_init__(self) -> None:
        if self.metric not in KINDS:
            raise UsageError(
                f"no limit can be set on '{self.metric}'{nearest(self.metric, KINDS)}",
                hint=f"limits: {', '.join(KINDS)}",
            )
        most = math.inf if self.metric.startswith("kl_") else 1.0
        number = isinstance(self.value, (int, float)) and not isinstance(self.value, bool)
        if not (number and 0.0 <= self.value <= most and self.value < math.inf):
            reach = "0 or more" if most == math.inf else "between 0 and 1"
            raise UsageError(f"the limit of {self.metric} is a number, {reach}, not {self.value!r}")

    @property
    def kind(self) -> Kind:
        """Whether the figure must stay below ("upper") or above ("lower") the limit."""
        return KINDS[self.metric]

    @property
    def of_distributions(self) -> bool:
        """Whether the two models' distributions have to be compared for it."""
        return self.metric != OF_ANSWERS


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitVerdict:
    """What a limit says of one task.

    Attributes:
        task, filter: what was measured; "" where no task gave the figure. Distributions have no
            filter. ``of`` is lm-eval's metric that an answer was chosen by; "" for distributions.
        value, interval, bounds: of the figure (see ``Figure``); None where there is none.
        state: "regressed" if the value is beyond the limit, and ``certain`` if its whole interval
            is; "undecided" if the value is within it but the interval reaches beyond, or there is
            none (of one document); "passed" if all of it is within, or the value of ``kl_max``,
            which never has an interval; "failed" without a value.
        reason: one sentence.
    """

    metric: str
    kind: Kind
    limit: float
    task: str
    filter: str = ""
    of: str = ""
    value: float | None
    interval: tuple[float, float] | None
    bounds: tuple[float, float] | None
    state: LimitState
    certain: bool
    reason: str


def judge_limits(
    limits: Sequence[Limit],
    distributions: Sequence[DistributionComparison],
    comparisons: Sequence[Comparison],
    *,
    only_certain: bool = False,
) -> tuple[LimitVerdict, ...]:
    """Hold every task to every limit; a limit that no task gives the figure of is "failed".

    With ``only_certain`` a value beyond its limit whose whole interval is not counts as undecided.
    """
    verdicts: list[LimitVerdict] = []
    for limit in limits:
        found = (
            [_of_distribution(limit, distribution) for distribution in distributions]
            if limit.of_distributions
            else [_of_answers(limit, c) for c in comparisons if c.same_answer is not None]
        )
        verdicts += found or [_unmeasured(limit)]
    if not only_certain:
        return tuple(verdicts)
    unsure = [v.state == "regressed" and not v.certain for v in verdicts]
    return tuple(
        replace(verdict, state="undecided") if doubt else verdict
        for verdict, doubt in zip(verdicts, unsure, strict=True)
    )


def figure_of(metric: str, distribution: DistributionComparison) -> Figure:
    """The figure that a limit of this name is about; without a value where there is none."""
    if metric in _PERCENTILES:
        return distribution.kl_at(_PERCENTILES[metric])
    if metric == "dp_mean":
        return _size(distribution.dp)
    figure: Figure = getattr(distribution, "kl" if metric == "kl_mean" else metric)
    return figure


def _size(figure: Figure) -> Figure:
    """The figure without its sign."""
    if figure.value is None or figure.interval is None:
        return Figure(value=None if figure.value is None else abs(figure.value))
    low, high = figure.interval
    least = 0.0 if low <= 0.0 <= high else min(abs(low), abs(high))
    largest = max(abs(low), abs(high))
    return Figure(value=abs(figure.value), stderr=figure.stderr, interval=(least, largest))


def _of_distribution(limit: Limit, distribution: DistributionComparison) -> LimitVerdict:
    figure = figure_of(limit.metric, distribution)
    verdict = _judge(limit, figure, task=distribution.task, missing=distribution.failure)
    if limit.metric != "kl_mean" or verdict.state != "passed":
        return verdict
    return replace(verdict, reason=f"{verdict.reason}; {_unseen(distribution)}")


def _unseen(distribution: DistributionComparison) -> str:
    """What n documents cannot show: a kind of document so rare that they may hold none of it.

    A share p is missing from n documents with chance (1 - p)^n (the rule of three).
    """
    n, noun = distribution.n, "documents"
    if distribution.clusters is not None:
        n, noun = distribution.clusters, "clusters"
    share = -math.expm1(math.log1p(-distribution.confidence) / n)
    return (
        f"{n:,} {noun} may hold none of a kind that is rarer than 1 in {math.floor(1.0 / share):,}"
    )


def _of_answers(limit: Limit, comparison: Comparison) -> LimitVerdict:
    figure = Figure(value=comparison.same_answer, interval=comparison.same_answer_interval)
    return _judge(
        limit, figure, task=comparison.task, filter=comparison.filter, of=comparison.metric
    )


def _unmeasured(limit: Limit) -> LimitVerdict:
    what = "distributions were compared" if limit.of_distributions else "answers are known"
    return _judge(limit, Figure(), task="", missing=f"of no task {what}")


def _judge(
    limit: Limit, figure: Figure, *, task: str, filter: str = "", of: str = "", missing: str = ""
) -> LimitVerdict:
    state, certain = _state(limit, figure)
    return LimitVerdict(
        metric=limit.metric,
        kind=limit.kind,
        limit=limit.value,
        task=task,
        filter=filter,
        of=of,
        value=figure.value,
        interval=figure.interval,
        bounds=figure.bounds,
        state=state,
        certain=certain,
        reason=_reason(limit, figure, state, certain) if not missing else f"not known: {missing}",
    )


def _state(limit: Limit, figure: Figure) -> tuple[LimitState, bool]:
    if figure.value is None or math.isnan(figure.value):
        return "failed", False
    if figure.interval is None and not _beyond(limit, figure.value):
        return ("passed" if limit.metric in _LITERAL else "undecided"), False
    low, high = figure.interval or (figure.value, figure.value)
    farthest, nearest_end = (high, low) if limit.kind == "upper" else (low, high)
    if _beyond(limit, figure.value):
        return "regressed", figure.interval is not None and _beyond(limit, nearest_end)
    return ("undecided" if _beyond(limit, farthest) else "passed"), False


def _beyond(limit: Limit, value: float) -> bool:
    return value > limit.value if limit.kind == "upper" else value < limit.value


def _reason(limit: Limit, figure: Figure, state: LimitState, certain: bool) -> str:
    side = "above" if limit.kind == "upper" else "below"
    where = f"{side} the limit" if state == "regressed" else "within the limit"
    if state == "failed":
        return "not known: it has no value"
    if figure.interval is None:
        said = f"{where}; no interval can be given"
    elif state == "undecided":
        said = f"{where}, but its interval reaches {side} it"
    elif state == "regressed" and not certain:
        said = f"{where}, but its interval reaches within it"
    else:
        said = f"{where}, and so is its whole interval"
    if figure.bounds is not None and state != "regressed" and _beyond(limit, figure.bounds[1]):
        said += f"; it is an estimate, and its proven bound reaches {side} the limit"
    return said


# What a gate's verdicts come to: one state, and one sentence.


GateState = Literal["passed", "regressed", "undecided", "failed"]
Key = tuple[str, str, str]
ByState = Mapping[GateState, tuple[Key, ...]]

_GRAVEST_FIRST: tuple[GateState, ...] = ("regressed", "failed", "undecided")
_MOST_NAMED = 3


def overall(by_state: ByState, limits: Sequence[LimitVerdict], *, compared: bool) -> GateState:
    """The gravest state of any metric or limit; "failed" where nothing was compared."""
    of_limits = {limit.state for limit in limits}
    for state in _GRAVEST_FIRST:
        if by_state[state] or state in of_limits:
            return state
    return "passed" if compared else "failed"


def reason(
    by_state: ByState,
    limits: Sequence[LimitVerdict],
    total: int,
    *,
    accepted: int = 0,
    shown: int = 0,
) -> str:
    """Say which metrics and limits brought about what.

    Args:
        accepted: gated metrics that regressed and that waivers let through.
        shown: metrics that were compared and are not gated.
    """
    if total == 0 and not limits and shown:
        return (
            f"the gate judges none of the {shown} metrics compared (only and advisory of the gate "
            "leave out all of them), so nothing is known"
        )
    if total == 0 and not limits:
        return "nothing was compared, so nothing is known"
    parts = []
    for state in _GRAVEST_FIRST:
        names = [f"{task} {metric}" for task, _, metric in by_state[state]]
        parts += _count(names, f"of {total} gated metrics {state}")
        beyond = [f"{v.task} {v.metric}".strip() for v in limits if v.state == state]
        parts += _count(beyond, f"of {len(limits)} limits {state}")
    if accepted:
        parts.append(f"{accepted} of {total} gated metrics regressed and accepted by waivers")
    return "; ".join(parts) or _passed(total, len(limits))


def _count(names: Sequence[str], what: str) -> list[str]:
    if not names:
        return []
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return [f"{len(names)} {what} ({', '.join(names[:_MOST_NAMED])}{more})"]


def _passed(total: int, limits: int) -> str:
    if total == 0:
        return f"all {limits} limits kept"
    metrics = "the gated metric passed" if total == 1 else f"all {total} gated metrics passed"
    return metrics + (f", and all {limits} limits kept" if limits else "")


# Waiver: a known degradation that is accepted, up to a size and until a date.


SOON = 14
"""Days before its end at which a waiver is announced to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiver:
    """What somebody decided about one metric of a pair.

    Attributes:
        filter: "" stands for all filters.
        up_to: the largest sigma that is accepted.
        until: the last day (UTC) on which it counts, YYYY-MM-DD.
        where: ``FILE:LINE`` that says so.
    """

    task: str
    metric: str
    filter: str = ""
    up_to: float
    until: str
    reason: str
    where: str = ""

    @property
    def label(self) -> str:
        """Task and metric, with the filter where it names one."""
        return " ".join(filter(None, (self.task, self.metric, self.filter)))

    def names(self, comparison: Comparison) -> bool:
        """Whether it is about a comparison's metric."""
        asked = (self.task, self.metric)
        same_filter = self.filter in ("", comparison.filter)
        return asked == (comparison.task, comparison.metric) and same_filter

    def covers(self, comparison: Comparison, today: str) -> bool:
        """Whether it accepts a comparison on a day, YYYY-MM-DD."""
        sigma = comparison.sigma
        known = sigma is not None and sigma <= self.up_to
        return known and today <= self.until and self.names(comparison)


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedDrift:
    """A metric that regressed and that the gate lets through, by a waiver."""

    key: Key
    waiver: Waiver


def accept_drift(
    waivers: Sequence[Waiver], regressed: Iterable[Comparison], today: str
) -> tuple[AcceptedDrift, ...]:
    """Return which of the regressed comparisons a waiver covers; the first waiver counts."""
    found = []
    for comparison in regressed:
        waiver = next((one for one in waivers if one.covers(comparison, today)), None)
        if waiver is not None:
            key = (comparison.task, comparison.filter, comparison.metric)
            found.append(AcceptedDrift(key=key, waiver=waiver))
    return tuple(found)


def find_unused_waivers(
    waivers: Sequence[Waiver],
    comparisons: Sequence[Comparison],
    used: Collection[Waiver],
    today: str,
) -> Iterator[Finding]:
    """What to say of every waiver that is not simply in use.

    Args:
        used: waivers that a comparison was accepted by.
    """
    for waiver in waivers:
        about = [comparison for comparison in comparisons if waiver.names(comparison)]
        state, text = _waiver_state(waiver, about, today, used=waiver in used)
        if state is not None:
            where = f" ({waiver.where})" if waiver.where else ""
            yield Finding(
                kind="waiver",
                text=f"waiver of {waiver.label}: {text}{where}",
                task=waiver.task,
                filter=waiver.filter,
                metric=waiver.metric,
                values={"state": state, "until": waiver.until, "up_to": waiver.up_to},
            )


_WaiverState = Literal["expired", "names_nothing", "exceeded", "not_needed", "ends_soon"]


def _waiver_state(
    waiver: Waiver, about: Sequence[Comparison], today: str, *, used: bool
) -> tuple[_WaiverState | None, str]:
    if today > waiver.until:
        return "expired", (
            f"it EXPIRED on {waiver.until} and counts no more: decide anew, or remove it "
            f"(its reason was: {waiver.reason})"
        )
    if not about:
        return "names_nothing", "it names nothing that was compared"
    beyond = [c for c in about if c.outcome == "regressed" and (c.sigma or 0.0) > waiver.up_to]
    if beyond:
        return "exceeded", (
            f"sigma {beyond[0].sigma:.3g} is beyond the {waiver.up_to:g} that it accepts"
        )
    if not used:
        return "not_needed", "it is not needed in this run"
    left = _days(today, waiver.until)
    if left > SOON:
        return None, ""
    return "ends_soon", f"it ends in {left} days, on {waiver.until}"


def _days(today: str, until: str) -> int:
    return int((np.datetime64(until) - np.datetime64(today)).astype(np.int64))
