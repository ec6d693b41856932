"""A bisection while it runs: what is tested, what is cleared, what remains."""

from __future__ import annotations

from collections.abc import Sequence

from evalguard.bisect.bisect_words import drift_phrase, format_drift
from evalguard.bisect.search.search_result import (
    Accepted,
    Cleared,
    Event,
    Expected,
    Probe,
    ProbeEnded,
    ProbeStarted,
)
from evalguard.core.verdict import SIGMA
from evalguard.page.phrases import list_names
from evalguard.page.progress import ProgressLine
from evalguard.page.rounding import format_count
from evalguard.report.run_costs import format_duration

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
        phrase = drift_phrase(drift, 0.0, log_unit=self._log_unit, unit=self._unit)
        self._say(f"bisecting {self._subject}: {phrase}, {many}")
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
            remaining = f"about {self._time(self._remaining)} left" if self._remaining else ""
            self._say("; ".join(part for part in (f"testing {what}", remaining) if part))
        self._progress.start("testing", self._names(event.settings), event.documents)

    def _end_probe(self, event: ProbeEnded) -> None:
        self._progress.stop()
        self._number += 1
        probe = event.probe
        text = f"probe {self._number}: {self._names(probe.settings)}: {self._found(probe)}"
        spent = self._spent + event.spent
        of = f" of about {self._announced:.1f}" if self._announced is not None else ""
        known = self._seconds and self._remaining
        remaining = f", about {self._time(self._remaining)} left" if known else ""
        self._say(f"{text}; {spent:.1f}{of} evaluations so far{remaining}")

    def _found(self, probe: Probe) -> str:
        if probe.reason:
            return f"cannot be run ({probe.reason})"
        sigma, error = probe.drift_sigma, probe.error_sigma
        if sigma is None or error is None:
            return "no number"
        drift = format_drift(sigma, error, 0.0, log_unit=self._log_unit, unit=self._unit)
        unit = "" if drift.startswith("x") else f" {self._unit}"
        share = f"{format_count(probe.documents_so_far)} of {format_count(self._documents)}"
        return f"{drift}{unit} on {share} documents"

    def _cleared(self, event: Cleared) -> None:
        """What is improbable by now: on part of the documents nothing is cleared for good."""
        self.cleared |= set(event.settings)
        self._doubted |= set(event.settings)
        remaining = [name for name in self._settings if name not in self.cleared]
        verdict = "hardly one of the largest causes" if self._coarse else "improbable by now"
        self._say(
            f"{verdict}: {list_names(event.settings)}; left: {list_names(remaining) or 'none'}"
        )

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
            excluded = [name for name in self._settings if name not in settings]
            return f"all but {list_names(excluded, most=_MOST_NAMED)}"
        return list_names(settings, most=_MOST_NAMED)

    def _cost(self, evaluations: float) -> str:
        time = f" ({self._time(evaluations)})" if self._seconds else ""
        return f"{evaluations:.1f}{time}"

    def _time(self, evaluations: float) -> str:
        return format_duration(evaluations * self._seconds)

    def _say(self, text: str) -> None:
        self._progress.note(text)
