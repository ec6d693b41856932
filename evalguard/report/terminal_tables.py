"""Tables of the compare report in a terminal: metrics, next-token distributions, culprits of a
bisection.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from rich.cells import cell_len
from rich.text import Text

from evalguard.core.gate_state import GateState
from evalguard.report.page import prose_width, wrap_prose
from evalguard.report.view.bisection import CulpritView, SearchView, group_by_metric
from evalguard.report.view.metric import MetricView, TaskView
from evalguard.report.view.report import DistributionView, ReportView
from evalguard.report.words.labels import GRAVITY, OUTCOME_STYLE
from evalguard.report.words.plain_text import fit_text, pack_lines, pad_text, wrap_text

_GAP = 2
_INDENT = 2
_NARROWEST_LABEL = 12
_NOT_GATED = "not gated"
_WIDE = 110
_GRAVEST: tuple[GateState, ...] = ("regressed", "failed", "undecided", "passed")

_TaskRows = tuple[TaskView, list[MetricView]]


@dataclass(frozen=True, kw_only=True)
class _MetricColumn:
    header: str
    cells: Sequence[str]
    right: bool = True

    @cached_property
    def width(self) -> int:
        return max(cell_len(text) for text in (self.header, *self.cells))


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
    columns = _metric_columns(view, metrics)
    if width >= _WIDE:
        wide = _wide_columns(metrics, columns)
        if _metric_label_width(wide, width) >= _widest_label(metrics):
            return list(_metric_rows(tasks, wide, width))
    return _narrow_table(tasks, columns, width)


def worst_metrics_table(view: ReportView, *, width: int, most: int, said: str = "") -> list[Text]:
    """Return the lines of the table of the worst ``most`` metrics, the worst first.

    Each row has its task in front where that fits, else tasks are headings, the worst first.

    Args:
        said: a metric's reason that stands elsewhere, and is not repeated.
    """
    worst = sorted(_shown_metrics(view), key=_severity_order)[:most]
    if not worst:
        return []
    columns = _metric_columns(view, worst)
    flat = [
        _MetricColumn(header="task", cells=[metric.task for metric in worst], right=False),
        _MetricColumn(header="metric", cells=[metric.label for metric in worst], right=False),
        *columns,
    ]
    if sum(column.width + _GAP for column in flat) - _GAP <= width:
        return list(_flat(worst, flat, width, said))
    chosen = set(map(id, worst))
    order = {metric.task: place for place, metric in reversed(list(enumerate(worst)))}
    tasks = [
        (task, sorted((m for m in task.metrics if id(m) in chosen), key=_severity_order))
        for task in sorted(view.tasks, key=lambda task: order.get(task.name, len(order)))
    ]
    found = [(task, of_task) for task, of_task in tasks if of_task]
    ordered = [metric for _, of_task in found for metric in of_task]
    return _narrow_table(found, _metric_columns(view, ordered), width, said)


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


def _narrow_table(
    tasks: Sequence[_TaskRows], columns: Sequence[_MetricColumn], width: int, said: str = ""
) -> list[Text]:
    metrics = [metric for _, of_task in tasks for metric in of_task]
    wanted = min(_widest_label(metrics), _NARROWEST_LABEL)
    if _metric_label_width(columns, width) >= wanted:
        return list(_metric_rows(tasks, columns, width, said))
    return list(_stacked_metrics(tasks, columns, width, said))


def _metric_columns(view: ReportView, metrics: Sequence[MetricView]) -> list[_MetricColumn]:
    header = f"sigma [{view.interval_header}]"
    return [
        _MetricColumn(header="base", cells=[metric.base for metric in metrics]),
        _MetricColumn(header="candidate", cells=[metric.candidate for metric in metrics]),
        _MetricColumn(header=header, cells=_sigma_cells(metrics), right=False),
        _MetricColumn(header="paired p", cells=[metric.p for metric in metrics]),
        _MetricColumn(
            header="outcome", cells=[_outcome(metric) for metric in metrics], right=False
        ),
    ]


def _wide_columns(
    metrics: Sequence[MetricView], columns: Sequence[_MetricColumn]
) -> list[_MetricColumn]:
    sigma, p, outcome = columns[2:]
    return [
        _MetricColumn(header="n", cells=[metric.n_used for metric in metrics]),
        _MetricColumn(header="base", cells=[metric.base_with_stderr for metric in metrics]),
        _MetricColumn(
            header="candidate", cells=[metric.candidate_with_stderr for metric in metrics]
        ),
        sigma,
        p,
        _MetricColumn(header="false alarm", cells=[metric.false_alarm for metric in metrics]),
        outcome,
    ]


def _sigma_cells(metrics: Sequence[MetricView]) -> list[str]:
    indent = max(len(metric.sigma) for metric in metrics)
    return [f"{metric.sigma:>{indent}} {metric.interval}".rstrip() for metric in metrics]


def _metric_label_width(columns: Sequence[_MetricColumn], width: int) -> int:
    return width - _INDENT - sum(column.width + _GAP for column in columns)


def _widest_label(metrics: Sequence[MetricView]) -> int:
    return max(cell_len(metric.label) for metric in metrics)


def _flat(
    metrics: Sequence[MetricView], columns: Sequence[_MetricColumn], width: int, said: str
) -> Iterator[Text]:
    gap = " " * _GAP
    header = gap.join(pad_text(c.header, c.width, right=c.right) for c in columns)
    yield Text(header.rstrip(), style="dim")
    for number, metric in enumerate(metrics):
        cells = [pad_text(c.cells[number], c.width, right=c.right) for c in columns[:-1]]
        yield _with_outcome(gap.join(cells) + gap, metric)
        yield from _failure(metric, width, said)


def _metric_rows(
    tasks: Sequence[_TaskRows], columns: Sequence[_MetricColumn], width: int, said: str = ""
) -> Iterator[Text]:
    metrics = [metric for _, of_task in tasks for metric in of_task]
    label = min(_metric_label_width(columns, width), _widest_label(metrics))
    gap = " " * _GAP
    header = [pad_text(c.header, c.width, right=c.right) for c in columns]
    yield Text(gap.join([" " * (_INDENT + label), *header]).rstrip(), style="dim")
    for heading, numbered in _task_groups(tasks, width):
        yield heading
        for number, metric in numbered:
            cells = [pad_text(c.cells[number], c.width, right=c.right) for c in columns[:-1]]
            name = " " * _INDENT + pad_text(metric.label, label)
            yield _with_outcome(gap.join([name, *cells]) + gap, metric)
            yield from _failure(metric, width, said)


def _stacked_metrics(
    tasks: Sequence[_TaskRows], columns: Sequence[_MetricColumn], width: int, said: str = ""
) -> Iterator[Text]:
    base, candidate, sigma, p, outcome = columns
    indent = " " * _INDENT
    for line in pack_lines(["base -> candidate,", f"{sigma.header},", "paired p"], width, gap=" "):
        yield Text(line, style="dim")
    for heading, numbered in _task_groups(tasks, width):
        yield heading
        for number, metric in numbered:
            room = max(width - outcome.width - _GAP - _INDENT, 0)
            name = indent + pad_text(metric.label, room) + " " * _GAP
            yield _with_outcome(name, metric)
            values = f"{base.cells[number]} -> {candidate.cells[number]}"
            cells = [values, sigma.cells[number].strip(), f"p {p.cells[number]}"]
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


def _with_outcome(head: str, metric: MetricView) -> Text:
    said = _outcome(metric)
    style = "" if said == _NOT_GATED else OUTCOME_STYLE[metric.outcome]
    return Text.assemble(head, (said, style))


def _outcome(metric: MetricView) -> str:
    """Its outcome; of one that the gate does not judge only that, for there is no room for both."""
    if not metric.said_ungated:
        return metric.said
    return metric.outcome if metric.outcome == "failed" else _NOT_GATED


def _failure(metric: MetricView, width: int, said: str = "") -> Iterator[Text]:
    if metric.outcome == "failed" and metric.reason != said:
        indent = " " * (2 * _INDENT)
        for line in wrap_text(metric.reason, width, first=indent, rest=indent):
            yield _cut(Text(line, style="magenta"), width)


def _cut(text: Text, width: int) -> Text:
    text.truncate(width, overflow="crop")
    return text


# The table of distributions, laid out for the width there is.


_DISTRIBUTIONS_TITLE = "Distributions"
_DISTRIBUTION_GAP, _DISTRIBUTION_INDENT, _NARROWEST_TASK = 2, 2, 12
# Least important first: what goes where the terminal is too narrow for all.
_DROPPED_FIRST = ("positions", "max", "Δp rms", "99%", "top-1")


@dataclass(frozen=True, slots=True)
class _DistributionColumn:
    header: str
    cells: Sequence[str]

    @property
    def width(self) -> int:
        return max(cell_len(text) for text in (self.header, *self.cells))


def distribution_lines(view: ReportView, width: int, prose: int) -> list[str]:
    """Return the table's lines, none wider than ``width``, and sentences within ``prose``."""
    measured = [one for one in view.distributions if one.known]
    lines = _distribution_table(measured, width) if measured else []
    sentences = [sentence for one in view.distributions for sentence in one.sentences]
    for sentence in (view.distributions_legend, *sentences):
        lines += wrap_text(sentence, prose) if sentence else []
    return lines


