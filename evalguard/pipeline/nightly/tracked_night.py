"""A night at experiment trackers: every run in one group, and W&B's report of the night."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from evalguard.errors import EvalguardError
from evalguard.history import Night
from evalguard.night_report import NightReport, PairNight
from evalguard.pipeline.nightly.night_sending import NightSending, sync_command
from evalguard.pipeline.nightly.pairs import NightPair
from evalguard.pipeline.options import CompareOptions
from evalguard.pipeline.stored_run import stored_run
from evalguard.pipeline.tracking.choice import chosen_sinks
from evalguard.pipeline.tracking.nightly_report import nightly_report
from evalguard.report.night.words import name
from evalguard.report.plain_text import printable
from evalguard.report.tracked_words import tracked_view
from evalguard.store.history import HistoryFile
from evalguard.tracked_night import NightTrend, NightVerdict, TrackedNight, TrendPoint
from evalguard.tracked_run import Sent, SinkName

_MOST_NIGHTS = 365


@dataclass(frozen=True, slots=True, kw_only=True)
class SentPair:
    """A pair's night, and what became of its run at each tracker."""

    pair: PairNight
    sent: tuple[Sent, ...]

    @property
    def address(self) -> str:
        """Of its run at W&B; "" where it is not there."""
        found = (one.place for one in self.sent if one.sink == "wandb" and one.state == "sent")
        return next(found, "")


def track_night(
    report: NightReport, pairs: Sequence[NightPair], options: CompareOptions
) -> tuple[str, ...]:
    """Send a night whose files are all written; returns a line for each run and tracker.

    Whatever happens there, the night stands.
    """
    if any(options.track) and set(options.track) == {"none"}:
        return ()
    sending = NightSending(group=report.name, quiet=options.quiet)
    found = [
        SentPair(pair=pair, sent=_sent(sending, pair, _sinks(asked, options)))
        for pair, asked in zip(report.pairs, pairs, strict=True)
    ]
    lines = [_line(one.pair, sent) for one in found for sent in one.sent]
    if any(one.address for one in found):
        gone = sending.gone("wandb")
        saved = (
            Sent(sink="wandb", state="failed", reason=gone)
            if gone
            else nightly_report(_night(report, found), quiet=options.quiet)
        )
        lines.append(f"the night: {tracked_view(saved, None)}")
    command = sync_command([sent for one in found for sent in one.sent])
    return (*lines, *([f"to send what W&B's client kept:\n  {command}"] if command else []))


def _line(pair: PairNight, sent: Sent) -> str:
    """What became of a run; the command for those that W&B's client kept is one for all."""
    told = replace(sent, next_command="") if sent.state == "offline" else sent
    return f"{printable(name(pair))}: {tracked_view(told, pair.run_folder)}"


def _sinks(pair: NightPair, options: CompareOptions) -> tuple[SinkName, ...]:
    return chosen_sinks(options.track or pair.guard.run.track or ())


def _sent(sending: NightSending, pair: PairNight, sinks: tuple[SinkName, ...]) -> tuple[Sent, ...]:
    if pair.run_folder is None or not sinks:
        return ()
    try:
        stored = stored_run(Path(pair.run_folder))
        stored.check_files()  # its samples are sent, too
    except EvalguardError as error:
        return tuple(Sent(sink=sink, state="failed", reason=str(error)) for sink in sinks)
    return sending.send(replace(stored.report, tracked=()), sinks)


def _night(report: NightReport, found: Sequence[SentPair]) -> TrackedNight:
    verdicts = tuple(
        NightVerdict(
            base=one.pair.base,
            candidate=one.pair.candidate,
            state=one.pair.state if one.pair.created else None,
            sentence=one.pair.reason,
            url=one.address,
        )
        for one in found
    )
    return TrackedNight(name=report.name, verdicts=verdicts, trends=_trends(report))


def _trends(report: NightReport) -> tuple[NightTrend, ...]:
    """The gated metrics of every pair over nights; none where there is no history."""
    if not report.history:
        return ()
    try:
        with HistoryFile(Path(report.history)) as history:
            return tuple(
                NightTrend(
                    base=pair.base,
                    candidate=pair.candidate,
                    task=metric.task,
                    metric=metric.metric,
                    points=tuple(
                        map(_point, history.nights(pair.pair, metric.key)[-_MOST_NIGHTS:])
                    ),
                )
                for pair in report.pairs
                for metric in pair.metrics
            )
    except EvalguardError:  # a damaged history is told of by the night itself
        return ()


def _point(night: Night) -> TrendPoint:
    metric = night.metric
    return TrendPoint(
        created=night.run.created,
        sigma=metric.sigma,
        low=metric.sigma_low,
        high=metric.sigma_high,
    )
