"""The compare report in a terminal: the view, laid out for the width there is."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from rich.cells import cell_len
from rich.text import Text

from evalguard import tools
from evalguard.core.compare_report import CompareReport
from evalguard.core.gate_state import GateState
from evalguard.page.safe_text import (
    fit_text,
    is_wider,
    pack_lines,
    pad_text,
    wrap_keeping_intervals,
    wrap_text,
)
from evalguard.page.table import Table
from evalguard.page.terminal import (
    NARROWEST,
    command_lines,
    more_lines,
    next_lines,
    prose_width,
    render_page,
    wrap_prose,
)
from evalguard.report.compare_view import LimitView, ReportView, build_report_view
from evalguard.report.distribution_table import distribution_lines
from evalguard.report.first_screen import others_text
from evalguard.report.metric_labels import GRAVITY, OUTCOME_STYLE, SIGMA_UNIT, STATE_STYLE
from evalguard.report.metric_view import MetricView, TaskView
from evalguard.report.side_view import SideView

_GAP = 2
_INDENT = 2
_NARROWEST_LABEL = 12
_NOT_GATED = "not gated"
_WIDE = 110
_GRAVEST: tuple[GateState, ...] = ("regressed", "failed", "undecided", "passed")
_TaskRows = tuple[TaskView, list[MetricView]]


def metric_table(view: ReportView, *, width: int) -> list[Text]:
    """Return the lines of the table of all metrics that a page shows, in the report's order.

    The widest of three layouts that fits is taken: one row per metric with standard errors, number
    of documents and false-alarm probability (from 110 columns on); one row per metric; a few short
    rows per metric. Each of them holds all of the outcome, sigma and its interval, and none is
    wider than ``width`` cells.
    """
    tasks = _shown_tasks(view)
    metrics = [metric for _, of_task in tasks for metric in of_task]
    if not metrics:
        return []
    wide = _wide_table(view, metrics)
    if width >= _WIDE and wide.fits(width):
        return list(_metric_rows(tasks, wide, width))
    return list(_narrow_rows(view, tasks, width))


def worst_metrics_table(view: ReportView, *, width: int, most: int, said: str = "") -> list[Text]:
    """Return the lines of the table of the worst ``most`` metrics, the worst first.

    Each row has its task in front where that fits, else tasks are headings, the worst first.

    Args:
        said: a metric's reason that stands elsewhere, and is not repeated.
    """
    worst = sorted(_shown_metrics(view), key=_severity_order)[:most]
    if not worst:
        return []
    table = _narrow_table(view, worst)
    flat = replace(
        table,
        headings=["task", "metric", *table.headings[1:]],
        rows=[[m.task, m.label, *row[1:]] for m, row in zip(worst, table.rows, strict=True)],
        right=(2, 3, 5),
    )
    if flat.fits(width):
        head, *lines = flat.lines(width)
        pairs = zip(worst, lines, strict=True)
        return [head, *(text for m, line in pairs for text in (line, *_failure(m, width, said)))]
    chosen = set(map(id, worst))
    order = {metric.task: rank for rank, metric in reversed(list(enumerate(worst)))}
    tasks = [
        (task, sorted((m for m in task.metrics if id(m) in chosen), key=_severity_order))
        for task in sorted(view.tasks, key=lambda task: order.get(task.name, len(order)))
    ]
    shown = [(task, of_task) for task, of_task in tasks if of_task]
    return list(_narrow_rows(view, shown, width, said))


def left_out_states(view: ReportView, *, most: int) -> list[GateState | None]:
    """Return what the gate says of each metric that :func:`worst_table` leaves out."""
    shown = set(map(id, sorted(_shown_metrics(view), key=_severity_order)[:most]))
    return [metric.gate_state for metric in view.metrics if id(metric) not in shown]


def _shown_metrics(view: ReportView) -> list[MetricView]:
    return [metric for metric in view.metrics if metric.shown]


def _shown_tasks(view: ReportView) -> list[_TaskRows]:
    tasks = [(task, [m for m in task.metrics if m.shown]) for task in view.tasks]
    return [(task, metrics) for task, metrics in tasks if metrics]


def _severity_order(metric: MetricView) -> tuple[int, int, float]:
    """Sorts the worst first: by what it brought about, then its outcome, then sigma."""
    sigma = metric.plot.sigma
    size = -math.inf if sigma is None or math.isnan(sigma) else sigma
    state = len(_GRAVEST) if metric.gate_state is None else _GRAVEST.index(metric.gate_state)
    return state, GRAVITY.index(metric.outcome), -size


def _narrow_rows(
    view: ReportView, tasks: Sequence[_TaskRows], width: int, said: str = ""
) -> Iterator[Text]:
    table = _narrow_table(view, [metric for _, of_task in tasks for metric in of_task])
    wanted = min(table.natural_widths()[0], _INDENT + _NARROWEST_LABEL)
    if table.room(width) >= wanted:
        return _metric_rows(tasks, table, width, said)
    return _stacked_metrics(tasks, table, width, said)


def _narrow_table(view: ReportView, metrics: Sequence[MetricView]) -> Table:
    sigmas = _sigma_cells(metrics)
    return Table(
        headings=[
            "", "base", "candidate", f"sigma [{view.interval_header}]", "paired p", "outcome"
        ],
        rows=[
            [_label(m), m.base, m.candidate, sigma, m.p, _outcome(m)]
            for m, sigma in zip(metrics, sigmas, strict=True)
        ],
        right=(1, 2, 4),
        leaving=(),
        giving_way=0,
    )  # fmt: skip


def _wide_table(view: ReportView, metrics: Sequence[MetricView]) -> Table:
    sigmas = _sigma_cells(metrics)
    return Table(
        headings=[
            "", "n", "base", "candidate", f"sigma [{view.interval_header}]", "paired p",
            "false alarm", "outcome",
        ],
        rows=[
            [
                _label(m), m.n_used, m.base_with_stderr, m.candidate_with_stderr, sigma, m.p,
                m.false_alarm, _outcome(m),
            ]
            for m, sigma in zip(metrics, sigmas, strict=True)
        ],
        right=(1, 2, 3, 5, 6),
        leaving=(),
        giving_way=0,
    )  # fmt: skip


def _label(metric: MetricView) -> str:
    return " " * _INDENT + metric.label


def _sigma_cells(metrics: Sequence[MetricView]) -> list[str]:
    indent = max(len(metric.sigma) for metric in metrics)
    return [f"{metric.sigma:>{indent}} {metric.interval}".rstrip() for metric in metrics]


def _metric_rows(
    tasks: Sequence[_TaskRows], table: Table, width: int, said: str = ""
) -> Iterator[Text]:
    """A line for each metric; a name that has no room beside its numbers stands above them."""
    head, *lines = table.lines(width)
    room = table.room(width)
    yield head
    for heading, numbered in _task_groups(tasks, width):
        yield heading
        for number, metric in numbered:
            label = str(table.rows[number][0])
            if cell_len(label) <= room:
                yield lines[number]
            else:
                yield Text(fit_text(label, width))
                beside = len(pad_text(label, room))
                yield Text.assemble(" " * room, lines[number][beside:])
            yield from _failure(metric, width, said)


def _stacked_metrics(
    tasks: Sequence[_TaskRows], table: Table, width: int, said: str = ""
) -> Iterator[Text]:
    indent = " " * _INDENT
    room = max(width - table.natural_widths()[-1] - _GAP - _INDENT, 0)
    names = ["base -> candidate,", f"{table.headings[3]},", "paired p"]
    for line in pack_lines(names, width, gap=" "):
        yield Text(line, style="dim")
    for heading, numbered in _task_groups(tasks, width):
        yield heading
        for number, metric in numbered:
            _, base, candidate, sigma, p, outcome = table.rows[number]
            yield Text.assemble(indent, pad_text(metric.label, room), " " * _GAP, outcome)
            cells = [f"{base} -> {candidate}", str(sigma).strip(), f"p {p}"]
            for line in pack_lines(cells, width, gap="   ", indent=indent * 2):
                yield Text(line)
            yield from _failure(metric, width, said)


def _task_groups(
    tasks: Sequence[_TaskRows], width: int
) -> Iterator[tuple[Text, list[tuple[int, MetricView]]]]:
    """Yield each task's heading with its metrics, and their rows."""
    row = 0
    for task, metrics in tasks:
        tail = fit_text(f" · {task.size}", width)
        name = fit_text(task.name, max(width - cell_len(tail), 0))
        yield Text.assemble((name, "bold"), (tail, "dim")), list(enumerate(metrics, row))
        row += len(metrics)