def _distribution_table(distributions: Sequence[DistributionView], width: int) -> list[str]:
    columns = _distribution_columns(distributions)
    for header in _DROPPED_FIRST:
        if _distribution_label_width(columns, width) >= _NARROWEST_TASK:
            break
        columns = [column for column in columns if column.header != header]
    longest = max(
        *(cell_len(one.task) for one in distributions),
        cell_len(_DISTRIBUTIONS_TITLE) - _DISTRIBUTION_INDENT,
    )
    label = min(max(_distribution_label_width(columns, width), 0), longest)
    gap, indent = " " * _DISTRIBUTION_GAP, " " * _DISTRIBUTION_INDENT
    headers = [pad_text(column.header, column.width, right=True) for column in columns]
    lines = [gap.join([pad_text(_DISTRIBUTIONS_TITLE, _DISTRIBUTION_INDENT + label), *headers])]
    for row, one in enumerate(distributions):
        cells = [pad_text(column.cells[row], column.width, right=True) for column in columns]
        lines.append(gap.join([indent + pad_text(one.task, label), *cells]))
    return [fit_text(line.rstrip(), width) for line in lines]


def _distribution_label_width(columns: Sequence[_DistributionColumn], width: int) -> int:
    return (
        width - _DISTRIBUTION_INDENT - sum(column.width + _DISTRIBUTION_GAP for column in columns)
    )


