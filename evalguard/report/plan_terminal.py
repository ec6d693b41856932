"""A plan of sample sizes as a page for a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.text import Text

from evalguard.core.reports.plan_report import ExpectedDrift, PlanReport, TaskCost
from evalguard.report.compare_terminal import sides_lines
from evalguard.report.progress import clock_time
from evalguard.report.table import Table
from evalguard.report.terminal_page import (
    NARROWEST,
    more_lines,
    next_lines,
    prose_width,
    render_page,
    wrap_prose,
)
from evalguard.report.view.side_view import side_view
from evalguard.report.words import rounding
from evalguard.report.words.plain_text import fit_text, printable, wrap_text
from evalguard.report.words.plan_texts import (
    aim_sentence,
    limit_plan_text,
    list_metrics_by_task,
    pilot_sentence,
    plan_conclusion,
    plan_margin_text,
    plan_metric_name,
    plan_next_step,
    repeat_plan_text,
    sort_hardest_first,
)
from evalguard.stats.metric_plan import DocumentRange, MetricPlan

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
    more = len(report.metrics) - len(plans)
    rest = [f"and {more} more, which fall less short"] if more else []
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
    found = aligned[:1]
    for task in dict.fromkeys(plan.pilot.task for plan in plans):
        of_task = [plan for plan in plans if plan.pilot.task == task]
        found.append(_heading(task, of_task, width))
        for plan in of_task:
            if plan.pilot.problem:
                text = f"{plan_metric_name(plan)}: no plan: {printable(plan.pilot.problem)}"
                found += [Text(line) for line in wrap_text(text, width, first="  ", rest="    ")]
            elif side_by_side:
                found.append(aligned[1 + planned.index(plan)])
            else:
                found += _stacked(header, rows[planned.index(plan)], width)
    return found if plans else []


def _repeats(plans: Sequence[MetricPlan], width: int) -> list[Text]:
    """How many answers to each document would be enough, of metrics of sampled answers."""
    texts = [text for plan in plans if (text := repeat_plan_text(plan))]
    return [Text(line) for text in texts for line in wrap_text(text, width, rest="  ")]


def _limits(report: PlanReport, width: int) -> list[Text]:
    """What the planned documents say of each limit on answers."""
    texts = [limit_plan_text(one, power=report.aim.power) for one in report.limits]
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
    said = f"Loading apart: {loading}. " if loading else ""
    said += "Finished scores in the cache make it shorter."
    return [*lines, *wrap_prose(said, width, style="dim")]


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
    for left in report.not_compared:
        name = printable(f"{left.task} {left.metric}".strip())
        yield f"not planned: {name}: {printable(left.reason)}"
    yield from (printable(note) for note in report.notes)
