"""What ``evalguard plan`` returns, shows and writes; the JSON contract ``evalguard.plan/1``."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.cells import cell_len
from rich.text import Text

from evalguard.core.figures import is_figure
from evalguard.core.repeat_command import planned_as_comparison
from evalguard.core.result import Result
from evalguard.core.settings import Value
from evalguard.errors import EXIT_FAILED, EXIT_PASSED
from evalguard.page import rounding
from evalguard.page.progress import clock_time
from evalguard.page.safe_text import fit_text, printable, wrap_text
from evalguard.page.table import Table
from evalguard.page.terminal import (
    NARROWEST,
    more_lines,
    next_lines,
    prose_width,
    render_page,
    wrap_prose,
)
from evalguard.planning.limit_plan import LimitPlan
from evalguard.planning.metric_plan import DocumentRange, MetricPlan
from evalguard.planning.plan_report import ExpectedDrift, PlanReport, TaskCost
from evalguard.report.compare_terminal import sides_lines
from evalguard.report.metric_labels import format_percent, margin_text
from evalguard.report.record_documents import nulls_told, write_record
from evalguard.report.record_schema import LOST, contract_schema
from evalguard.report.side_view import side_view


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
        "?" if count is None else rounding.format_count(count) for count in (needed, *spread)
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
    remedy = "more requests or a larger task" if of_answers else "a larger task"
    return f"a higher --limit or {remedy}, a wider --margin, or gate other metrics", ""


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


_NARROWEST_LABEL = 14
_MOST_ROWS = 10
_LEGEND = (
    "drift seen: the smallest one that all these documents show, in standard errors of the base; "
    "then the documents that would be enough for the margin. In brackets: what the pilot leaves "
    "open."
)


def render_plan(report: PlanReport, *, width: int, color: bool, verbose: bool = False) -> str:
    """Return ``report`` as text of at most ``width`` cells a line, without a final line break.

    The answer, the hardest metrics, the cost and the next step; with ``verbose`` all metrics, the
    cost of each task, the legend and all remarks.

    As in a comparison's report, no name or reason can act on the terminal, and there is no escape
    character without ``color``.
    """
    width = max(width, NARROWEST)
    plans = report.metrics if verbose else sort_hardest_first(report.metrics)[:_MOST_ROWS]
    answer = wrap_prose(plan_conclusion(report), width, style="bold")
    steps = next_lines(*plan_next_step(report), width)
    if verbose:
        blocks = [
            answer,
            [*_metrics(plans, width), *wrap_prose(_LEGEND if plans else "", width, style="dim")],
            _repeats(plans, width),
            _limits(report, width),
            steps,
            sides_lines(side_view(report.base), side_view(report.candidate), width),
            wrap_prose(pilot_sentence(report), width),
            _costs(report, width),
            _caveats(report, width),
        ]
        return render_page(blocks, width, color=color)
    hidden = len(report.metrics) - len(plans)
    rest = [f"and {hidden} more, which fall less short"] if hidden else []
    table = [*_metrics(plans, width), *(Text(line, style="dim") for line in rest)]
    remarks = len(list(_remarks(report)))
    end = more_lines("", f"{remarks} remark{'' if remarks == 1 else 's'}", width)
    pilot = wrap_prose(pilot_sentence(report), width, style="dim")
    lines = [*pilot, *wrap_prose(cost_sentence(report), width), *steps, *end]
    blocks = [answer, table, _repeats(plans, width), _limits(report, width), lines]
    return render_page(blocks, width, color=color)


def cost_sentence(report: PlanReport) -> str:
    """Say in a line what scoring all of it takes, "" where that is not known."""
    if not report.costs:
        return ""
    _, _, time, tokens = _total_row(report.costs)
    loading = sum(report.load_seconds.values())
    beside = f", loading {_time(loading)}" if report.load_seconds else ""
    count = "" if tokens == "-" else f", {tokens} tokens"
    return f"Scoring all of it: {time}{count}{beside}; less where the cache has scores."


def _metrics(plans: Sequence[MetricPlan], width: int) -> list[Text]:
    """One row per metric: what n documents detect, and the documents that would be enough."""
    planned = [plan for plan in plans if not plan.pilot.problem]
    margins = list(dict.fromkeys(plan_margin_text(plan) for plan in planned))
    several = len(margins) > 1
    seen = "the margin" if several else "".join(margins)
    header = ["", "drift seen, sigma", f"to see {seen}", "to decide"]
    rows = [[f"  {plan_metric_name(plan)}", *_cells(plan, own=several)] for plan in planned]
    table = Table(headings=header, rows=rows, leaving=(), giving_way=0)
    widest = max((cell_len(row[0]) for row in rows), default=0)
    side_by_side = bool(rows) and table.room(width) >= min(widest, _NARROWEST_LABEL)
    aligned = table.lines(width) if side_by_side else []
    lines = aligned[:1]
    for task in dict.fromkeys(plan.pilot.task for plan in plans):
        of_task = [plan for plan in plans if plan.pilot.task == task]
        lines.append(_heading(task, of_task, width))
        for plan in of_task:
            if plan.pilot.problem:
                text = f"{plan_metric_name(plan)}: no plan: {printable(plan.pilot.problem)}"
                lines += [Text(line) for line in wrap_text(text, width, first="  ", rest="    ")]
            elif side_by_side:
                lines.append(aligned[1 + planned.index(plan)])
            else:
                lines += _stacked(header, rows[planned.index(plan)], width)
    return lines if plans else []


def _repeats(plans: Sequence[MetricPlan], width: int) -> list[Text]:
    """How many answers to each document would be enough, of metrics of sampled answers."""
    texts = [text for plan in plans if (text := repeat_plan_text(plan))]
    return [Text(line) for text in texts for line in wrap_text(text, width, rest="  ")]


def _limits(report: PlanReport, width: int) -> list[Text]:
    """What the planned documents say of each limit on answers."""
    texts = [limit_plan_text(limit, power=report.aim.power) for limit in report.limits]
    return [Text(line) for text in texts for line in wrap_text(text, width, rest="  ")]


def _stacked(header: Sequence[str], row: Sequence[str], width: int) -> list[Text]:
    """One line per number, for narrow terminals."""
    lines = [fit_text(row[0], width)]
    for name, cell in zip(header[1:], row[1:], strict=True):
        lines += wrap_text(f"{name}: {cell}", width, first="    ", rest="      ")
    return [Text(line) for line in lines]


def _heading(task: str, plans: Sequence[MetricPlan], width: int) -> Text:
    tail = f" · {rounding.format_count(plans[0].n)} documents"
    name = fit_text(printable(task), max(width - len(tail), 0))
    return Text.assemble((name, "bold"), (fit_text(tail, width), "dim"))


def _cells(plan: MetricPlan, *, own: bool) -> list[str]:
    """Drift seen and documents; with ``own`` beside the metric's own margin."""
    low, high = plan.detectable_sigma_range or (math.nan, math.nan)
    seen = f"{_sigma(plan.detectable_sigma)} [{_sigma(low)}, {_sigma(high)}]"
    if plan.detectable_sigma is None and plan.detectable_change is not None:
        seen = f"{100.0 * plan.detectable_change:.2g}pp"
    return [
        seen,
        (f"{plan_margin_text(plan)}: " if own else "")
        + _documents(plan.needed_to_detect, plan.needed_to_detect_range),
        _documents(plan.needed_to_decide, plan.needed_to_decide_range),
    ]