def _outcome(metric: MetricView) -> Text:
    """Its outcome; of one that the gate does not judge only that, for there is no room for both."""
    if not metric.said_ungated or metric.outcome == "failed":
        outcome = metric.outcome if metric.said_ungated else metric.said
        return Text(outcome, style=OUTCOME_STYLE[metric.outcome])
    return Text(_NOT_GATED)


def _failure(metric: MetricView, width: int, said: str = "") -> Iterator[Text]:
    if metric.outcome == "failed" and metric.reason != said:
        indent = " " * (2 * _INDENT)
        for line in wrap_text(metric.reason, width, first=indent, rest=indent):
            yield _cut(Text(line, style="magenta"), width)


def _cut(text: Text, width: int) -> Text:
    text.truncate(width, overflow="crop")
    return text


_LEAST_ABOUT, _MOST_ABOUT = 24, 240  # cells
_SCREEN = 24  # lines
_USUAL_WIDTH = 80  # where it is narrower, rows need more lines
_MOST_ROWS, _FEWEST_ROWS = 10, 3
_FEW_TASKS = 3
_MOST_LEFT_OUT = 4


def render_terminal(
    report: CompareReport, *, width: int, color: bool, verbose: bool = False
) -> str:
    """Return ``report`` as text of at most ``width`` cells a line, without a final line break.

    One screen: the verdict, its cause, the worst metrics, the next step, where the rest is. With
    ``verbose`` the rest follows. Nothing that comes from a file or a model (names, reasons,
    caveats) can act on the terminal. With ``color`` the text holds ANSI styles; without, it holds
    no escape character at all.
    """
    width = max(width, NARROWEST)
    view = build_report_view(report)
    blocks = _long_form(view, width) if verbose else _first_screen(view, width)
    return render_page(blocks, width, color=color)


