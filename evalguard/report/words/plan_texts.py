"""The sentences of a plan of sample sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from evalguard.core.figure_names import is_figure
from evalguard.core.repeat_command import planned_as_comparison
from evalguard.core.reports.plan_report import PlanReport
from evalguard.report.words import rounding
from evalguard.report.words.metric_labels import format_percent, margin_text
from evalguard.report.words.plain_text import printable
from evalguard.stats.limit_plan import LimitPlan
from evalguard.stats.metric_plan import MetricPlan


def plan_metric_name(plan: MetricPlan) -> str:
    """Return "perplexity", or "exact_match (flexible-extract)" where a filter has a name."""
    pilot = plan.pilot
    named = pilot.filter not in ("", "none")
    return printable(f"{pilot.metric} ({pilot.filter})" if named else pilot.metric)


def list_metrics_by_task(plans: Sequence[MetricPlan]) -> str:
    """Return "lastword perplexity, acc; choice acc": each task once."""
    tasks: dict[str, list[str]] = {}
    for plan in plans:
        tasks.setdefault(printable(plan.pilot.task), []).append(plan_metric_name(plan))
    return "; ".join(f"{task} {', '.join(metrics)}" for task, metrics in tasks.items())


def plan_margin_text(plan: MetricPlan) -> str:
    """Return "1.0 sigma", or "1pp" where the margin is in another unit."""
    if plan.given is None or plan.given.unit == "sigma":
        return f"{margin_text(plan.margin or 0.0)} sigma"
    return plan.given.text


def pilot_sentence(report: PlanReport) -> str:
    """Say where the numbers come from."""
    pilot = report.pilot
    if pilot.kind == "sample":
        return (
            f"Pilot: {rounding.format_count(pilot.documents or 0)} documents of each task, "
            "drawn at "
            f"random (seed {pilot.seed})."
        )
    if pilot.kind == "evalguard run":
        return f"Pilot: the stored run {printable(pilot.folder or '')}."
    return f"Pilot: all documents of the two {pilot.kind}."


def aim_sentence(report: PlanReport) -> str:
    """Say what "seen" means, by which approximation."""
    aim = report.aim
    return (
        f"seen: with a chance of {format_percent(aim.power)} by the paired test, one-sided at "
        "alpha = "
        f"{aim.alpha:.4g} over all gated metrics together; ranges at "
        f"{format_percent(aim.confidence)}. t approximation for means, normal approximation of "
        "McNemar's test for 0/1 metrics. decided: whatever the true drift is"
    )


def plan_conclusion(report: PlanReport) -> str:
    """Say in one sentence whether the planned documents are enough."""
    plans = [plan for plan in report.metrics if not plan.pilot.problem]
    if not plans:
        return "Nothing can be planned from this pilot."
    worst = max(plans, key=_shortage)
    margin = plan_margin_text(worst)
    if worst.given is not None and worst.given.unit != "sigma" and worst.margin is not None:
        margin += f" ({worst.margin:.2g} sigma)"
    where = f"{printable(worst.pilot.task)} {plan_metric_name(worst)}"
    sure = _most_documents(worst)
    documents = f"{rounding.format_count(worst.n)} documents"
    if sure is not None and sure <= worst.n:
        several = len(plans) > 1
        return (
            f"Enough documents{' for every metric' if several else ''}: at most "
            f"{rounding.format_count(sure)} of {documents} (--limit) decide at a margin of "
            f"{margin}, on {where}{', the hardest' if several else ''}."
        )
    needed = _needed(worst)
    if needed is not None and needed <= worst.n:
        return (
            f"Probably enough documents: {where} needs about {rounding.format_estimate(needed)} of "
            f"{documents} for {margin}, but the pilot does not exclude that it needs more."
        )
    need = (
        "more than can be said" if needed is None else f"about {rounding.format_estimate(needed)}"
    )
    return (
        f"Too few documents: {_shortfall_text(plans)}{where} needs {need} for {margin}, and the "
        f"planned run has {documents}."
    )


def limit_plan_text(plan: LimitPlan, *, power: float) -> str:
    """Say what the planned documents show of a limit, and how many it takes."""
    filter_name = "" if plan.filter in ("", "none", "text") else f" ({plan.filter})"
    side = "at most" if plan.kind == "upper" else "at least"
    head = printable(f"{plan.metric} on {plan.task}{filter_name}, {side} {_percent(plan.limit)}: ")
    documents, runs = rounding.format_count(plan.n), f"in {_percent(power)} of runs"
    if plan.literal and plan.seen is not None:
        rare = rounding.format_count(max(math.floor(1.0 / plan.seen), 1))
        needed = rounding.format_count(plan.needed or 0)
        return (
            f"{head}{documents} documents show one that breaks it {runs}, if 1 in {rare} does; "
            f"1 in 100 takes {needed}"
        )
    fewest = f"at least {rounding.format_count(plan.fewest)} documents show it kept"
    if plan.share is None:
        return f"{head}{fewest}; the pilot does not show the figure ({documents} planned)"
    if plan.needed is None:
        return f"{head}{fewest}; the pilot's {_percent(plan.share)} does not keep it"
    return (
        f"{head}at the pilot's {_percent(plan.share)} about "
        f"{rounding.format_estimate(plan.needed)} documents show it kept {runs} "
        f"({documents} planned)"
    )


def repeat_plan_text(plan: MetricPlan) -> str:
    """Say how many answers to each document a margin takes; "" where they are not sampled."""
    repeats = plan.repeats
    if repeats is None:
        return ""
    head = f"{plan_metric_name(plan)} on {printable(plan.pilot.task)}: "
    if repeats.scatter.first_only:
        return f"{head}its filter takes the first answer to a document: more answers add nothing"
    if repeats.scatter.within is None:
        return (
            f"{head}one sampled answer to a document does not tell how many would be enough; a "
            "pilot of the task with `repeats: 2` or more does"
        )
    margin, documents = plan_margin_text(plan), rounding.format_count(plan.n)
    asked = f"(the pilot has {repeats.scatter.repeats})"
    if repeats.needed_to_detect is None:
        text = (
            f"{head}no number of answers to each of {documents} documents shows {margin} {asked}: "
            "the documents differ too much among themselves, and more of them are needed"
        )
    else:
        seen = _answers(repeats.needed_to_detect, repeats.needed_to_detect_range)
        decided = _answers(repeats.needed_to_decide, repeats.needed_to_decide_range)
        text = (
            f"{head}{seen} answers to each of {documents} documents show {margin}, {decided} "
            f"decide {asked}"
        )
    if repeats.cheapest_documents is not None and repeats.cheapest_repeats is not None:
        asked = rounding.format_count(repeats.cheapest_documents * repeats.cheapest_repeats)
        text += (
            f"; cheapest to see it: {rounding.format_count(repeats.cheapest_documents)} documents, "
            f"{repeats.cheapest_repeats} each, {asked} answers of each model"
        )
    if repeats.scatter.at_zero:
        text += "; the pilot shows no scatter but that of answers"
    return text


def _answers(needed: int | None, spread: tuple[int | None, int | None]) -> str:
    """Return "6 [4, 15]"; "?": not even ten thousand."""
    amount, low, high = (
        "?" if one is None else rounding.format_count(one) for one in (needed, *spread)
    )
    return f"{amount} [{low}, {high}]"


def _percent(share: float) -> str:
    return f"{100.0 * share:.3g}%"


def plan_next_step(report: PlanReport) -> tuple[str, str]:
    """Say what to do now, without a full stop; and the command for it, "" for none."""
    plans = [plan for plan in report.metrics if not plan.pilot.problem]
    if not plans:
        return "plan with more documents (--pilot), or name other tasks", ""
    needs = [_most_documents(plan) for plan in plans]
    if all(need is not None and need <= plan.n for need, plan in zip(needs, plans, strict=True)):
        return _comparison_step(report, "to compare")
    short = [plan for plan in plans if (need := _needed(plan)) is None or need > plan.n]
    if not short:
        return _comparison_step(report, "to compare (a larger --pilot would be surer)")
    of_answers = all(is_figure(plan.pilot.filter, plan.pilot.metric) for plan in short)
    more = "more requests or a larger task" if of_answers else "a larger task"
    return f"a higher --limit or {more}, a wider --margin, or gate other metrics", ""


def _comparison_step(report: PlanReport, step: str) -> tuple[str, str]:
    command = printable(planned_as_comparison(report.command))
    return (step, command) if command else (f"{step} with the same options", "")


def sort_hardest_first(plans: Sequence[MetricPlan]) -> list[MetricPlan]:
    """The metrics in the order of what they lack, those without a plan first."""
    return sorted(plans, key=lambda plan: (not plan.pilot.problem, *_shortage_order(plan)))


def _shortage_order(plan: MetricPlan) -> tuple[float, float]:
    if plan.pilot.problem:
        return 0.0, 0.0
    most, needed = _shortage(plan)
    return -most, -needed


def _shortfall_text(plans: Sequence[MetricPlan]) -> str:
    """Say how many metrics need more documents than are planned, where it is not one alone."""
    short = sum((needed := _needed(plan)) is None or needed > plan.n for plan in plans)
    if short < 2:
        return ""
    which = f"{short} of {len(plans)}"
    if short == len(plans):
        which = "both" if short == 2 else f"all {short}"
    return f"{which} metrics fall short, and most of all "


def _shortage(plan: MetricPlan) -> tuple[float, float]:
    """How many times too many documents a metric needs, by its upper end, then by its estimate."""
    most, needed = _most_documents(plan), _needed(plan)
    return tuple(float("inf") if x is None else x / plan.n for x in (most, needed))  # type: ignore[return-value]


def _most_documents(plan: MetricPlan) -> int | None:
    return plan.needed_to_decide_range[1]


def _needed(plan: MetricPlan) -> int | None:
    return plan.needed_to_decide
