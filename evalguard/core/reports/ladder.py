"""A ladder: candidates of one base in rows, with how far each has moved from it over all tasks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from evalguard.core.distribution_comparison import DistributionComparison, Figure
from evalguard.core.gate_state import GateState
from evalguard.core.reports.checkpoint_size import CheckpointSize
from evalguard.core.reports.compare_report import CompareReport
from evalguard.core.reports.several_report import NoVerdict, state_of

TAIL_PERCENT = 99.9


@dataclass(frozen=True, slots=True, kw_only=True)
class LadderRow:
    """One candidate.

    Attributes:
        outcome: its comparison with the base; without a verdict the reason of that.
        kl: mean KL(base || candidate) over the scored tokens of all tasks, in nats a token.
        kl_tail: KL that 99.9% of the tokens do not exceed, of the task where that is largest.
        same_top1: share of tokens where both find the same token most probable, over all tasks.
        unknown: why there is no KL; "" where there is.
    """

    outcome: CompareReport | NoVerdict
    kl: Figure = field(default_factory=Figure)
    kl_tail: Figure = field(default_factory=Figure)
    same_top1: Figure = field(default_factory=Figure)
    unknown: str = ""

    @property
    def name(self) -> str:
        """The candidate's name."""
        one = self.outcome
        return one.name if isinstance(one, NoVerdict) else one.candidate.name

    @property
    def state(self) -> GateState:
        """What its gate came to."""
        return state_of(self.outcome)

    @property
    def size(self) -> CheckpointSize | None:
        """What is stored of it; None where nobody looked."""
        return None if isinstance(self.outcome, NoVerdict) else self.outcome.candidate.size


def ladder_rows(outcomes: Sequence[CompareReport | NoVerdict]) -> tuple[LadderRow, ...]:
    """Return a row for each candidate, in order.

    KL is over the tasks of which any row has one: a row that lacks one of them has no KL, since it
    would be that of other tokens than the others'.
    """
    reports = [one for one in outcomes if isinstance(one, CompareReport)]
    known = [one.task for report in reports for one in report.distributions if not one.failure]
    tasks = tuple(dict.fromkeys(known))
    return tuple(_row(one, tasks) for one in outcomes)


def _row(one: CompareReport | NoVerdict, tasks: Sequence[str]) -> LadderRow:
    if isinstance(one, NoVerdict):
        return LadderRow(outcome=one, unknown=f"no verdict: {one.reason}")
    found = {each.task: each for each in one.distributions}
    if not tasks:
        why = next((each.failure for each in one.distributions if each.failure), "")
        return LadderRow(outcome=one, unknown=why or "distributions were not compared")
    for task in tasks:
        if task not in found:
            return LadderRow(outcome=one, unknown=f"{task}: distributions were not compared")
        if found[task].failure:
            return LadderRow(outcome=one, unknown=f"{task}: {found[task].failure}")
    of_tasks = [found[task] for task in tasks]
    return LadderRow(
        outcome=one,
        kl=pool_tasks([(each.positions, each.kl) for each in of_tasks]),
        kl_tail=max((each.kl_at(TAIL_PERCENT) for each in of_tasks), key=_size),
        same_top1=pool_tasks([(each.positions, each.same_top1) for each in of_tasks]),
        unknown=_without_value(of_tasks),
    )


def _without_value(of_tasks: Sequence[DistributionComparison]) -> str:
    missing = [one.task for one in of_tasks if one.kl.value is None]
    return f"{missing[0]}: no number came out" if missing else ""


def _size(figure: Figure) -> float:
    return -math.inf if figure.value is None else figure.value


def pool_tasks(figures: Sequence[tuple[int, Figure]]) -> Figure:
    """Return a mean over the scored tokens of several tasks, from (tokens, mean over them) each.

    Tasks share no document, so that errors add up in squares. The interval keeps the asymmetry of
    the tasks' own ones: each end is as far from the mean as the root of the sum of their squared
    weighted distances there (Zou and Donner, Statistics in Medicine 27, 2008).
    """
    if len(figures) == 1:
        return figures[0][1]
    total = sum(tokens for tokens, _ in figures)
    parts = [(tokens / total, one, one.value) for tokens, one in figures if total]
    known = [(weight, one, value) for weight, one, value in parts if value is not None]
    if not known or len(known) < len(figures):
        return Figure()
    mean = sum(weight * value for weight, _, value in known)
    if not math.isfinite(mean):
        return Figure(value=mean)
    errors = [None if one.stderr is None else weight * one.stderr for weight, one, _ in known]
    ends = [
        None
        if one.interval is None
        else (weight * (value - one.interval[0]), weight * (one.interval[1] - value))
        for weight, one, value in known
    ]
    stderr = interval = bounds = None
    if None not in errors:
        stderr = math.hypot(*(error for error in errors if error is not None))
    if None not in ends:
        below, above = zip(*(end for end in ends if end is not None), strict=True)
        interval = (mean - math.hypot(*below), mean + math.hypot(*above))
    if any(one.bounds is not None for _, one, _ in known):
        proven = [(weight, one.bounds or (value, value)) for weight, one, value in known]
        bounds = (
            sum(weight * low for weight, (low, _) in proven),
            sum(weight * high for weight, (_, high) in proven),
        )
    return Figure(value=mean, stderr=stderr, interval=interval, bounds=bounds)
