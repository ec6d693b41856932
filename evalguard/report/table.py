"""The table of comparisons, laid out for the width there is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.text import Text

from evalguard.comparison import Comparison
from evalguard.report import rounding
from evalguard.report.plain_text import fitted, padded, printable, wrapped
from evalguard.report.wording import OUTCOME_STYLE, metric_label, percent

_GAP = 2
_INDENT = 2
_NARROWEST_LABEL = 12
_WIDE = 110


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    header: str
    cells: Sequence[str]
    right: bool = True

    @property
    def width(self) -> int:
        return max(cell_len(text) for text in (self.header, *self.cells))


def table(comparisons: Sequence[Comparison], *, width: int, margin: float) -> list[Text]:
    """Return the lines of the table, none wider than ``width`` cells.

    The widest of three layouts that fits is taken: one row per metric with standard errors, number
    of documents and false-alarm probability (from 110 columns on); one row per metric; two short
    rows per metric.
    """
    if not comparisons:
        return []
    columns = _columns(comparisons, margin)
    if width >= _WIDE:
        wide = _wide_columns(comparisons, columns)
        if _room_for_label(wide, width) >= _widest_label(comparisons):
            return list(_rows(comparisons, wide, width))
    wanted = min(_widest_label(comparisons), _NARROWEST_LABEL)
    if _room_for_label(columns, width) >= wanted:
        return list(_rows(comparisons, columns, width))
    return list(_stacked(comparisons, columns, width))


def _columns(comparisons: Sequence[Comparison], margin: float) -> list[_Column]:
    pairs = [
        rounding.rounded_pair((c.base, c.base_stderr), (c.candidate, c.candidate_stderr))
        for c in comparisons
    ]
    return [
        _Column(header="base", cells=[base for base, _ in pairs]),
        _Column(header="candidate", cells=[candidate for _, candidate in pairs]),
        _Column(
            header=f"sigma [{_confidence(comparisons)}]",
            cells=_sigma_cells(comparisons, margin),
            right=False,
        ),
        _Column(header="paired p", cells=[rounding.p_value(c.p_value) for c in comparisons]),
        _Column(header="outcome", cells=[c.outcome for c in comparisons], right=False),
    ]


def _wide_columns(comparisons: Sequence[Comparison], columns: Sequence[_Column]) -> list[_Column]:
    sigma, p, outcome = columns[2:]
    alarms = [rounding.p_value(c.false_alarm_probability) for c in comparisons]
    return [
        _Column(header="n", cells=[rounding.count(c.n_used) for c in comparisons]),
        _Column(
            header="base",
            cells=[rounding.with_stderr(c.base, c.base_stderr) for c in comparisons],
        ),
        _Column(
            header="candidate",
            cells=[rounding.with_stderr(c.candidate, c.candidate_stderr) for c in comparisons],
        ),
        sigma,
        p,
        _Column(header="false alarm", cells=alarms),
        outcome,
    ]


def _confidence(comparisons: Sequence[Comparison]) -> str:
    levels = {c.confidence for c in comparisons}
    return f"{percent(levels.pop())} interval" if len(levels) == 1 else "interval"


def _sigma_cells(comparisons: Sequence[Comparison], margin: float) -> list[str]:
    parts = [
        rounding.sigma_with_interval(c.sigma, c.sigma_interval, margin=margin) for c in comparisons
    ]
    heads = [
        "0" if c.bit_identical else head for c, (head, _, _) in zip(comparisons, parts, strict=True)
    ]
    indent = max(len(head) for head in heads)
    return [
        f"{head:>{indent}}{_interval(c, low, high)}"
        for c, head, (_, low, high) in zip(comparisons, heads, parts, strict=True)
    ]


def _interval(comparison: Comparison, low: str, high: str) -> str:
    if comparison.bit_identical:
        return " bit-identical"
    return "" if comparison.sigma_interval is None else f" [{low}, {high}]"


def _room_for_label(columns: Sequence[_Column], width: int) -> int:
    return width - _INDENT - sum(column.width + _GAP for column in columns)


def _widest_label(comparisons: Sequence[Comparison]) -> int:
    return max(cell_len(metric_label(c)) for c in comparisons)


def _rows(
    comparisons: Sequence[Comparison], columns: Sequence[_Column], width: int
) -> Iterator[Text]:
    label = min(_room_for_label(columns, width), _widest_label(comparisons))
    gap = " " * _GAP
    header = [padded(c.header, c.width, right=c.right) for c in columns]
    yield Text(gap.join([" " * (_INDENT + label), *header]).rstrip(), style="dim")
    for heading, numbers in _groups(comparisons, width):
        yield heading
        for number in numbers:
            comparison = comparisons[number]
            cells = [padded(c.cells[number], c.width, right=c.right) for c in columns[:-1]]
            name = " " * _INDENT + padded(metric_label(comparison), label)
            yield _with_outcome(gap.join([name, *cells]) + gap, comparison)
            yield from _failure(comparison, width)


def _stacked(
    comparisons: Sequence[Comparison], columns: Sequence[_Column], width: int
) -> Iterator[Text]:
    base, candidate, sigma, p, outcome = columns
    yield Text(fitted(f"base -> candidate, {sigma.header}, paired p", width), style="dim")
    indent = " " * _INDENT
    for heading, numbers in _groups(comparisons, width):
        yield heading
        for number in numbers:
            comparison = comparisons[number]
            room = max(width - outcome.width - _GAP - _INDENT, 0)
            name = indent + padded(metric_label(comparison), room) + " " * _GAP
            yield _cut(_with_outcome(name, comparison), width)
            drift = sigma.cells[number].strip()
            values = f"{base.cells[number]} -> {candidate.cells[number]}"
            line = f"{indent * 2}{values}   {drift}   p {p.cells[number]}"
            yield Text(fitted(line, width))
            yield from _failure(comparison, width)


def _groups(comparisons: Sequence[Comparison], width: int) -> Iterator[tuple[Text, list[int]]]:
    """Yield each task's heading with the positions of its comparisons."""
    tasks = dict.fromkeys(comparison.task for comparison in comparisons)
    for task in tasks:
        numbers = [i for i, comparison in enumerate(comparisons) if comparison.task == task]
        sizes = sorted({comparisons[number].n for number in numbers})
        shown = rounding.count(sizes[0])
        if len(sizes) > 1:
            shown += f" to {rounding.count(sizes[-1])}"
        noun = "document" if shown == "1" else "documents"
        below = len(comparisons[numbers[0]].subtasks)
        within = f" in {below} subtask{'' if below == 1 else 's'}" if below else ""
        tail = fitted(f" · {shown} {noun}{within}", width)
        name = fitted(printable(task), max(width - cell_len(tail), 0))
        yield Text.assemble((name, "bold"), (tail, "dim")), numbers


def _with_outcome(head: str, comparison: Comparison) -> Text:
    return Text.assemble(head, (comparison.outcome, OUTCOME_STYLE[comparison.outcome]))


def _failure(comparison: Comparison, width: int) -> Iterator[Text]:
    if comparison.outcome == "failed":
        indent = " " * (2 * _INDENT)
        for line in wrapped(printable(comparison.reason), width, first=indent, rest=indent):
            yield _cut(Text(line, style="magenta"), width)


def _cut(text: Text, width: int) -> Text:
    text.truncate(width, overflow="crop")
    return text
