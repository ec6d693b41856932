"""A table: its rows side by side in a terminal of any width, or in Markdown; in HTML by the macro
``table`` of the templates.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.text import Text

from evalguard.page.safe_text import fit_text, inline, pad_text, wrap_text

_GAP = 2
_LEAST_WRAPPED = 14


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Texts in rows; a cell that is a ``Text`` keeps its style.

    Attributes:
        headings: one a column.
        rows: as many cells each.
        right: columns that are flush right.
        leaving: columns in the order in which they leave where a terminal is too narrow; None: from
            the right, and the first two stay.
        giving_way: the column that is cut before a line is, in its middle; None: none. Columns
            leave before it has fewer than ``least`` cells.
        wrapping: the last column, whose texts go on on further lines; False: one line a row.
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[str | Text]]
    right: Collection[int] = ()
    leaving: Sequence[int] | None = None
    giving_way: int | None = None
    least: int = 0
    wrapping: bool = False

    def lines(self, width: int, styles: Sequence[str] = ()) -> list[Text]:
        """Return the headings and each row as lines, none wider than ``width`` cells.

        A row is one line, but for one whose last text goes on.

        Args:
            styles: of the headings, and of each row; dim headings where none is given.
        """
        widths = self._fitted(width)
        styles = styles or ("dim", *[""] * len(self.rows))
        table = zip((self.headings, *self.rows), styles, strict=True)
        return [
            self._line(cells, widths, width, style)
            for row, style in table
            for cells in self._wrapped(row, widths)
        ]

    def room(self, width: int) -> int:
        """Return how many cells are left for the column that gives way beside all others."""
        widths = self.natural_widths()
        del widths[self.giving_way or 0]
        return width - sum(widths) - _GAP * len(widths)

    def fits(self, width: int) -> bool:
        """Whether all of it stands side by side, uncut."""
        return self.room(width) >= self.natural_widths()[self.giving_way or 0]

    def kept(self, width: int) -> list[int]:
        """Return the columns that stay in a terminal of a width."""
        return [*self._fitted(width)]

    def markdown(self) -> str:
        """Return the table in Markdown, "" without rows; headings are Markdown, cells are not."""
        if not self.rows:
            return ""
        rules = ["---:" if column in self.right else "---" for column in range(len(self.headings))]
        cells = [self.headings, rules, *([inline(str(cell)) for cell in row] for row in self.rows)]
        return "\n".join(f"| {' | '.join(row)} |" for row in cells)

    def natural_widths(self) -> list[int]:
        """Return how wide each column is where there is room for all."""
        return [
            max(cell_len(str(cell)) for cell in column)
            for column in zip(self.headings, *self.rows, strict=True)
        ]

    def _fitted(self, width: int) -> dict[int, int]:
        """The columns that stay, and how wide each is."""
        widths = dict(enumerate(self.natural_widths()))
        flexible = -1 if self.giving_way is None else self.giving_way
        last = len(widths) - 1
        whole = widths[last]
        if self.wrapping:
            widths[last] = min(whole, _LEAST_WRAPPED)
        leaving = range(len(widths) - 1, 1, -1) if self.leaving is None else self.leaving
        for column in leaving:
            if _taken(widths) - max(widths.get(flexible, 0) - self.least, 0) <= width:
                break
            del widths[column]
        if flexible in widths:
            over = max(_taken(widths) - width, 0)
            widths[flexible] = max(widths[flexible] - over, 0)
        if self.wrapping and last in widths:
            widths[last] = min(whole, widths[last] + max(width - _taken(widths), 0))
        return widths

    def _wrapped(
        self, row: Sequence[str | Text], widths: dict[int, int]
    ) -> Iterator[Sequence[str | Text]]:
        last = len(row) - 1
        if not self.wrapping or last not in widths:
            yield row
            return
        first, *following = wrap_text(str(row[-1]), widths[last])
        yield [*row[:-1], first]
        yield from ([*[""] * last, text] for text in following)

    def _line(
        self, row: Sequence[str | Text], widths: dict[int, int], width: int, style: str
    ) -> Text:
        line = Text(style=style)
        for column, cells in widths.items():
            cell = row[column]
            padded = pad_text(str(cell), cells, right=column in self.right)
            line.append(" " * (_GAP if line else 0))
            line.append(padded, cell.style if isinstance(cell, Text) else None)
        line.rstrip()
        return line if line.cell_len <= width else Text(fit_text(line.plain, width), style=style)


def _taken(widths: dict[int, int]) -> int:
    return sum(widths.values()) + _GAP * (len(widths) - 1)