def _first_screen(view: ReportView, width: int) -> list[list[Text]]:
    """The blocks of the first screen; of few tasks, with as many metrics as keep it one screen.

    What else stands elsewhere goes before a metric does: the folder's own line, then the names.
    Where it is still too much, caveats beyond the first are only counted.
    """
    room = _SCREEN if width >= _USUAL_WIDTH else 2 * _SCREEN
    fewest = _FEWEST_ROWS if len(view.tasks) <= _FEW_TASKS else _MOST_ROWS
    sizes = [(rows, saved) for rows in range(_MOST_ROWS, fewest - 1, -1) for saved in (True, False)]
    blocks: list[list[Text]] = []
    for rows, saved in sizes:
        legend = f"sigma: {SIGMA_UNIT}" if view.metrics else ""
        named = sides_line(view.base, view.candidate, width, legend=legend)
        blocks = [
            _verdict(view, width),
            [*named, *_worst(view, width, rows)],
            _next_lines(view, width, saved=saved),
        ]
        height = sum(map(len, blocks)) + len(blocks) - 1
        if height > room and len(named) > 1:  # commands name both models, too
            blocks[1] = blocks[1][1:]
            height -= 1
        if height <= room:
            return blocks
    for caveats in range(len(view.touching) - 1, 0, -1):
        blocks[2] = _next_lines(view, width, saved=False, caveats=caveats)
        if sum(map(len, blocks)) + len(blocks) - 1 <= room:
            break
    return blocks


def _long_form(view: ReportView, width: int) -> list[list[Text]]:
    """The first screen with all metrics, then everything else."""
    return [
        _verdict(view, width),
        _table(view, width),
        _next_lines(view, width, everything=True),
        sides_lines(view.base, view.candidate, width),
        wrap_prose(view.sentence, width),
        [Text(line) for line in distribution_lines(view, width, prose_width(width))],
        _paragraph_lines(view.kl_estimates, width),
        _generations(view, width),
        _tests(view, width),
        _paragraph_lines(view.answers, width),
        _paragraph_lines(view.stopping, width, rest="    "),
        _gate(view, width),
        _paragraph_lines([view.influence], width),
        _caveats(view, width),
        _paragraph_lines(view.left_out, width, rest="  ", style="dim"),
        *_bisection(view, width),
        _paragraph_lines([view.resources], width, rest="  ", style="dim"),
    ]