def _sigma(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return "-" if value is None or math.isnan(value) else "inf"
    return f"{value:.2g}" if value < 10 else rounding.format_count(round(value))


def _documents(needed: int | None, spread: DocumentRange) -> str:
    low, high = (_count(end) for end in spread)
    return f"{_count(needed)} [{low}, {high}]"


def _count(number: int | None) -> str:
    """A number of documents, to as many digits as a pilot knows: "842", "1,040", "21.7k"."""
    if number is None:
        return "?"
    if number < 1000:
        return rounding.format_count(number)
    rounded = float(f"{number:.3g}")
    for size, name in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if rounded >= size:
            return f"{rounded / (1e3 if name == 'k' else size):.3g}{name}"
    return rounding.format_count(int(rounded))


def _costs(report: PlanReport, width: int) -> list[Text]:
    """Expected time and tokens, task by task, loading apart."""
    if not report.costs:
        return []
    header = ["scoring all of it", "model", "time", "tokens"]
    rows = [_cost_row(cost) for cost in report.costs]
    if len(report.costs) > 1:
        rows.append(_total_row(report.costs))
    lines = Table(headings=header, rows=rows, leaving=(), giving_way=0).lines(width)
    loading = ", ".join(f"{role} {_time(s)}" for role, s in report.load_seconds.items())
    remark = f"Loading apart: {loading}. " if loading else ""
    remark += "Finished scores in the cache make it shorter."
    return [*lines, *wrap_prose(remark, width, style="dim")]


def _cost_row(cost: TaskCost) -> list[str]:
    seconds = cost.seconds
    time = f"{_time(seconds.amount)} [{_time(seconds.low)}, {_time(seconds.high)}]"
    return [f"  {printable(cost.task)}", cost.role, time, _tokens(cost.tokens)]


def _total_row(costs: Sequence[TaskCost]) -> list[str]:
    tokens = [cost.tokens.amount for cost in costs if cost.tokens is not None]
    whole = len(tokens) == len(costs)
    total = _time(sum(cost.seconds.amount for cost in costs))
    return ["  in all", "", total, rounding.format_count(round(sum(tokens))) if whole else "-"]


def _tokens(tokens: ExpectedDrift | None) -> str:
    return "unknown" if tokens is None else rounding.format_count(round(tokens.amount))


def _time(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "?"
    return f"{seconds:.1f} s" if seconds < 10 else clock_time(seconds)


def _caveats(report: PlanReport, width: int) -> list[Text]:
    items = list(_remarks(report))
    lines: list[Text] = [Text("Remarks", style="dim")] if items else []
    for number, item in enumerate(items, start=1):
        head = f"{number:>2}. "
        broken = wrap_text(item, prose_width(width), first=head, rest=" " * len(head))
        lines += [Text(line, style="dim") for line in broken]
    return lines


def _remarks(report: PlanReport) -> Iterator[str]:
    yield aim_sentence(report)
    places: dict[str, list[MetricPlan]] = {}
    for plan in report.metrics:
        for caveat in plan.pilot.caveats:
            places.setdefault(printable(caveat), []).append(plan)
    for caveat, plans in places.items():
        yield f"{list_metrics_by_task(plans)}: {caveat}"
    for excluded in report.not_compared:
        name = printable(f"{excluded.task} {excluded.metric}".strip())
        yield f"not planned: {name}: {printable(excluded.reason)}"
    yield from (printable(note) for note in report.notes)


PLAN_SCHEMA = "evalguard.plan/1"


def plan_document(report: PlanReport) -> dict[str, Any]:
    """Return ``report`` as plain JSON values; a number that JSON cannot hold is null."""
    return nulls_told({"schema": PLAN_SCHEMA, **write_record(report)}, "notes")


def plan_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) that every document satisfies."""
    return contract_schema(
        PLAN_SCHEMA,
        PlanReport,
        "A plan: what a comparison would show and cost",
        load_seconds={
            "type": "object",  # of the sides that are models
            "additionalProperties": {"type": "number", "minimum": 0},
        },
        exit_code={"enum": [EXIT_PASSED, EXIT_FAILED]},
        non_finite=LOST,
    )


@dataclass(frozen=True, slots=True)
class PlanResult(Result[PlanReport]):
    """A finished plan: exit code 0, or 3 where a metric gave no scores."""

    @property
    def metrics(self) -> tuple[MetricPlan, ...]:
        """One plan per (task, filter, metric)."""
        return self.report.metrics

    @property
    def costs(self) -> tuple[TaskCost, ...]:
        """Expected time and tokens, per task and model."""
        return self.report.costs

    def to_dict(self) -> dict[str, Value]:
        """Return the JSON contract (schema ``evalguard.plan/1``) as plain data."""
        return plan_document(self.report)

    def render(self, *, width: int = 80, color: bool = False, verbose: bool = False) -> str:
        """Return the screen that the command line prints; with ``verbose`` all of the plan."""
        return render_plan(self.report, width=width, color=color, verbose=verbose)
