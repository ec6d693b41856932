"""Tables of the compare report in a terminal: metrics, next-token distributions, culprits of a
bisection.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from rich.cells import cell_len
from rich.text import Text

from evalguard.core.gate_state import GateState
from evalguard.report.page import prose_width, wrap_prose
from evalguard.report.table import Table
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
    head, *lines = table.lines(width)
    yield head
    for heading, numbered in _task_groups(tasks, width):
        yield heading
        for number, metric in numbered:
            yield lines[number]
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


# The table of distributions, laid out for the width there is.


_NARROWEST_TASK = 12


def distribution_lines(view: ReportView, width: int, prose: int) -> list[str]:
    """Return the table's lines, none wider than ``width``, and sentences within ``prose``."""
    measured = [one for one in view.distributions if one.known]
    lines = _distribution_table(measured, width) if measured else []
    sentences = [sentence for one in view.distributions for sentence in one.sentences]
    for sentence in (view.distributions_legend, *sentences):
        lines += wrap_text(sentence, prose) if sentence else []
    return lines


def _distribution_table(distributions: Sequence[DistributionView], width: int) -> list[str]:
    rows = [
        [f"  {one.task}", one.positions, one.kl, one.kl_p99, one.kl_max, one.dp_rms, one.same_top1]
        for one in distributions
    ]
    table = Table(
        headings=["Distributions", "positions", "KL mean", "99%", "max", "Δp rms", "top-1"],
        rows=rows,
        right=range(1, 7),
        leaving=(1, 4, 5, 3, 6),  # least important first
        giving_way=0,
        least=_NARROWEST_TASK + 2,
    )
    return [line.plain for line in table.lines(width)]


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
