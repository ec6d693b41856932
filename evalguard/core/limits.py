"""Limits: absolute bounds of a gate, on distributions, equal answers, and figures of answers.

A margin in sigmas asks whether a metric got worse than its own noise. A limit asks whether a
figure of its own, KL say, stays below (a share: above) a number that the user set. One on a figure
of generated answers is about the candidate alone: how many of its texts loop, say.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from evalguard.core.comparison import Comparison
from evalguard.core.distribution_comparison import DistributionComparison, Figure
from evalguard.core.figures import FIGURES, INSTEAD_OF, FigureShare, split_name, unseen_kind
from evalguard.core.shown_tokens import KlEstimate
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
    **{
        figure.name: "upper" if figure.worse == "more" else "lower"
        for figure in FIGURES.values()
        if figure.worse is not None and figure.unit == "share"
    },
}
# Of what a task's metrics take for an answer, where they show that; else of whole answers.
OF_ANSWERS = "same_answer"
# What is known of servers' distributions from below: enough to break a limit, never to keep it.
BOUNDED = ("kl_mean",)
# The largest value that was seen has no interval: documents not seen may reach beyond.
_LITERAL = ("kl_max",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """An absolute limit: the largest value allowed; for a share, the smallest.

    ``dp_mean`` is about the size of the mean change in probability, whatever its sign. A limit of
    0 on a share that must stay below it, or of 1 on one that must stay above, is meant literally.

    Attributes:
        task: that it is about, of a figure of generated answers; "": every task that has none of
            its own. ``filter`` likewise, of a figure that is of what a filter finds.

    Raises:
        UsageError: for an unknown name, or a number that the figure cannot have.
    """

    metric: str
    value: float
    task: str = ""
    filter: str = ""

    def __post_init__(self) -> None:
        if self.metric not in KINDS:
            shown = FIGURES.get(self.metric)
            raise UsageError(
                f"no limit can be set on '{self.metric}'{nearest(self.metric, KINDS)}",
                hint=f"limits: {', '.join(KINDS)}"
                if shown is None
                else f"limit {INSTEAD_OF[self.metric]} instead"
                if self.metric in INSTEAD_OF
                else f"{self.metric} is no share: a margin in per cent holds its drift "
                f"(gate: {{metrics: {{{self.metric}: {{margin: 10%, higher_is_better: false}}}}}})",
            )
        if (self.task or self.filter) and not self.of_figure:
            raise UsageError(
                f"a limit on {self.metric} holds for every task, and '{self.name}' names one",
                hint=f"write {self.metric}",
            )
        most = math.inf if self.metric.startswith("kl_") else 1.0
        number = isinstance(self.value, (int, float)) and not isinstance(self.value, bool)
        if not (number and 0.0 <= self.value <= most and self.value < math.inf):
            reach = "0 or more" if most == math.inf else "between 0 and 1"
            raise UsageError(f"the limit of {self.metric} is a number, {reach}, not {self.value!r}")

    @classmethod
    def parse(cls, name: str, value: object) -> Limit:
        """Read METRIC or TASK/METRIC, and 0.02 or, of a share, "2%".

        Raises:
            UsageError: as the class.
        """
        task, metric, filter_name = split_name(name)
        number: object = value
        if isinstance(value, str) and value.strip().endswith("%"):
            try:
                number = float(value.strip()[:-1]) / 100.0
            except ValueError:
                number = value
        return cls(metric=metric, value=number, task=task, filter=filter_name)  # type: ignore[arg-type]

    @property
    def name(self) -> str:
        """As people write it: "loops", "gsm8k/loops", "no_answer,strict-match"."""
        task, of_filter = (f"{self.task}/" if self.task else ""), f",{self.filter}"
        return f"{task}{self.metric}{of_filter if self.filter else ''}"

    def covers(self, share: FigureShare) -> bool:
        """Whether it is about a figure of a task; whether another limit is more so, aside."""
        return share.metric == self.metric and (
            (not self.task or self.task == share.task)
            and (not self.filter or self.filter == share.filter)
        )

    @property
    def kind(self) -> Kind:
        """Whether the figure must stay below ("upper") or above ("lower") the limit."""
        return KINDS[self.metric]

    @property
    def of_distributions(self) -> bool:
        """Whether the two models' distributions have to be compared for it."""
        return not self.of_figure

    @property
    def of_figure(self) -> bool:
        """Whether it is about a figure of the candidate's generated answers."""
        return self.metric in FIGURES

    @property
    def is_literal(self) -> bool:
        """Whether not one document may break it: no interval can say more than the documents do."""
        end = 0.0 if self.kind == "upper" else 1.0
        return self.of_figure and self.value == end


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
        limit: that ``metric``, the figure's name, is held to; ``kind`` says from which side.
        metric: name of the figure.
        kind: whether the figure must stay below or above the limit.
        at_least: the value is no more than a lower bound of the figure, of tokens that servers
            show: it breaks a limit, and where it does not nothing is known ("failed"). No end of
            the interval is above it, but infinity.
        of: lm-eval metric that the answers were chosen by; "" for distributions.
        certain: the whole interval is beyond the limit.
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
    at_least: bool = False

    @property
    def of_figure(self) -> bool:
        """Whether it is about a figure of generated answers, not of what a metric takes of them."""
        return self.metric in FIGURES and not self.of


