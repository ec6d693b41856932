"""Progress of a run on one live line of stderr, and its remaining time."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn
from rich.text import Text

from evalguard.page.rounding import format_count
from evalguard.page.safe_text import fit_text, printable

if TYPE_CHECKING:
    import rich.progress

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


_QUIET_SECONDS = 10.0
_WIDEST_NAME = 24


class ScoringPace:
    """How fast one model goes through one task, measured on its finished blocks.

    Documents taken from the score cache count as done and not towards the pace: they cost nothing
    and would promise too much.
    """

    def __init__(self, total: int, clock: Callable[[], float]) -> None:
        self.total = total
        self.done = 0
        self._clock = clock
        self._last = clock()
        self._scored = 0
        self._spent = 0.0

    def advance(self, documents: int, *, cached: bool) -> None:
        """Count a finished block."""
        now = self._clock()
        if not cached:
            self._scored += documents
            self._spent += now - self._last
        self.done += documents
        self._last = now

    def remaining(self) -> float | None:
        """Return the seconds left; None before the first scored block, or with nothing left.

        Between two blocks the time runs down; it never goes below zero.
        """
        pending = self.total - self.done
        if self._scored == 0 or pending <= 0:
            return None
        whole = pending * self._spent / self._scored
        return max(whole - (self._clock() - self._last), 0.0)


class ProgressLine:
    """Shows which model works on which task, as a live bar or as a line now and then.

    On a terminal: one live line. Elsewhere (a log, CI): one plain line at most every 10 seconds.
    With ``quiet``: nothing at all, notes included.

    >>> with ProgressLine(quiet=True) as progress:
    ...     progress.start("fla-port", "lastword", 2048)
    ...     progress.advance(512)
    """

    def __init__(
        self,
        *,
        stream: TextIO | None = None,
        quiet: bool = False,
        live: bool | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make a display; nothing is shown before ``start`` or ``note``.

        Args:
            stream: where to write; None: stderr as it is when this is called.
            quiet: show nothing.
            live: whether to draw a live line; None: if ``stream`` is a terminal.
            clock: seconds that only go forward.
        """
        self._stream = sys.stderr if stream is None else stream
        self._quiet = quiet
        self._clock = clock
        self._live = self._stream.isatty() if live is None else live
        self._bar: rich.progress.Progress | None = None
        self._task: rich.progress.TaskID | None = None
        self._name = ""
        self._pace = ScoringPace(0, clock)
        self._shown_at = clock()

    def start(self, model: str, task: str, total: int) -> None:
        """Begin a task of ``total`` documents; what ran before counts as over."""
        names = (fit_text(printable(name), _WIDEST_NAME) for name in (model, task))
        self._name = " · ".join(names)
        self._pace = ScoringPace(total, self._clock)
        if self._quiet or not self._live:
            return

        bar = self._open_bar()
        if self._task is not None:
            bar.remove_task(self._task)
        self._task = bar.add_task(fit_text(self._name, name_width(bar)), total=total)

    def advance(self, documents: int, *, cached: bool = False) -> None:
        """Count a finished block of documents; ``cached`` if nothing had to be scored for it."""
        self._pace.advance(documents, cached=cached)
        if self._quiet:
            return
        if self._bar is not None and self._task is not None:
            self._bar.advance(self._task, documents)
        elif not self._live and self._clock() - self._shown_at >= _QUIET_SECONDS:
            self._shown_at = self._clock()
            self._write(self.line())

    def note(self, text: str) -> None:
        """Show one line of text above the live line."""
        if self._quiet:
            return
        if self._bar is None:
            self._write(printable(text))
        else:
            from rich.text import Text

            self._bar.console.print(Text(printable(text), style="dim"))

    def stop(self) -> None:
        """Take the live line away. May be called twice, and ``start`` may follow."""
        if self._bar is not None:
            self._bar.stop()
        self._bar = None
        self._task = None

    def line(self) -> str:
        """Return "fla-port · lastword · 512/2,048 documents · 0:12 left"."""
        pace = self._pace
        parts = [
            self._name,
            f"{format_count(pace.done)}/{format_count(pace.total)} documents",
            self._time_left(),
        ]
        return " · ".join(part for part in parts if part)

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _time_left(self) -> str:
        seconds = self._pace.remaining()
        return "" if seconds is None else f"{clock_time(seconds)} left"

    def _write(self, text: str) -> None:
        try:
            self._stream.write(f"{text}\n")
            self._stream.flush()
        except OSError:
            # Full, or nobody reads it (`2>&1 | head`): that must not cost the verdict.
            self._quiet = True

    def _open_bar(self) -> rich.progress.Progress:
        if self._bar is None:
            self._bar = open_bar(self._stream, self._counted)
        return self._bar

    def _counted(self) -> str:
        """Return what stands behind the bar: the line without its name."""
        return self.line().removeprefix(f"{self._name} · ")


def clock_time(seconds: float) -> str:
    """Return a duration as "0:12", "3:05" or "1:02:40", rounded up to a whole second."""
    whole = int(-(-seconds // 1))
    minutes, second = divmod(whole, 60)
    hour, minute = divmod(minutes, 60)
    return f"{hour}:{minute:02}:{second:02}" if hour else f"{minute}:{second:02}"
