"""The table of metrics, laid out for the width there is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from rich.cells import cell_len
from rich.text import Text

from evalguard.report.plain_text import fitted, packed, padded, wrapped
from evalguard.report.view import MetricView, ReportView
from evalguard.report.wording import OUTCOME_STYLE

_GAP = 2
_INDENT = 2
_NARROWEST_LABEL = 12
_WIDE = 110


@dataclass(frozen=True, kw_only=True)
class _Column:
    header: str
    cells: Sequence[str]
    right: bool = True

    @cached_property
    def width(self) -> int:
        return max(cell_len(text) for text in (self.header, *self.cells))


def table(view: ReportView, *, width: int) -> list[Text]:
    """Return the lines of the table of metrics, none wider than ``width`` cells.

    The widest of three layouts that fits is taken: one row per metric with standard errors, number
    of documents and false-alarm probability (from 110 columns on); one row per metric; a few short
    rows per metric. Each of them holds all of the outcome, sigma and its interval.
    """
    metrics = [metric for metric in view.metrics if metric.shown]
    if not metrics:
        return []
    columns = _columns(view, metrics)
    if width >= _WIDE:
        wide = _wide_columns(metrics, columns)
        if _room_for_label(wide, width) >= _widest_label(metrics):
            return list(_rows(view, wide, width))
    wanted = min(_widest_label(metrics), _NARROWEST_LABEL)
    if _room_for_label(columns, width) >= wanted:
        return list(_rows(view, columns, width))
    return list(_stacked(view, columns, width))


def _columns(view: ReportView, metrics: Sequence[MetricView]) -> list[_Column]:
    header = f"sigma [{view.interval_header}]"
    return [
        _Column(header="base", cells=[metric.base for metric in metrics]),
        _Column(header="candidate", cells=[metric.candidate for metric in metrics]),
        _Column(header=header, cells=_sigma_cells(metrics), right=False),
        _Column(header="paired p", cells=[metric.p for metric in metrics]),
        _Column(header="outcome", cells=[metric.outcome for metric in metrics], right=False),
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


def _rows(view: ReportView, columns: Sequence[_Column], width: int) -> Iterator[Text]:
    metrics = [metric for metric in view.metrics if metric.shown]
    label = min(_room_for_label(columns, width), _widest_label(metrics))
    gap = " " * _GAP
    header = [padded(c.header, c.width, right=c.right) for c in columns]
    yield Text(gap.join([" " * (_INDENT + label), *header]).rstrip(), style="dim")
    for heading, numbered in _groups(view, width):
        yield heading
        for number, metric in numbered:
            cells = [padded(c.cells[number], c.width, right=c.right) for c in columns[:-1]]
            name = " " * _INDENT + padded(metric.label, label)
            yield _with_outcome(gap.join([name, *cells]) + gap, metric)
            yield from _failure(metric, width)


def _stacked(view: ReportView, columns: Sequence[_Column], width: int) -> Iterator[Text]:
    base, candidate, sigma, p, outcome = columns
    indent = " " * _INDENT
    for line in packed(["base -> candidate,", f"{sigma.header},", "paired p"], width, gap=" "):
        yield Text(line, style="dim")
    for heading, numbered in _groups(view, width):
        yield heading
        for number, metric in numbered:
            room = max(width - outcome.width - _GAP - _INDENT, 0)
            name = indent + padded(metric.label, room) + " " * _GAP
            yield _with_outcome(name, metric)
            values = f"{base.cells[number]} -> {candidate.cells[number]}"
            cells = [values, sigma.cells[number].strip(), f"p {p.cells[number]}"]
            for line in packed(cells, width, gap="   ", indent=indent * 2):
                yield Text(line)
            yield from _failure(metric, width)


def _groups(view: ReportView, width: int) -> Iterator[tuple[Text, list[tuple[int, MetricView]]]]:
    """Yield each task's heading with those of its metrics that are shown, and their rows."""
    row = 0
    for task in view.tasks:
        metrics = [metric for metric in task.metrics if metric.shown]
        if metrics:
            tail = fitted(f" · {task.size}", width)
            name = fitted(task.name, max(width - cell_len(tail), 0))
            yield Text.assemble((name, "bold"), (tail, "dim")), list(enumerate(metrics, row))
            row += len(metrics)


def _with_outcome(head: str, metric: MetricView) -> Text:
    return Text.assemble(head, (metric.outcome, OUTCOME_STYLE[metric.outcome]))


def _failure(metric: MetricView, width: int) -> Iterator[Text]:
    if metric.outcome == "failed":
        indent = " " * (2 * _INDENT)
        for line in wrapped(metric.reason, width, first=indent, rest=indent):
            yield _cut(Text(line, style="magenta"), width)


def _cut(text: Text, width: int) -> Text:
    text.truncate(width, overflow="crop")
    return text