def judge_limits(
    limits: Sequence[Limit],
    distributions: Sequence[DistributionComparison],
    comparisons: Sequence[Comparison],
    shares: Sequence[FigureShare] = (),
    *,
    only_certain: bool = False,
    bounds: Sequence[KlEstimate] = (),
) -> tuple[LimitVerdict, ...]:
    """Hold every task to every limit; a limit that no task gives the figure of is "failed".

    With ``only_certain`` a value beyond its limit whose whole interval is not counts as undecided;
    a limit that not one document may break is broken for certain by one.

    Args:
        shares: figures of the candidate's generated answers, of every task that has them.
        bounds: lower bounds of KL of tasks whose whole distributions nobody shows.
    """
    verdicts: list[LimitVerdict] = []
    for limit in limits:
        if limit.of_figure:
            taken = [c for c in comparisons if _shows_answers(limit, c)]
            tasks = {c.task for c in taken}
            covered = [share for share in shares if limit.covers(share) and share.task not in tasks]
            judged = [
                *(_of_answers(limit, c) for c in taken),
                *(
                    _of_share(limit, share)
                    for share in covered
                    if closest_limit(limits, share) == limit
                ),
            ]
            if covered and not judged:
                continue  # every task has a limit of its own
        else:
            judged = [_of_distribution(limit, distribution) for distribution in distributions]
            if limit.metric in BOUNDED:
                measured = {distribution.task for distribution in distributions}
                judged += [
                    _of_bound(limit, estimate, only_certain=only_certain)
                    for estimate in bounds
                    if estimate.task not in measured
                ]
        verdicts += judged or [_unmeasured(limit)]
    if not only_certain:
        return tuple(verdicts)
    unsure = [v.state == "regressed" and not v.certain for v in verdicts]
    return tuple(
        replace(verdict, state="undecided") if doubt else verdict
        for verdict, doubt in zip(verdicts, unsure, strict=True)
    )


def _shows_answers(limit: Limit, of: Comparison) -> bool:
    """Whether a metric shows what it takes for an answer, and a limit is about that."""
    about = limit.metric == OF_ANSWERS and (not limit.task or limit.task == of.task)
    return about and of.same_answer is not None and limit.filter in ("", of.filter)


def closest_limit(limits: Sequence[Limit], share: FigureShare) -> Limit:
    """The limit that says most of where it holds: of a task before that of every task."""
    covering = (limit for limit in limits if limit.covers(share))
    return max(covering, key=lambda limit: (bool(limit.task), bool(limit.filter)))


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