def _distribution_columns(distributions: Sequence[DistributionView]) -> list[_DistributionColumn]:
    return [
        _DistributionColumn("positions", [one.positions for one in distributions]),
        _DistributionColumn("KL mean", [one.kl for one in distributions]),
        _DistributionColumn("99%", [one.kl_p99 for one in distributions]),
        _DistributionColumn("max", [one.kl_max for one in distributions]),
        _DistributionColumn("Δp rms", [one.dp_rms for one in distributions]),
        _DistributionColumn("top-1", [one.same_top1 for one in distributions]),
    ]


# The bisection in a terminal: a table of culprits, what is cleared, the cost, and the repair.


_WIDEST_SETTING, _ROLE_WIDTH, _CULPRIT_GAP = 20, 9, "  "
_NUMBER_WIDTH, _WIDEST_NUMBER = 8, 11
_NARROWEST_VALUES = 9


def bisection_lines(view: ReportView, width: int) -> list[Text]:
    """Return the block of a bisection, none where there was none.

    Searches of one metric share one table.
    """
    found = view.bisection
    if found is None:
        return []
    told = group_by_metric(found.searches)
    with_table = [story for story in told if _culprits_of_story(story)]
    lines: list[Text] = []
    for story in told:
        lines += [Text()] if lines else []
        last = story is with_table[-1] if with_table else False
        lines += _story_lines(story, width, legend=found.legend if last else "")
    for text in found.sentences:
        lines += wrap_prose(text, width)
    return lines


