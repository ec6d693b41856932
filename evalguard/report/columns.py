"""Columns side by side that leave the terminal from the right where it is too narrow."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.text import Text

from evalguard.report.plain_text import fitted, padded

_GAP = "  "
_FEWEST = 2


def column_widths(rows: Sequence[Sequence[str]], width: int) -> list[int]:
    """Widths of the columns that fit into ``width``; the first two always stay."""
    widths = [max(cell_len(text) for text in column) for column in zip(*rows, strict=True)]
    while len(widths) > _FEWEST and sum(widths) + len(_GAP) * (len(widths) - 1) > width:
        widths.pop()
    return widths


def row_text(cells: Sequence[str], widths: Sequence[int], width: int, *, style: str = "") -> Text:
    """One line of cells in columns of these widths; cells beyond them are left out."""
    shown = (padded(text, w) for text, w in zip(cells, widths, strict=False))
    return Text(fitted(_GAP.join(shown).rstrip(), width), style=style)
