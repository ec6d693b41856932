"""A bisection while it runs: what is tested, what is cleared, what remains."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan

from evalguard.bisect import Accepted, Cleared, Event, Expected, Probe, ProbeEnded, ProbeStarted
from evalguard.bisect_report import SIGMA
from evalguard.report.bisect_amount import amount, sized
from evalguard.report.bisect_words import listed
from evalguard.report.progress import Progress
from evalguard.report.resources import duration
from evalguard.report.rounding import count

_LONG = 10.0  # seconds: a probe that is announced where there is no live line
_NAMED = 3


class BisectProgress:
    """Shows the events of one search as lines, and the probe that runs as a live line.

    Attributes:
        cleared: settings that were told to be no longer suspected, and are not suspected again.
    """

    def __init__(
        self,
        progress: Progress,
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
        self._remaining = 0.0
        self._coarse = False
        self._number = 0

    def start(self, drift: float, expected: Sequence[float], *, coarse: bool = False) -> None:
        """Say what is about to be searched, and what that will cost.

        ``coarse``: only for the largest causes: what is none of them is cleared, if at all, by what
        they leave on all documents, and that is known at the end.
        """
        self._coarse = coarse
        number = len(self._settings)
        many = f"{number} setting{'' if number == 1 else 's'}"
        shown = [self._cost(cost) for cost in expected]
        found = amount(drift, 0.0, log_unit=self._log_unit, unit=self._unit)
        self._say(f"bisecting {self._subject}: {found}, {many}")
        culprits = f"1 to {len(shown)} culprits" if len(shown) > 1 else "1 culprit"
        self._say(f"expected: {', '.join(shown)} full evaluations for {culprits}")
        self._say("Ctrl-C stops the search and keeps the verdict")

    def __call__(self, event: Event) -> None:
        """Show an event."""
        if isinstance(event, ProbeStarted):
            self._started(event)
        elif isinstance(event, ProbeEnded):
            self._ended(event)
        elif isinstance(event, Cleared):
            self._cleared(event)
        elif isinstance(event, Accepted):
            self._say(f"culprit, on all documents: {event.setting}")
        else:
            self._expected(event)

    def _started(self, event: ProbeStarted) -> None:
        what = f"{self._names(event.settings)} on {count(event.documents)} documents"
        if event.cost * self._seconds >= _LONG:
            left = f"about {self._time(self._remaining)} left" if self._remaining else ""
            self._say("; ".join(part for part in (f"testing {what}", left) if part))
        self._progress.start("testing", self._names(event.settings), event.documents)

    def _ended(self, event: ProbeEnded) -> None:
        self._progress.stop()
        self._number += 1
        probe = event.probe
        text = f"probe {self._number}: {self._names(probe.settings)}: {self._found(probe)}"
        self._say(f"{text}; {event.spent:.1f} evaluations so far")

    def _found(self, probe: Probe) -> str:
        if probe.untestable:
            return f"cannot be run ({probe.untestable})"
        if isnan(probe.drift_sigma):
            return "no number"
        sigma, error = probe.drift_sigma, probe.error_sigma
        drift = sized(sigma, error, 0.0, log_unit=self._log_unit, unit=self._unit)
        unit = "" if drift.startswith("x") else f" {self._unit}"
        share = f"{count(probe.documents_so_far)} of {count(self._documents)}"
        return f"{drift}{unit} on {share} documents"

    def _cleared(self, event: Cleared) -> None:
        self.cleared |= set(event.settings)
        left = [name for name in self._settings if name not in self.cleared]
        said = "none of the largest causes" if self._coarse else "cleared"
        self._say(f"{said}: {listed(event.settings)}; left: {listed(left) or 'none'}")

    def _expected(self, event: Expected) -> None:
        self._remaining = event.remaining
        self.cleared -= set(event.suspects)

    def _names(self, settings: Sequence[str]) -> str:
        if len(settings) == len(self._settings):
            return f"all {len(self._settings)} settings"
        if 2 * len(settings) > len(self._settings):
            others = [name for name in self._settings if name not in settings]
            return f"all but {listed(others, most=_NAMED)}"
        return listed(settings, most=_NAMED)

    def _cost(self, evaluations: float) -> str:
        time = f" ({self._time(evaluations)})" if self._seconds else ""
        return f"{evaluations:.1f}{time}"

    def _time(self, evaluations: float) -> str:
        return duration(evaluations * self._seconds)

    def _say(self, text: str) -> None:
        self._progress.note(text)
