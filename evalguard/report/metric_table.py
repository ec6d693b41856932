"""The table of metrics in a terminal, in the widest of three layouts that fits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from rich.cells import cell_len
from rich.text import Text

from evalguard.core.gate_state import GateState
from evalguard.report.table import Table
from evalguard.report.view.metric_view import MetricView, TaskView
from evalguard.report.view.report_view import ReportView
from evalguard.report.words.metric_labels import GRAVITY, OUTCOME_STYLE
from evalguard.report.words.plain_text import fit_text, pack_lines, pad_text, wrap_text

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
    order = {metric.task: place for place, metric in reversed(list(enumerate(worst)))}
    tasks = [
        (task, sorted((m for m in task.metrics if id(m) in chosen), key=_severity_order))
        for task in sorted(view.tasks, key=lambda task: order.get(task.name, len(order)))
    ]
    found = [(task, of_task) for task, of_task in tasks if of_task]
    return list(_narrow_rows(view, found, width, said))


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
        said = metric.outcome if metric.said_ungated else metric.said
        return Text(said, style=OUTCOME_STYLE[metric.outcome])
    return Text(_NOT_GATED)


def _failure(metric: MetricView, width: int, said: str = "") -> Iterator[Text]:
    if metric.outcome == "failed" and metric.reason != said:
        indent = " " * (2 * _INDENT)
        for line in wrap_text(metric.reason, width, first=indent, rest=indent):
            yield _cut(Text(line, style="magenta"), width)


def _cut(text: Text, width: int) -> Text:
    text.truncate(width, overflow="crop")
    return text
