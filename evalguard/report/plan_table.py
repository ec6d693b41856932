"""The plan that a person reads in a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.text import Text

from evalguard.plan_report import Expected, PlanReport, TaskCost
from evalguard.report import rounding
from evalguard.report.page import NARROWEST, page, prose, prose_width
from evalguard.report.plain_text import fitted, padded, printable, wrapped
from evalguard.report.plan_words import (
    aim_sentence,
    conclusion,
    hardest,
    margin_words,
    metric_name,
    next_step,
    pilot_sentence,
    places_of,
)
from evalguard.report.progress import clock_time
from evalguard.report.terminal import sides
from evalguard.report.view.side import side_view
from evalguard.stats.metric_plan import DocumentRange, MetricPlan

_NARROWEST_LABEL = 14
_GAP = "  "
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
    plans = report.metrics if verbose else hardest(report.metrics)[:_MOST_ROWS]
    answer = prose(conclusion(report), width, style="bold")
    steps = prose(f"Next: {next_step(report)}.", width, style="bold")
    if verbose:
        blocks = [
            answer,
            [*_metrics(plans, width), *prose(_LEGEND if plans else "", width, style="dim")],
            steps,
            sides(side_view(report.base), side_view(report.candidate), width),
            prose(pilot_sentence(report), width),
            _costs(report, width),
            _caveats(report, width),
        ]
        return page(blocks, width, color=color)
    more = len(report.metrics) - len(plans)
    rest = [f"and {more} more, which fall less short"] if more else []
    table = [*_metrics(plans, width), *(Text(line, style="dim") for line in rest)]
    remarks = len(list(_remarks(report)))
    end = prose(f"More: -v; {remarks} remark{'' if remarks == 1 else 's'}", width, style="dim")
    pilot = prose(pilot_sentence(report), width, style="dim")
    lines = [*pilot, *prose(cost_sentence(report), width), *steps, *end]
    return page([answer, table, lines], width, color=color)


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
    margins = list(dict.fromkeys(margin_words(plan) for plan in planned))
    several = len(margins) > 1
    seen = "the margin" if several else "".join(margins)
    header = ["", "drift seen, sigma", f"to see {seen}", "to rule it out"]
    rows = [[f"  {metric_name(plan)}", *_cells(plan, own=several)] for plan in planned]
    widest = max((cell_len(row[0]) for row in rows), default=0)
    room = _widths([header, *rows], width)[0] if rows else -1
    side_by_side = room >= min(widest, _NARROWEST_LABEL)
    aligned = _aligned([header, *rows], width) if side_by_side else []
    found = [Text(line, style="dim") for line in aligned[:1]]
    for task in dict.fromkeys(plan.pilot.task for plan in plans):
        of_task = [plan for plan in plans if plan.pilot.task == task]
        found.append(_heading(task, of_task, width))
        for plan in of_task:
            if plan.pilot.problem:
                text = f"{metric_name(plan)}: no plan: {printable(plan.pilot.problem)}"
                found += [Text(line) for line in wrapped(text, width, first="  ", rest="    ")]
            elif side_by_side:
                found.append(Text(aligned[1 + planned.index(plan)]))
            else:
                found += _stacked(header, rows[planned.index(plan)], width)
    return found if plans else []


def _stacked(header: Sequence[str], row: Sequence[str], width: int) -> list[Text]:
    """One line per number, for narrow terminals."""
    lines = [fitted(row[0], width)]
    for name, cell in zip(header[1:], row[1:], strict=True):
        lines += wrapped(f"{name}: {cell}", width, first="    ", rest="      ")
    return [Text(line) for line in lines]


def _heading(task: str, plans: Sequence[MetricPlan], width: int) -> Text:
    tail = f" · {rounding.count(plans[0].n)} documents"
    name = fitted(printable(task), max(width - len(tail), 0))
    return Text.assemble((name, "bold"), (fitted(tail, width), "dim"))


def _cells(plan: MetricPlan, *, own: bool) -> list[str]:
    """Drift seen and documents; with ``own`` beside the metric's own margin."""
    low, high = plan.detectable_sigma_range or (math.nan, math.nan)
    return [
        f"{_sigma(plan.detectable_sigma)} [{_sigma(low)}, {_sigma(high)}]",
        (f"{margin_words(plan)}: " if own else "")
        + _documents(plan.needed_to_detect, plan.needed_to_detect_range),
        _documents(plan.needed_to_show_harmless, plan.needed_to_show_harmless_range),
    ]