def _of_bound(limit: Limit, estimate: KlEstimate, *, only_certain: bool) -> LimitVerdict:
    """What a lower bound of KL says of its limit: that it is broken, or nothing.

    The mean of the positions' bounds is no more than the mean KL over the same positions, and the
    same holds of the population of documents: what the interval of the one lies above, KL does.
    """
    value, interval = estimate.kl_at_least.value, estimate.kl_at_least.interval
    unknown = _judge(limit, Figure(), task=estimate.task, missing=estimate.failure or "no value")
    if value is None or math.isnan(value):
        return replace(unknown, at_least=True)
    low = None if interval is None else interval[0]
    certain = low is not None and _beyond(limit, low)
    if not (certain if only_certain else _beyond(limit, value)):
        message = (
            f"not known: at least {value:.2g}, from the {estimate.tokens or 0.0:.3g} tokens a "
            f"position that both sides show, with {100.0 * (estimate.mass_seen.value or 0.0):.3g}% "
            "of the base's probability; nothing bounds it from above"
        )
        return replace(unknown, reason=message, at_least=True)
    figure = Figure(
        value=value,
        interval=None if low is None else (low, math.inf),
        bounds=(value, math.inf),
    )
    verdict = _judge(limit, figure, task=estimate.task)
    return replace(
        verdict,
        reason="a lower bound is above the limit, so the mean KL is"
        + (
            ", and so is the bound's whole interval"
            if certain
            else ", on these documents; the bound's interval reaches within it"
        ),
        at_least=True,
    )


def _unseen(distribution: DistributionComparison) -> str:
    """What n documents cannot show."""
    clusters = distribution.clusters
    return unseen_kind(
        distribution.n if clusters is None else clusters,
        clustered=clusters is not None,
        confidence=distribution.confidence,
    )


def _of_share(limit: Limit, share: FigureShare) -> LimitVerdict:
    figure = share.figure
    verdict = _judge(limit, figure, task=share.task, filter=share.filter, missing=share.unknown_why)
    if figure.value is None:
        return verdict
    message = f"{verdict.reason}; {share.known_text}" if share.unknown else verdict.reason
    if limit.is_literal and verdict.state == "regressed":
        verdict = replace(verdict, certain=True)
        message = "beyond the limit, which not one document may break"
    elif limit.is_literal:
        verdict = replace(verdict, state="passed")
        message = f"kept literally; {share.unseen_text}"
    if verdict.state == "passed" and share.unknown and _beyond(limit, share.worst(limit.kind)):
        # what nobody knows is not counted as kept
        verdict = replace(verdict, state="undecided")
        message = f"within the limit on {share.known_text}, which could break it"
    return replace(verdict, reason=message)


def _of_answers(limit: Limit, comparison: Comparison) -> LimitVerdict:
    figure = Figure(value=comparison.same_answer, interval=comparison.same_answer_interval)
    return _judge(
        limit, figure, task=comparison.task, filter=comparison.filter, of=comparison.metric
    )


def _unmeasured(limit: Limit) -> LimitVerdict:
    if limit.of_figure and limit.name != OF_ANSWERS:
        where = f"of {limit.task} " if limit.task else "of no task "
        missing = where + ("no generated answers are known" if limit.task else _NO_TEXTS)
        return _judge(limit, Figure(), task=limit.task, missing=missing)
    what = "distributions were compared" if limit.of_distributions else "answers are known"
    return _judge(limit, Figure(), task="", missing=f"of no task {what}")


_NO_TEXTS = "generated answers are known, and it is a figure of these (name a task that generates)"


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
        message = f"{where}; no interval can be given"
    elif state == "undecided":
        message = f"{where}, but its interval reaches {side} it"
    elif state == "regressed" and not certain:
        message = f"{where}, but its interval reaches within it"
    else:
        message = f"{where}, and so is its whole interval"
    if figure.bounds is not None and state != "regressed" and _beyond(limit, figure.bounds[1]):
        message += f"; it is an estimate, and its proven bound reaches {side} the limit"
    return message
