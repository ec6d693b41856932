"""The bisection in a terminal: a table of culprits, what is cleared, the cost, and the repair."""

from __future__ import annotations

import json

from rich.cells import cell_len
from rich.text import Text

from evalguard.bisect_report import GuiltySetting, MetricSearch
from evalguard.compare_report import CompareReport
from evalguard.report.bisect_words import (
    beside_text,
    cleared_text,
    cost_text,
    facts,
    listed,
    repaired_text,
    shown_roles,
    sized,
    subject_of,
)
from evalguard.report.page import prose, prose_width
from evalguard.report.plain_text import fitted, padded, printable
from evalguard.settings import Value

_NAME, _NUMBER, _ROLE, _GAP = 20, 8, 9, "  "
_NARROWEST_VALUES = 9
_LEGEND = "Sigma of each alone, beside the other culprits, and as its share (Shapley)."


def bisect_lines(report: CompareReport, width: int) -> list[Text]:
    """Return the block of a bisection; a line with the reason where one was to be expected."""
    found = report.bisect
    if found is None:
        reason = printable(report.bisect_reason)
        return prose(f"Not bisected: {reason}.", width) if reason else []
    lines: list[Text] = []
    tables = [search for search in found.searches if search.culprits]
    for search in found.searches:
        last = search in tables[-1:]
        lines += _search(search, width, legend=_legend(tables) if last else "")
    texts = [repaired_text(found.repaired), *found.notes, cost_text(found)]
    for text in texts:
        lines += prose(printable(text), width)
    return lines


def fix_lines(report: CompareReport, width: int) -> list[Text]:
    """Return the lines of a guard file that put the culprits right."""
    found = report.bisect
    if found is None or not found.fix:
        return []
    if found.derived:
        what = "holds the base and the repaired candidate"
        return prose(f"The repair: {printable(found.fix_where)} {what}.", width)
    head = f"The repair, in {printable(found.fix_where)}:" if found.fix_where else "The repair:"
    body = [f"  {printable(line)}" for line in found.fix.split("\n")]
    return [*prose(head, width), *(Text(line, style="cyan") for line in body)]


def _search(search: MetricSearch, width: int, *, legend: str) -> list[Text]:
    head = f"Inside {listed(search.inside)}" if search.inside else "Bisection"
    lines = [Text(fitted(f"{head} of {subject_of(search)}", width), style="bold")]
    lines += prose(facts(search), width, style="dim")
    if search.culprits:
        lines += _culprits(search, width)
    if legend:
        lines += prose(legend, width, style="dim")
    for text in (cleared_text(search), beside_text(search)):
        lines += prose(text, prose_width(width))
    return lines


def _legend(searches: list[MetricSearch]) -> str:
    partly = any(_partly(culprit) for search in searches for culprit in search.culprits)
    return _LEGEND + (" ~: on part of the documents." if partly else "")


def _culprits(search: MetricSearch, width: int) -> list[Text]:
    roles = shown_roles(search.culprits)
    header = ["setting", "base -> candidate", "alone", "beside", "share", "role"]
    names = [header[0], *(printable(culprit.setting) for culprit in search.culprits)]
    name = min(max(map(cell_len, names)), _NAME)
    taken = 2 + name + len(_GAP) * 4 + _NUMBER * 3 + (len(_GAP) + _ROLE if roles else 0)
    natural = max(cell_len(text) for text in (header[1], *map(_change, search.culprits)))
    values = max(min(natural, width - taken), _NARROWEST_VALUES)
    widths = [name, values, _NUMBER, _NUMBER, _NUMBER, _ROLE]
    used = slice(0, 6 if roles else 5)
    rows = [header, *(_row(culprit, search.margin) for culprit in search.culprits)]
    lines = []
    for number, row in enumerate(rows):
        cells = [
            padded(cell, cells, right=2 <= at <= 4)
            for at, (cell, cells) in enumerate(zip(row[used], widths[used], strict=True))
        ]
        style = "dim" if number == 0 else ""
        lines.append(Text(fitted("  " + _GAP.join(cells).rstrip(), width), style=style))
    return lines


def _row(culprit: GuiltySetting, margin: float) -> list[str]:
    numbers = (culprit.sigma_in_context, culprit.shapley_sigma)
    error = culprit.alone_error_sigma or 0.0
    alone = sized(culprit.sigma_alone, error, margin)
    return [
        printable(culprit.setting),
        _change(culprit),
        f"~{alone}" if _partly(culprit) else alone,
        *(sized(number, culprit.error_sigma, margin) for number in numbers),
        culprit.role,
    ]


def _partly(culprit: GuiltySetting) -> bool:
    """Whether what it does alone was measured on some of the documents only."""
    return culprit.sigma_alone is not None and culprit.alone_share < 1.0


def _change(culprit: GuiltySetting) -> str:
    return f"{value_text(culprit.reference)} -> {value_text(culprit.candidate)}"


def value_text(value: Value) -> str:
    """Return a setting's value as it stands in a guard file, a number with few digits."""
    if isinstance(value, float):
        return f"{value:.6g}"
    return printable(value) if isinstance(value, str) else printable(json.dumps(value))
