"""A plan of sample sizes: the page for a terminal with its sentences, and the JSON contract
``evalguard.plan/1``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from rich.cells import cell_len
from rich.text import Text

from evalguard.core.repeat_command import planned_as_comparison
from evalguard.core.reports.plan_report import ExpectedDrift, PlanReport, TaskCost
from evalguard.report.contract.forms import key_fields, write_record
from evalguard.report.contract.json_values import nulls_told
from evalguard.report.page import (
    NARROWEST,
    command_lines,
    more_lines,
    prose_width,
    render_page,
    wrap_prose,
)
from evalguard.report.progress import clock_time
from evalguard.report.table import Table
from evalguard.report.terminal import sides_lines
from evalguard.report.view.side import side_view
from evalguard.report.words import rounding
from evalguard.report.words.labels import format_percent, margin_text
from evalguard.report.words.plain_text import fit_text, printable, wrap_text
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
    plans = report.metrics if verbose else _sort_hardest_first(report.metrics)[:_MOST_ROWS]
    answer = wrap_prose(_conclusion(report), width, style="bold")
    step, command = _next_step(report)
    text = f"Next, {step}:" if command else f"Next: {step}."
    steps = [*wrap_prose(text, width, style="bold"), *command_lines(command, width)]
    if verbose:
        blocks = [
            answer,
            [*_metrics(plans, width), *wrap_prose(_LEGEND if plans else "", width, style="dim")],
            steps,
            sides_lines(side_view(report.base), side_view(report.candidate), width),
            wrap_prose(_pilot_sentence(report), width),
            _costs(report, width),
            _caveats(report, width),
        ]
        return render_page(blocks, width, color=color)
    more = len(report.metrics) - len(plans)
    rest = [f"and {more} more, which fall less short"] if more else []
    table = [*_metrics(plans, width), *(Text(line, style="dim") for line in rest)]
    remarks = len(list(_remarks(report)))
    end = more_lines("", f"{remarks} remark{'' if remarks == 1 else 's'}", width)
    pilot = wrap_prose(_pilot_sentence(report), width, style="dim")
    lines = [*pilot, *wrap_prose(cost_sentence(report), width), *steps, *end]
    return render_page([answer, table, lines], width, color=color)


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
    margins = list(dict.fromkeys(_margin_text(plan) for plan in planned))
    several = len(margins) > 1
    seen = "the margin" if several else "".join(margins)
    header = ["", "drift seen, sigma", f"to see {seen}", "to decide"]
    rows = [[f"  {_metric_name(plan)}", *_cells(plan, own=several)] for plan in planned]
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
                text = f"{_metric_name(plan)}: no plan: {printable(plan.pilot.problem)}"
                found += [Text(line) for line in wrap_text(text, width, first="  ", rest="    ")]
            elif side_by_side:
                found.append(aligned[1 + planned.index(plan)])
            else:
                found += _stacked(header, rows[planned.index(plan)], width)
    return found if plans else []


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
    return [
        f"{_sigma(plan.detectable_sigma)} [{_sigma(low)}, {_sigma(high)}]",
        (f"{_margin_text(plan)}: " if own else "")
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
    yield _aim_sentence(report)
    places: dict[str, list[MetricPlan]] = {}
    for plan in report.metrics:
        for caveat in plan.pilot.caveats:
            places.setdefault(printable(caveat), []).append(plan)
    for caveat, plans in places.items():
        yield f"{_metrics_by_task(plans)}: {caveat}"
    for left in report.not_compared:
        name = printable(f"{left.task} {left.metric}".strip())
        yield f"not planned: {name}: {printable(left.reason)}"
    yield from (printable(note) for note in report.notes)


# The sentences of a plan.


def _metric_name(plan: MetricPlan) -> str:
    """Return "perplexity", or "exact_match (flexible-extract)" where a filter has a name."""
    pilot = plan.pilot
    named = pilot.filter not in ("", "none")
    return printable(f"{pilot.metric} ({pilot.filter})" if named else pilot.metric)


def _metrics_by_task(plans: Sequence[MetricPlan]) -> str:
    """Return "lastword perplexity, acc; choice acc": each task once."""
    tasks: dict[str, list[str]] = {}
    for plan in plans:
        tasks.setdefault(printable(plan.pilot.task), []).append(_metric_name(plan))
    return "; ".join(f"{task} {', '.join(metrics)}" for task, metrics in tasks.items())


def _margin_text(plan: MetricPlan) -> str:
    """Return "1.0 sigma", or "1pp" where the margin is in another unit."""
    if plan.given is None or plan.given.unit == "sigma":
        return f"{margin_text(plan.margin or 0.0)} sigma"
    return plan.given.text


def _pilot_sentence(report: PlanReport) -> str:
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
    return "Pilot: all documents of the two lm-eval runs."


def _aim_sentence(report: PlanReport) -> str:
    """Say what "seen" means, by which approximation."""
    aim = report.aim
    return (
        f"seen: with a chance of {format_percent(aim.power)} by the paired test, one-sided at "
        "alpha = "
        f"{aim.alpha:.4g}; ranges at {format_percent(aim.confidence)}. t approximation for "
        "means, normal approximation of McNemar's test for 0/1 metrics. decided: whatever the true "
        "drift is, all gated metrics together"
    )


def _conclusion(report: PlanReport) -> str:
    """Say in one sentence whether the planned documents are enough."""
    plans = [plan for plan in report.metrics if not plan.pilot.problem]
    if not plans:
        return "Nothing can be planned from this pilot."
    worst = max(plans, key=_shortage)
    margin = _margin_text(worst)
    if worst.given is not None and worst.given.unit != "sigma":
        margin += f" ({worst.margin:.2g} sigma)"
    where = f"{printable(worst.pilot.task)} {_metric_name(worst)}"
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


def _next_step(report: PlanReport) -> tuple[str, str]:
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
    return "a higher --limit or a larger task, a wider --margin, or gate other metrics", ""


def _comparison_step(report: PlanReport, step: str) -> tuple[str, str]:
    command = printable(planned_as_comparison(report.command))
    return (step, command) if command else (f"{step} with the same options", "")


def _sort_hardest_first(plans: Sequence[MetricPlan]) -> list[MetricPlan]:
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


# The JSON contract ``evalguard.plan/1``: one plan as one strict JSON document.


PLAN_SCHEMA = "evalguard.plan/1"


def plan_document(report: PlanReport) -> dict[str, Any]:
    """Return ``report`` as plain JSON values; a number that JSON cannot hold is null."""
    fields = write_record(report)
    content = {
        "schema": PLAN_SCHEMA,
        "evalguard": fields.pop("version"),
        **fields,
        "metrics": [_metric_document(metric) for metric in report.metrics],
        "costs": [_cost_document(cost) for cost in report.costs],
        "not_compared": [
            {**key_fields((m.task, m.filter, m.metric)), "reason": m.reason}
            for m in report.not_compared
        ],
    }
    return nulls_told(content, "notes")


def _metric_document(plan: MetricPlan) -> dict[str, Any]:
    pilot = plan.pilot
    known = not pilot.problem
    return {
        "task": pilot.task,
        "filter": pilot.filter,
        "metric": pilot.metric,
        "higher_is_better": pilot.higher_is_better,
        "pilot_n": pilot.n,
        "n": plan.n,
        "margin": plan.margin,
        "margin_text": plan.given.text if plan.given else f"{plan.margin:.12g} sigma",
        "base": pilot.base,
        "base_stderr": plan.base_stderr,
        "scatter_ratio": pilot.ratio if known else None,
        "scatter_ratio_range": list(pilot.ratio_range) if known else None,
        "flip_rate": pilot.flip_rate,
        "detectable_sigma": plan.detectable_sigma,
        "detectable_sigma_range": _interval_values(plan.detectable_sigma_range),
        "detectable_change": plan.detectable_change,
        "needed_to_detect": plan.needed_to_detect,
        "needed_to_detect_range": list(plan.needed_to_detect_range),
        "needed_to_show_harmless": plan.needed_to_show_harmless,
        "needed_to_show_harmless_range": list(plan.needed_to_show_harmless_range),
        "needed_to_decide": plan.needed_to_decide,
        "needed_to_decide_range": list(plan.needed_to_decide_range),
        "method": plan.method,
        "reason": pilot.problem,
        "caveats": list(pilot.caveats),
    }


def _cost_document(cost: TaskCost) -> dict[str, Any]:
    tokens = cost.tokens
    return {
        "task": cost.task,
        "role": cost.role,
        "pilot_documents": cost.pilot_documents,
        "pilot_seconds": cost.pilot_seconds,
        "pilot_tokens": cost.pilot_tokens,
        "documents_per_second": _per_second(cost.pilot_documents, cost.pilot_seconds),
        "tokens_per_second": _per_second(cost.pilot_tokens, cost.pilot_seconds),
        "n": cost.n,
        "expected_seconds": cost.seconds.amount,
        "expected_seconds_range": [cost.seconds.low, cost.seconds.high],
        "expected_tokens": None if tokens is None else tokens.amount,
        "expected_tokens_range": None if tokens is None else [tokens.low, tokens.high],
    }


def _interval_values(ends: tuple[float, float] | None) -> list[float] | None:
    return None if ends is None else list(ends)


def _per_second(amount: int | None, seconds: float) -> float | None:
    return None if amount is None or seconds <= 0.0 else amount / seconds