def fix_lines(view: ReportView, width: int) -> list[Text]:
    """Return the lines of a guard file that put the culprits right."""
    fix = None if view.bisection is None else view.bisection.fix
    if fix is None:
        return []
    body = [Text(f"  {line}", style="cyan") for line in fix.lines]
    return [*wrap_prose(fix.head, width), *body]


def _culprits_of_story(story: Sequence[SearchView]) -> list[CulpritView]:
    return [culprit for search in story for culprit in search.culprits]


def _story_lines(story: Sequence[SearchView], width: int, *, legend: str) -> list[Text]:
    lines = wrap_prose(story[0].title, width, style="bold")
    for number, search in enumerate(story, start=1):
        head = f"Search {number}: " if len(story) > 1 else ""
        lines += wrap_prose(f"{head}{search.facts}", width, style="dim")
    culprits = _culprits_of_story(story)
    if culprits:
        lines += _culprit_table(culprits, width, roles=any(search.roles for search in story))
    lines += wrap_prose(legend, width, style="dim")
    for search in story:
        for text in (search.cleared, search.beside):
            lines += wrap_prose(text, prose_width(width))
    return lines


def _culprit_table(culprits: Sequence[CulpritView], width: int, *, roles: bool) -> list[Text]:
    header = ["setting", "base -> candidate", "alone", "beside", "share", "role"]
    names = [header[0], *(culprit.setting for culprit in culprits)]
    name = min(max(map(cell_len, names)), _WIDEST_SETTING)
    of_roles = len(_CULPRIT_GAP) + _ROLE_WIDTH if roles else 0
    drifts = [text for c in culprits for text in (c.alone, c.beside, c.share)]
    number = min(max(_NUMBER_WIDTH, *map(cell_len, drifts)), _WIDEST_NUMBER)
    taken = 2 + name + len(_CULPRIT_GAP) * 4 + number * 3 + of_roles
    if width - taken < _NARROWEST_VALUES:
        return _stacked_culprits(culprits, width)
    natural = max(cell_len(text) for text in (header[1], *(c.change for c in culprits)))
    values = min(natural, width - taken)
    widths = [name, values, number, number, number, _ROLE_WIDTH]
    used = slice(0, 6 if roles else 5)
    rows = [header, *map(_culprit_row, culprits)]
    lines = []
    for place, row in enumerate(rows):
        cells = [
            pad_text(cell, cells, right=2 <= at <= 4)
            for at, (cell, cells) in enumerate(zip(row[used], widths[used], strict=True))
        ]
        style = "dim" if place == 0 else ""
        lines.append(Text(fit_text("  " + _CULPRIT_GAP.join(cells).rstrip(), width), style=style))
    return lines


def _stacked_culprits(culprits: Sequence[CulpritView], width: int) -> list[Text]:
    """The same in a few short rows for each, where the terminal is narrow: no number is cut."""
    lines: list[str] = []
    for culprit in culprits:
        figures = (("alone", culprit.alone), ("beside", culprit.beside), ("share", culprit.share))
        cells = [f"{name} {value}" for name, value in figures]
        lines += wrap_text(f"{culprit.setting}: {culprit.change}", width, first="  ", rest="    ")
        cells += [culprit.role] if culprit.role else []
        lines += pack_lines(cells, width, gap=_CULPRIT_GAP, indent="    ")
    return [Text(line) for line in lines]


def _culprit_row(culprit: CulpritView) -> list[str]:
    return [
        culprit.setting,
        culprit.change,
        culprit.alone,
        culprit.beside,
        culprit.share,
        culprit.role,
    ]
