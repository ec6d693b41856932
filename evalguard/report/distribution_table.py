"""The table of distributions, laid out for the width there is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len

from evalguard.report.plain_text import fitted, padded, wrapped
from evalguard.report.view import DistributionView, ReportView

_TITLE = "Distributions"
_GAP, _INDENT, _NARROWEST_LABEL = 2, 2, 12
# Least important first: what goes where the terminal is too narrow for all.
_FIRST_TO_GO = ("positions", "max", "Δp rms", "99%", "top-1")


@dataclass(frozen=True, slots=True)
class _Column:
    header: str
    cells: Sequence[str]

    @property
    def width(self) -> int:
        return max(cell_len(text) for text in (self.header, *self.cells))


def distribution_lines(view: ReportView, width: int, prose: int) -> list[str]:
    """Return the table's lines, none wider than ``width``, and sentences within ``prose``."""
    measured = [one for one in view.distributions if one.known]
    lines = _table(measured, width) if measured else []
    sentences = [sentence for one in view.distributions for sentence in one.sentences]
    for sentence in (view.distributions_legend, *sentences):
        lines += wrapped(sentence, prose) if sentence else []
    return lines


def _table(distributions: Sequence[DistributionView], width: int) -> list[str]:
    columns = _columns(distributions)
    for header in _FIRST_TO_GO:
        if _room(columns, width) >= _NARROWEST_LABEL:
            break
        columns = [column for column in columns if column.header != header]
    longest = max(*(cell_len(one.task) for one in distributions), cell_len(_TITLE) - _INDENT)
    label = min(max(_room(columns, width), 0), longest)
    gap, indent = " " * _GAP, " " * _INDENT
    headers = [padded(column.header, column.width, right=True) for column in columns]
    lines = [gap.join([padded(_TITLE, _INDENT + label), *headers])]
    for row, one in enumerate(distributions):
        cells = [padded(column.cells[row], column.width, right=True) for column in columns]
        lines.append(gap.join([indent + padded(one.task, label), *cells]))
    return [fitted(line.rstrip(), width) for line in lines]


def _room(columns: Sequence[_Column], width: int) -> int:
    return width - _INDENT - sum(column.width + _GAP for column in columns)


def _columns(distributions: Sequence[DistributionView]) -> list[_Column]:
    return [
        _Column("positions", [one.positions for one in distributions]),
        _Column("KL mean", [one.kl for one in distributions]),
        _Column("99%", [one.kl_p99 for one in distributions]),
        _Column("max", [one.kl_max for one in distributions]),
        _Column("Δp rms", [one.dp_rms for one in distributions]),
        _Column("top-1", [one.same_top1 for one in distributions]),
    ]