def _widths(rows: Sequence[Sequence[str]], width: int) -> list[int]:
    """Widths of columns; the first one gives way to the others, and may come out negative."""
    widths = [max(cell_len(row[i]) for row in rows) for i in range(len(rows[0]))]
    rest = sum(widths[1:]) + len(_GAP) * (len(widths) - 1)
    return [min(widths[0], width - rest), *widths[1:]]


def _aligned(rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Columns side by side; where they do not fit, the first one is cut, then the line."""
    first, *rest = _widths(rows, width)
    widths = [max(first, 1), *rest]
    cells = ([padded(text, w) for text, w in zip(row, widths, strict=True)] for row in rows)
    return [fitted(_GAP.join(row).rstrip(), width) for row in cells]


def _sigma(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return "-" if value is None or math.isnan(value) else "inf"
    return f"{value:.2g}" if value < 10 else rounding.count(round(value))


def _documents(needed: int | None, spread: DocumentRange) -> str:
    low, high = (_count(end) for end in spread)
    return f"{_count(needed)} [{low}, {high}]"


def _count(number: int | None) -> str:
    """A number of documents, to as many digits as a pilot knows: "842", "1,040", "21.7k"."""
    if number is None:
        return "?"
    if number < 1000:
        return rounding.count(number)
    rounded = float(f"{number:.3g}")
    for size, name in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if rounded >= size:
            return f"{rounded / (1e3 if name == 'k' else size):.3g}{name}"
    return rounding.count(int(rounded))


def _costs(report: PlanReport, width: int) -> list[Text]:
    """Expected time and tokens, task by task, loading apart."""
    if not report.costs:
        return []
    rows = [["scoring all of it", "model", "time", "tokens"]]
    rows += [_cost_row(cost) for cost in report.costs]
    if len(report.costs) > 1:
        rows.append(_total_row(report.costs))
    lines = _aligned(rows, width)
    loading = ", ".join(f"{role} {_time(s)}" for role, s in report.load_seconds.items())
    said = f"Loading apart: {loading}. " if loading else ""
    said += "Finished scores in the cache make it shorter."
    return [
        Text(lines[0], style="dim"),
        *(Text(line) for line in lines[1:]),
        *prose(said, width, style="dim"),
    ]


def _cost_row(cost: TaskCost) -> list[str]:
    seconds = cost.seconds
    time = f"{_time(seconds.amount)} [{_time(seconds.low)}, {_time(seconds.high)}]"
    return [f"  {printable(cost.task)}", cost.role, time, _tokens(cost.tokens)]


def _total_row(costs: Sequence[TaskCost]) -> list[str]:
    tokens = [cost.tokens.amount for cost in costs if cost.tokens is not None]
    whole = len(tokens) == len(costs)
    total = _time(sum(cost.seconds.amount for cost in costs))
    return ["  in all", "", total, rounding.count(round(sum(tokens))) if whole else "-"]


def _tokens(tokens: Expected | None) -> str:
    return "unknown" if tokens is None else rounding.count(round(tokens.amount))


def _time(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "?"
    return f"{seconds:.1f} s" if seconds < 10 else clock_time(seconds)


def _caveats(report: PlanReport, width: int) -> list[Text]:
    items = list(_remarks(report))
    lines: list[Text] = [Text("Remarks", style="dim")] if items else []
    for number, item in enumerate(items, start=1):
        head = f"{number:>2}. "
        broken = wrapped(item, prose_width(width), first=head, rest=" " * len(head))
        lines += [Text(line, style="dim") for line in broken]
    return lines


def _remarks(report: PlanReport) -> Iterator[str]:
    yield aim_sentence(report)
    places: dict[str, list[MetricPlan]] = {}
    for plan in report.metrics:
        for caveat in plan.pilot.caveats:
            places.setdefault(printable(caveat), []).append(plan)
    for caveat, plans in places.items():
        yield f"{places_of(plans)}: {caveat}"
    for left in report.not_compared:
        name = printable(f"{left.task} {left.metric}".strip())
        yield f"not planned: {name}: {printable(left.reason)}"
    yield from (printable(note) for note in report.notes)
