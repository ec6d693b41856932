"""The live line of a terminal: name, bar, and whatever the caller counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn
from rich.text import Text

if TYPE_CHECKING:
    pass


_BAR_WIDTH = 10
# Spinner, gaps, bar, and a count like "10,240/20,480 documents · 0:12 left".
_CELLS_BESIDE_NAME = 1 + 3 + _BAR_WIDTH + 36
_NARROWEST_NAME = 16


class _LiveText(ProgressColumn):
    """Asks for its text at every redraw, so that a remaining time runs down between blocks."""

    def __init__(self, text: Callable[[], str]) -> None:
        super().__init__()
        self._text = text

    def render(self, task: Task) -> Text:
        del task
        return Text(self._text(), no_wrap=True)


def open_bar(stream: TextIO, text: Callable[[], str]) -> Progress:
    """Start a live line on ``stream``, redrawn four times a second until ``stop``.

    Standard output stays untouched: it belongs to results.
    """
    bar = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=_BAR_WIDTH),
        _LiveText(text),
        console=Console(file=stream),
        refresh_per_second=4,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    bar.start()
    return bar


def name_width(bar: Progress) -> int:
    """Return how many cells the name in front of the bar may take."""
    return max(bar.console.width - _CELLS_BESIDE_NAME, _NARROWEST_NAME)
