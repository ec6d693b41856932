"""The bisection in a terminal: a table of culprits, what is cleared, the cost, and the repair."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.text import Text

from evalguard.report.page import prose, prose_width
from evalguard.report.plain_text import fitted, packed, padded, wrapped
from evalguard.report.view import CulpritView, ReportView, SearchView

_NAME, _ROLE, _GAP = 20, 9, "  "
_NUMBER, _WIDEST_NUMBER = 8, 11
_NARROWEST_VALUES = 9


def bisect_lines(view: ReportView, width: int) -> list[Text]:
    """Return the block of a bisection; a line with the reason where one was to be expected."""
    found = view.bisection
    if found is None:
        reason = view.bisection_reason
        return prose(f"Not bisected: {reason}.", width) if reason else []
    lines: list[Text] = []
    tables = [search for search in found.searches if search.culprits]
    for search in found.searches:
        lines += [Text()] if lines else []
        last = search is tables[-1] if tables else False
        lines += _search(search, width, legend=found.legend if last else "")
    for text in found.sentences:
        lines += prose(text, width)
    return lines


def fix_lines(view: ReportView, width: int) -> list[Text]:
    """Return the lines of a guard file that put the culprits right."""
    fix = None if view.bisection is None else view.bisection.fix
    if fix is None:
        return []
    body = [Text(f"  {line}", style="cyan") for line in fix.lines]
    return [*prose(fix.head, width), *body]


def _search(search: SearchView, width: int, *, legend: str) -> list[Text]:
    lines = prose(search.title, width, style="bold")
    lines += prose(search.facts, width, style="dim")
    if search.culprits:
        lines += _culprits(search, width)
    lines += prose(legend, width, style="dim")
    for text in (search.cleared, search.beside):
        lines += prose(text, prose_width(width))
    return lines


def _culprits(search: SearchView, width: int) -> list[Text]:
    header = ["setting", "base -> candidate", "alone", "beside", "share", "role"]
    names = [header[0], *(culprit.setting for culprit in search.culprits)]
    name = min(max(map(cell_len, names)), _NAME)
    of_roles = len(_GAP) + _ROLE if search.roles else 0
    drifts = [text for c in search.culprits for text in (c.alone, c.beside, c.share)]
    number = min(max(_NUMBER, *map(cell_len, drifts)), _WIDEST_NUMBER)
    taken = 2 + name + len(_GAP) * 4 + number * 3 + of_roles
    if width - taken < _NARROWEST_VALUES:
        return _stacked(search.culprits, width)
    natural = max(cell_len(text) for text in (header[1], *(c.change for c in search.culprits)))
    values = min(natural, width - taken)
    widths = [name, values, number, number, number, _ROLE]
    used = slice(0, 6 if search.roles else 5)
    rows = [header, *map(_row, search.culprits)]
    lines = []
    for place, row in enumerate(rows):
        cells = [
            padded(cell, cells, right=2 <= at <= 4)
            for at, (cell, cells) in enumerate(zip(row[used], widths[used], strict=True))
        ]
        style = "dim" if place == 0 else ""
        lines.append(Text(fitted("  " + _GAP.join(cells).rstrip(), width), style=style))
    return lines


def _stacked(culprits: Sequence[CulpritView], width: int) -> list[Text]:
    """The same in a few short rows for each, where the terminal is narrow: no number is cut."""
    lines: list[str] = []
    for culprit in culprits:
        figures = (("alone", culprit.alone), ("beside", culprit.beside), ("share", culprit.share))
        cells = [f"{name} {value}" for name, value in figures]
        lines += wrapped(f"{culprit.setting}: {culprit.change}", width, first="  ", rest="    ")
        cells += [culprit.role] if culprit.role else []
        lines += packed(cells, width, gap=_GAP, indent="    ")
    return [Text(line) for line in lines]


def _row(culprit: CulpritView) -> list[str]:
    return [
        culprit.setting,
        culprit.change,
        culprit.alone,
        culprit.beside,
        culprit.share,
        culprit.role,
    ]
