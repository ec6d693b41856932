"""Progress on stderr: the live line of a scoring run, its remaining time, and the probes of a
bisection.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from math import isnan
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn
from rich.text import Text

from evalguard.bisect.events import Accepted, Cleared, Event, Expected, ProbeEnded, ProbeStarted
from evalguard.bisect.search_probe import Probe
from evalguard.core.reports.bisect_report import SIGMA
from evalguard.report.words.bisection import drift_phrase, format_drift, list_names
from evalguard.report.words.costs import format_duration
from evalguard.report.words.plain_text import fit_text, printable
from evalguard.report.words.rounding import format_count

if TYPE_CHECKING:
    import rich.progress


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
        left = self.total - self.done
        if self._scored == 0 or left <= 0:
            return None
        whole = left * self._spent / self._scored
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


# The live line of a terminal: name, bar, and whatever the caller counts.


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


# A bisection while it runs: what is tested, what is cleared, what remains.


_LONG_SECONDS = 10.0  # seconds: a probe that is announced where there is no live line
_MOST_NAMED = 3


class BisectionProgress:
    """Shows the events of one search as lines, and the probe that runs as a live line.

    Attributes:
        cleared: settings that were told to be no longer suspected, and are not suspected again.
    """

    def __init__(
        self,
        progress: ProgressLine,
        *,
        settings: Sequence[str],
        documents: int,
        seconds: float,
        subject: str,
        log_unit: float = 0.0,
        unit: str = SIGMA,
    ) -> None:
        """``seconds``: of a full evaluation, 0: unknown; ``subject``: what is searched, in words;
        ``log_unit`` and ``unit``: as of ``MetricSearch``.
        """
        self.cleared: set[str] = set()
        self._progress, self._settings, self._documents = progress, settings, documents
        self._seconds, self._subject = seconds, subject
        self._log_unit, self._unit = log_unit, unit
        self._doubted: set[str] = set()
        self._remaining = 0.0
        self._coarse = False
        self._number = 0
        self._announced: float | None = None
        self._spent = 0.0

    def start(
        self,
        drift: float,
        expected: Sequence[float],
        *,
        coarse: bool = False,
        announced: float | None = None,
        spent: float = 0.0,
    ) -> None:
        """Say what is about to be searched, and what that will cost.

        ``announced``: evaluations of the whole bisection, of which ``spent`` are gone.

        ``coarse``: only for the largest causes: what is none of them is cleared, if at all, by what
        they leave on all documents, and that is known at the end.
        """
        self._coarse, self._announced, self._spent = coarse, announced, spent
        number = len(self._settings)
        many = f"{number} setting{'' if number == 1 else 's'}"
        shown = [self._cost(cost) for cost in expected]
        found = drift_phrase(drift, 0.0, log_unit=self._log_unit, unit=self._unit)
        self._say(f"bisecting {self._subject}: {found}, {many}")
        culprits = f"1 to {len(shown)} culprits" if len(shown) > 1 else "1 culprit"
        if any(expected) or announced:
            self._say(f"expected: {', '.join(shown)} full evaluations for {culprits}")
        else:
            self._say("expected: no evaluation more, for one setting is all that differs")
        if announced and not spent:
            self._say(f"at most about {self._cost(announced)} with what lies inside the culprits")
        self._say("Ctrl-C stops the search and keeps the verdict")

    def __call__(self, event: Event) -> None:
        """Show an event."""
        if isinstance(event, ProbeStarted):
            self._started(event)
        elif isinstance(event, ProbeEnded):
            self._end_probe(event)
        elif isinstance(event, Cleared):
            self._cleared(event)
        elif isinstance(event, Accepted):
            self._accepted(event)
        else:
            self._expected(event)

    def _started(self, event: ProbeStarted) -> None:
        what = f"{self._names(event.settings)} on {format_count(event.documents)} documents"
        if event.cost * self._seconds >= _LONG_SECONDS:
            left = f"about {self._time(self._remaining)} left" if self._remaining else ""
            self._say("; ".join(part for part in (f"testing {what}", left) if part))
        self._progress.start("testing", self._names(event.settings), event.documents)

    def _end_probe(self, event: ProbeEnded) -> None:
        self._progress.stop()
        self._number += 1
        probe = event.probe
        text = f"probe {self._number}: {self._names(probe.settings)}: {self._found(probe)}"
        spent = self._spent + event.spent
        of = f" of about {self._announced:.1f}" if self._announced is not None else ""
        known = self._seconds and self._remaining
        left = f", about {self._time(self._remaining)} left" if known else ""
        self._say(f"{text}; {spent:.1f}{of} evaluations so far{left}")

    def _found(self, probe: Probe) -> str:
        if probe.untestable:
            return f"cannot be run ({probe.untestable})"
        if isnan(probe.drift_sigma):
            return "no number"
        sigma, error = probe.drift_sigma, probe.error_sigma
        drift = format_drift(sigma, error, 0.0, log_unit=self._log_unit, unit=self._unit)
        unit = "" if drift.startswith("x") else f" {self._unit}"
        share = f"{format_count(probe.documents_so_far)} of {format_count(self._documents)}"
        return f"{drift}{unit} on {share} documents"

    def _cleared(self, event: Cleared) -> None:
        """What is improbable by now: on part of the documents nothing is cleared for good."""
        self.cleared |= set(event.settings)
        self._doubted |= set(event.settings)
        left = [name for name in self._settings if name not in self.cleared]
        said = "hardly one of the largest causes" if self._coarse else "improbable by now"
        self._say(f"{said}: {list_names(event.settings)}; left: {list_names(left) or 'none'}")

    def _accepted(self, event: Accepted) -> None:
        doubted = event.setting in self._doubted
        before = ", although improbable on fewer" if doubted else ""
        self._say(f"culprit, on all documents{before}: {event.setting}")

    def _expected(self, event: Expected) -> None:
        self._remaining = event.remaining
        self.cleared -= set(event.suspects)

    def _names(self, settings: Sequence[str]) -> str:
        if len(settings) == len(self._settings):
            return f"all {len(self._settings)} settings"
        if 2 * len(settings) > len(self._settings):
            others = [name for name in self._settings if name not in settings]
            return f"all but {list_names(others, most=_MOST_NAMED)}"
        return list_names(settings, most=_MOST_NAMED)

    def _cost(self, evaluations: float) -> str:
        time = f" ({self._time(evaluations)})" if self._seconds else ""
        return f"{evaluations:.1f}{time}"

    def _time(self, evaluations: float) -> str:
        return format_duration(evaluations * self._seconds)

    def _say(self, text: str) -> None:
        self._progress.note(text)
