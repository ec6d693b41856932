"""The table of metrics, laid out for the width there is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from rich.cells import cell_len
from rich.text import Text

from evalguard.gate_reason import GateState
from evalguard.report.plain_text import fitted, packed, padded, wrapped
from evalguard.report.view import MetricView, ReportView, TaskView
from evalguard.report.wording import GRAVITY, OUTCOME_STYLE

_GAP = 2
_INDENT = 2
_NARROWEST_LABEL = 12
_WIDE = 110
_GRAVEST: tuple[GateState, ...] = ("regressed", "failed", "undecided", "passed")

_Task = tuple[TaskView, list[MetricView]]


@dataclass(frozen=True, kw_only=True)
class _Column:
    header: str
    cells: Sequence[str]
    right: bool = True

    @cached_property
    def width(self) -> int:
        return max(cell_len(text) for text in (self.header, *self.cells))


def table(view: ReportView, *, width: int) -> list[Text]:
    """Return the lines of the table of all metrics that a page shows, in the report's order.

    The widest of three layouts that fits is taken: one row per metric with standard errors, number
    of documents and false-alarm probability (from 110 columns on); one row per metric; a few short
    rows per metric. Each of them holds all of the outcome, sigma and its interval, and none is
    wider than ``width`` cells.
    """
    tasks = _shown(view)
    metrics = [metric for _, of_task in tasks for metric in of_task]
    if not metrics:
        return []
    columns = _columns(view, metrics)
    if width >= _WIDE:
        wide = _wide_columns(metrics, columns)
        if _room_for_label(wide, width) >= _widest_label(metrics):
            return list(_rows(tasks, wide, width))
    return _narrower(tasks, columns, width)


def worst_table(view: ReportView, *, width: int, most: int, said: str = "") -> list[Text]:
    """Return the lines of the table of the worst ``most`` metrics, the worst first.

    Each row has its task in front where that fits, else tasks are headings, the worst first.

    Args:
        said: a metric's reason that stands elsewhere, and is not repeated.
    """
    worst = sorted(_known(view), key=_badness)[:most]
    if not worst:
        return []
    columns = _columns(view, worst)
    flat = [
        _Column(header="task", cells=[metric.task for metric in worst], right=False),
        _Column(header="metric", cells=[metric.label for metric in worst], right=False),
        *columns,
    ]
    if sum(column.width + _GAP for column in flat) - _GAP <= width:
        return list(_flat(worst, flat, width, said))
    chosen = set(map(id, worst))
    order = {metric.task: place for place, metric in reversed(list(enumerate(worst)))}
    tasks = [
        (task, sorted((m for m in task.metrics if id(m) in chosen), key=_badness))
        for task in sorted(view.tasks, key=lambda task: order.get(task.name, len(order)))
    ]
    found = [(task, of_task) for task, of_task in tasks if of_task]
    ordered = [metric for _, of_task in found for metric in of_task]
    return _narrower(found, _columns(view, ordered), width, said)


def left_out(view: ReportView, *, most: int) -> list[GateState | None]:
    """Return what the gate says of each metric that :func:`worst_table` leaves out."""
    shown = set(map(id, sorted(_known(view), key=_badness)[:most]))
    return [metric.gate_state for metric in view.metrics if id(metric) not in shown]


def _known(view: ReportView) -> list[MetricView]:
    return [metric for metric in view.metrics if metric.shown]


def _shown(view: ReportView) -> list[_Task]:
    tasks = [(task, [m for m in task.metrics if m.shown]) for task in view.tasks]
    return [(task, metrics) for task, metrics in tasks if metrics]


def _badness(metric: MetricView) -> tuple[int, int, float]:
    """Sorts the worst first: by what it brought about, then its outcome, then sigma."""
    sigma = metric.plot.sigma
    size = -math.inf if sigma is None or math.isnan(sigma) else sigma
    state = len(_GRAVEST) if metric.gate_state is None else _GRAVEST.index(metric.gate_state)
    return state, GRAVITY.index(metric.outcome), -size


def _narrower(
    tasks: Sequence[_Task], columns: Sequence[_Column], width: int, said: str = ""
) -> list[Text]:
    metrics = [metric for _, of_task in tasks for metric in of_task]
    wanted = min(_widest_label(metrics), _NARROWEST_LABEL)
    if _room_for_label(columns, width) >= wanted:
        return list(_rows(tasks, columns, width, said))
    return list(_stacked(tasks, columns, width, said))


def _columns(view: ReportView, metrics: Sequence[MetricView]) -> list[_Column]:
    header = f"sigma [{view.interval_header}]"
    return [
        _Column(header="base", cells=[metric.base for metric in metrics]),
        _Column(header="candidate", cells=[metric.candidate for metric in metrics]),
        _Column(header=header, cells=_sigma_cells(metrics), right=False),
        _Column(header="paired p", cells=[metric.p for metric in metrics]),
        _Column(header="outcome", cells=[_outcome(metric) for metric in metrics], right=False),
    ]


def _wide_columns(metrics: Sequence[MetricView], columns: Sequence[_Column]) -> list[_Column]:
    sigma, p, outcome = columns[2:]
    return [
        _Column(header="n", cells=[metric.n_used for metric in metrics]),
        _Column(header="base", cells=[metric.base_with_stderr for metric in metrics]),
        _Column(header="candidate", cells=[metric.candidate_with_stderr for metric in metrics]),
        sigma,
        p,
        _Column(header="false alarm", cells=[metric.false_alarm for metric in metrics]),
        outcome,
    ]


def _sigma_cells(metrics: Sequence[MetricView]) -> list[str]:
    indent = max(len(metric.sigma) for metric in metrics)
    return [f"{metric.sigma:>{indent}} {metric.interval}".rstrip() for metric in metrics]


def _room_for_label(columns: Sequence[_Column], width: int) -> int:
    return width - _INDENT - sum(column.width + _GAP for column in columns)


def _widest_label(metrics: Sequence[MetricView]) -> int:
    return max(cell_len(metric.label) for metric in metrics)


def _flat(
    metrics: Sequence[MetricView], columns: Sequence[_Column], width: int, said: str
) -> Iterator[Text]:
    gap = " " * _GAP
    header = gap.join(padded(c.header, c.width, right=c.right) for c in columns)
    yield Text(header.rstrip(), style="dim")
    for number, metric in enumerate(metrics):
        cells = [padded(c.cells[number], c.width, right=c.right) for c in columns[:-1]]
        yield _with_outcome(gap.join(cells) + gap, metric)
        yield from _failure(metric, width, said)


def _rows(
    tasks: Sequence[_Task], columns: Sequence[_Column], width: int, said: str = ""
) -> Iterator[Text]:
    metrics = [metric for _, of_task in tasks for metric in of_task]
    label = min(_room_for_label(columns, width), _widest_label(metrics))
    gap = " " * _GAP
    header = [padded(c.header, c.width, right=c.right) for c in columns]
    yield Text(gap.join([" " * (_INDENT + label), *header]).rstrip(), style="dim")
    for heading, numbered in _groups(tasks, width):
        yield heading
        for number, metric in numbered:
            cells = [padded(c.cells[number], c.width, right=c.right) for c in columns[:-1]]
            name = " " * _INDENT + padded(metric.label, label)
            yield _with_outcome(gap.join([name, *cells]) + gap, metric)
            yield from _failure(metric, width, said)


def _stacked(
    tasks: Sequence[_Task], columns: Sequence[_Column], width: int, said: str = ""
) -> Iterator[Text]:
    base, candidate, sigma, p, outcome = columns
    indent = " " * _INDENT
    for line in packed(["base -> candidate,", f"{sigma.header},", "paired p"], width, gap=" "):
        yield Text(line, style="dim")
    for heading, numbered in _groups(tasks, width):
        yield heading
        for number, metric in numbered:
            room = max(width - outcome.width - _GAP - _INDENT, 0)
            name = indent + padded(metric.label, room) + " " * _GAP
            yield _with_outcome(name, metric)
            values = f"{base.cells[number]} -> {candidate.cells[number]}"
            cells = [values, sigma.cells[number].strip(), f"p {p.cells[number]}"]
            for line in packed(cells, width, gap="   ", indent=indent * 2):
                yield Text(line)
            yield from _failure(metric, width, said)


def _groups(
    tasks: Sequence[_Task], width: int
) -> Iterator[tuple[Text, list[tuple[int, MetricView]]]]:
    """Yield each task's heading with its metrics, and their rows."""
    row = 0
    for task, metrics in tasks:
        tail = fitted(f" · {task.size}", width)
        name = fitted(task.name, max(width - cell_len(tail), 0))
        yield Text.assemble((name, "bold"), (tail, "dim")), list(enumerate(metrics, row))
        row += len(metrics)


def _with_outcome(head: str, metric: MetricView) -> Text:
    said = _outcome(metric)
    style = OUTCOME_STYLE[metric.outcome] if said == metric.outcome else ""
    return Text.assemble(head, (said, style))


def _outcome(metric: MetricView) -> str:
    """Its outcome; of one that the gate does not judge only that, for there is no room for both."""
    aside = metric.said != metric.outcome and metric.outcome != "failed"
    return "not gated" if aside else metric.outcome


def _failure(metric: MetricView, width: int, said: str = "") -> Iterator[Text]:
    if metric.outcome == "failed" and metric.reason != said:
        indent = " " * (2 * _INDENT)
        for line in wrapped(metric.reason, width, first=indent, rest=indent):
            yield _cut(Text(line, style="magenta"), width)


def _cut(text: Text, width: int) -> Text:
    text.truncate(width, overflow="crop")
    return text
