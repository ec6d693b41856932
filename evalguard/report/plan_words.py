"""The sentences of a plan."""

from __future__ import annotations

from collections.abc import Sequence

from evalguard.plan_report import PlanReport
from evalguard.report import rounding
from evalguard.report.plain_text import printable
from evalguard.report.wording import margin_text, percent
from evalguard.stats.metric_plan import MetricPlan


def metric_name(plan: MetricPlan) -> str:
    """Return "perplexity", or "exact_match (flexible-extract)" where a filter has a name."""
    pilot = plan.pilot
    named = pilot.filter not in ("", "none")
    return printable(f"{pilot.metric} ({pilot.filter})" if named else pilot.metric)


def places_of(plans: Sequence[MetricPlan]) -> str:
    """Return "lastword perplexity, acc; choice acc": each task once."""
    tasks: dict[str, list[str]] = {}
    for plan in plans:
        tasks.setdefault(printable(plan.pilot.task), []).append(metric_name(plan))
    return "; ".join(f"{task} {', '.join(metrics)}" for task, metrics in tasks.items())


def margin_words(plan: MetricPlan) -> str:
    """Return "1.0 sigma", or "1pp" where the margin is in another unit."""
    if plan.given is None or plan.given.unit == "sigma":
        return f"{margin_text(plan.margin or 0.0)} sigma"
    return plan.given.text


def pilot_sentence(report: PlanReport) -> str:
    """Say where the numbers come from."""
    pilot = report.pilot
    if pilot.kind == "sample":
        return (
            f"Pilot: {rounding.count(pilot.documents or 0)} documents of each task, drawn at "
            f"random (seed {pilot.seed})."
        )
    if pilot.kind == "evalguard run":
        return f"Pilot: the stored run {printable(pilot.folder or '')}."
    return "Pilot: all documents of the two lm-eval runs."


def aim_sentence(report: PlanReport) -> str:
    """Say what "seen" means, by which approximation."""
    aim = report.aim
    return (
        f"seen: with a chance of {percent(aim.power)} by the paired test, one-sided at alpha = "
        f"{aim.alpha:.4g}; ranges at {percent(aim.confidence)}. t approximation for means, normal "
        "approximation of the exact McNemar test for 0/1 metrics; a drift of 0 is assumed where "
        "it is to be ruled out"
    )


def conclusion(report: PlanReport) -> str:
    """Say in one sentence whether the planned documents are enough."""
    plans = [plan for plan in report.metrics if not plan.pilot.problem]
    if not plans:
        return "Nothing can be planned from this pilot."
    worst = max(plans, key=_shortage)
    margin = margin_words(worst)
    if not margin.endswith("sigma"):
        margin += f" ({worst.margin:.2g} sigma)"
    where = f"{printable(worst.pilot.task)} {metric_name(worst)}"
    sure = _most(worst)
    documents = f"{rounding.count(worst.n)} documents"
    if sure is not None and sure <= worst.n:
        several = len(plans) > 1
        return (
            f"Enough documents{' for every metric' if several else ''}: at most "
            f"{rounding.count(sure)} of {documents} (--limit) show a drift of {margin}, or rule "
            f"it out, on {where}{', the hardest' if several else ''}."
        )
    needed = _needed(worst)
    if needed is not None and needed <= worst.n:
        return (
            f"Probably enough documents: {where} needs about {rounding.about(needed)} of "
            f"{documents} for {margin}, but the pilot does not exclude that it needs more."
        )
    need = "more than can be said" if needed is None else f"about {rounding.about(needed)}"
    return (
        f"Too few documents: {_falling_short(plans)}{where} needs {need} for {margin}, and the "
        f"planned run has {documents}."
    )


def next_step(report: PlanReport) -> str:
    """Say what to do now; without a full stop."""
    plans = [plan for plan in report.metrics if not plan.pilot.problem]
    if not plans:
        return "plan with more documents (--pilot), or name other tasks"
    needs = [_most(plan) for plan in plans]
    if all(need is not None and need <= plan.n for need, plan in zip(needs, plans, strict=True)):
        return "evalguard compare with the same options"
    short = [plan for plan in plans if (need := _needed(plan)) is None or need > plan.n]
    if not short:
        return "evalguard compare with the same options, or a larger --pilot to be surer"
    return "a higher --limit or a larger task, a wider --margin, or gate other metrics"


def hardest(plans: Sequence[MetricPlan]) -> list[MetricPlan]:
    """The metrics in the order of what they lack, those without a plan first."""
    return sorted(plans, key=lambda plan: (not plan.pilot.problem, *_negative(plan)))


def _negative(plan: MetricPlan) -> tuple[float, float]:
    if plan.pilot.problem:
        return 0.0, 0.0
    most, needed = _shortage(plan)
    return -most, -needed


def _falling_short(plans: Sequence[MetricPlan]) -> str:
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
    most, needed = _most(plan), _needed(plan)
    return tuple(float("inf") if x is None else x / plan.n for x in (most, needed))  # type: ignore[return-value]


def _most(plan: MetricPlan) -> int | None:
    return _larger(plan.needed_to_detect_range[1], plan.needed_to_show_harmless_range[1])


def _needed(plan: MetricPlan) -> int | None:
    return _larger(plan.needed_to_detect, plan.needed_to_show_harmless)


def _larger(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else max(one, other)