def _bisection(view: ReportView, width: int) -> Iterator[list[Text]]:
    if view.bisection is not None:
        for given in ("bisection_lines", "fix_lines"):
            yield tools.fetch(given)(view.bisection, width)


def sides_lines(base: SideView, candidate: SideView, width: int) -> list[Text]:
    """Return a line for the base and one for the candidate: name, description, digest."""
    both = (("base", base), ("candidate", candidate))
    name_width = min(max(cell_len(side.name) for _, side in both), width // 3)
    lines = []
    for role, side in both:
        lines += model_lines(f"{role:<9}  {pad_text(side.name, name_width)}", side, width)
    return lines


def model_lines(head: str, side: SideView, width: int) -> list[Text]:
    """Return a model's line: ``head``, and what stands behind it, on further lines if need be."""
    head = fit_text(head, width)
    room = width - cell_len(head) - 2
    parts = fit_text(side.about, _MOST_ABOUT).replace(", ", ",\n").split("\n")
    if not side.about:
        return [Text(head, style="bold")]
    if room < _LEAST_ABOUT:
        return [Text(head, style="bold"), *_dim(pack_lines(parts, width, gap=" ", indent="  "))]
    first, *rest = pack_lines(parts, room, gap=" ")
    beside = " " * (cell_len(head) + 2)
    top = Text.assemble((head, "bold"), (f"  {first}", "dim"))
    return [top, *_dim([beside + line for line in rest])]


def _dim(lines: Iterable[str]) -> list[Text]:
    return [Text(line, style="dim") for line in lines]


def _table(view: ReportView, width: int) -> list[Text]:
    lines = metric_table(view, width=width)
    for text in (*view.hidden, view.legend):
        lines += wrap_prose(text, width, style="dim")
    return lines


def _paragraph_lines(
    texts: Iterable[str], width: int, *, rest: str = "", style: str = ""
) -> list[Text]:
    """Return paragraphs as lines; none for an empty one."""
    return [
        Text(line, style=style)
        for text in texts
        if text
        for line in wrap_text(text, prose_width(width), rest=rest)
    ]


def _verdict(view: ReportView, width: int) -> list[Text]:
    """The verdict and its cause; what a waiver lets through, and limits that are not kept."""
    lines = [Text(line, style="bold") for line in wrap_keeping_intervals(view.first, width)]
    lines[0].stylize(STATE_STYLE[view.state], 0, len(view.state) + 1)
    lines += [Text(line) for line in wrap_text(view.cause, width, rest="  ") if view.cause]
    if view.bisection is not None and view.bisection.best_buy:
        lines += [Text(line) for line in wrap_text(view.bisection.best_buy, width, rest="  ")]
    for text in view.findings:
        lines += [Text(line) for line in wrap_text(f"Note: {text}", width, rest="  ")]
    for text in view.accepted:
        lines += [Text(line) for line in wrap_text(text, width, rest="    ")]
    for limit in view.limits:
        if limit.state != "passed" and not limit.is_first:
            lines += _limit(limit, width)
    return lines + _paragraph_lines([view.floor], width)


def _limit(limit: LimitView, width: int) -> list[Text]:
    broken = wrap_text(limit.line, width, rest="    ")
    return [Text(line, style=STATE_STYLE[limit.state]) for line in broken]


def _gate(view: ReportView, width: int) -> list[Text]:
    """The gate as a paragraph: how many metrics came to what, and its chance of a false alarm."""
    lines = wrap_prose(view.verdict, width)
    for limit in view.limits:
        lines += _limit(limit, width)
    return lines


def sides_line(base: SideView, candidate: SideView, width: int, *, legend: str = "") -> list[Text]:
    """Return one line that names both models, and what they are where both are the same.

    Args:
        legend: of the table below, on the same line where there is room.
    """
    names = f"base {base.name}, candidate {candidate.name}"
    same = base.description == candidate.description
    about = f"{names}: {base.description}" if same and base.description else names
    both = (f"{text}; {legend}" for text in (about, names))
    line = next((text for text in both if legend and not is_wider(text, width)), "")
    if line:
        return [Text(line, style="dim")]
    text = next((text for text in (about, names) if not is_wider(text, width)), "")
    return [Text(text, style="dim") for text in (text, legend) if text]


def _worst(view: ReportView, width: int, rows: int) -> list[Text]:
    if not view.metrics:  # why is all that there is to say
        left_out = view.left_out[:_MOST_LEFT_OUT]
        remaining = len(view.left_out) - len(left_out)
        rest = [f"and {remaining} more not compared"] if remaining else []
        return _paragraph_lines([*left_out, *rest], width, rest="  ")
    lines = worst_metrics_table(view, width=width, most=rows, said=view.stated)
    summary = others_text(left_out_states(view, most=rows), accepted=bool(view.accepted))
    below = [summary, view.spread, view.answers_change]
    return [*lines, *_paragraph_lines(below, width, rest="  ", style="dim")]


def _next_lines(
    view: ReportView,
    width: int,
    *,
    everything: bool = False,
    saved: bool = True,
    caveats: int | None = None,
) -> list[Text]:
    """What to do next, and where the rest is.

    Args:
        saved: the folder on a line of its own.
        caveats: that bear on the verdict, at most so many; None: all.
    """
    lines = next_lines(view.next_step, view.next_command, width)
    lines += trace_lines(view.trace_command, width)
    if view.run_folder and saved:
        page = "" if everything else ", with report.html"
        lines += _paragraph_lines([f"Saved in {view.run_folder}{page}"], width, rest="  ")
    for tracked in view.tracked:
        lines += _paragraph_lines([tracked.text], width, rest="  ") + command_lines(
            tracked.command, width
        )
    if everything:
        return lines
    touching = view.touching[:caveats]
    number, here = len(view.caveats), len(touching)
    held = [f"{number} caveat{'' if number == 1 else 's'}"] if number else []
    if here:
        held[0] += f", {'all' if here == number else here} here"
    if view.left_out and view.metrics:
        held.append(f"{len(view.left_out)} not compared")
    lines += more_lines(view.run_folder, "; ".join(held), width)
    for caveat in touching:
        lines += [Text(line) for line in wrap_text(caveat.line, width, first="  ", rest="    ")]
    return lines


def trace_lines(command: str, width: int) -> list[Text]:
    """Return the command that looks inside the model, on one line where there is room."""
    if not command:
        return []
    head = "Where in the model: "
    if not is_wider(head + command, width):
        return [Text.assemble((head, "bold"), (command, "cyan"))]
    return [Text(fit_text(head.rstrip(), width), style="bold"), *command_lines(command, width)]


def _generations(view: ReportView, width: int) -> list[Text]:
    """Each task's generated answers as a paragraph, then what to know of them."""
    paragraphs = [generation.line for generation in view.generations]
    remarks = [
        f"{generation.task}: {text}"
        for generation in view.generations
        for text in generation.remarks
    ]
    return _paragraph_lines([*paragraphs, *remarks, view.generations_legend], width, rest="  ")


def _tests(view: ReportView, width: int) -> list[Text]:
    """The deciding test of each metric, and those beside it."""
    paragraphs = []
    for metric in view.metrics:
        beside = [f"{name} p {p}{f' ({note})' if note else ''}" for name, p, note in metric.tests]
        if metric.shown and beside:
            head = f"Tests, {metric.full_label}: {metric.method} p {metric.p}"
            paragraphs.append("; ".join([head, *beside]))
    return _paragraph_lines(paragraphs, width, rest="  ")


def _caveats(view: ReportView, width: int) -> list[Text]:
    lines = [Text("Caveats", style="dim")] if view.caveats else []
    for caveat in view.caveats:
        head = f"{caveat.number:>2}. "
        broken = wrap_text(caveat.line, prose_width(width), first=head, rest=" " * len(head))
        lines += [Text(line, style="dim") for line in broken]
    return lines
