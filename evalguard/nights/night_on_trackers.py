"""A night at experiment trackers: every run in one group, and W&B's report of the night."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from evalguard.comparison.stored_run import read_stored_run
from evalguard.config.options import CompareOptions
from evalguard.core.redaction import redacted_text
from evalguard.core.tracked_night import NightTrend, NightVerdict, TrackedNight, TrendPoint
from evalguard.core.tracked_run import Sent
from evalguard.core.verdict import DriftUnit
from evalguard.engine.tracker_choice import choose_sinks
from evalguard.errors import EvalguardError, Interrupted, UsageError
from evalguard.nights.history.history_file import HistoryFile
from evalguard.nights.history_report import Night, common_unit
from evalguard.nights.night_page import pair_name
from evalguard.nights.night_pairs import NightPair
from evalguard.nights.night_report import NightlyMetric, NightReport, PairNight
from evalguard.page.progress import ProgressLine
from evalguard.page.safe_text import printable
from evalguard.publish.sending_job import SendingLimits
from evalguard.publish.tracking import NightSender, save_night, sync_command
from evalguard.report.tracked_view import tracked_view

_LOG = logging.getLogger(__name__)


def send_night_report(
    night: TrackedNight, *, quiet: bool = False, bounds: SendingLimits | None = None
) -> Sent:
    """Save a report on a night at W&B, and say where; what fails there is the answer's reason."""
    try:
        with ProgressLine(quiet=quiet) as progress:
            progress.note("saving the night's report at W&B (Ctrl-C leaves that out)")
            return save_night(night, bounds=bounds)
    except (KeyboardInterrupt, Interrupted):
        return Sent(sink="wandb", state="failed", reason="interrupted")
    except Exception as error:  # noqa: BLE001 - the night's verdicts stand, whatever it is
        _LOG.info("the report was not saved", exc_info=True)  # shown under --debug
        return Sent(sink="wandb", state="failed", reason=redacted_text(str(error)))


_MOST_NIGHTS = 365


@dataclass(frozen=True, slots=True, kw_only=True)
class SentPair:
    """A pair's night, and what became of its run at each tracker."""

    pair: PairNight
    sent: tuple[Sent, ...]

    @property
    def address(self) -> str:
        """Of its run at W&B; "" where it is not there."""
        addresses = (
            sent.place for sent in self.sent if sent.sink == "wandb" and sent.state == "sent"
        )
        return next(addresses, "")


def track_night(
    report: NightReport, pairs: Sequence[NightPair], options: CompareOptions
) -> tuple[str, ...]:
    """Send a night whose files are all written; returns a line for each run and tracker.

    Whatever happens there, the night stands.
    """
    if any(options.track) and set(options.track) == {"none"}:
        return ()
    sending = NightSender(group=report.name, quiet=options.quiet)
    sent_pairs = [
        SentPair(pair=pair, sent=_send_pair(sending, pair, asked, options))
        for pair, asked in zip(report.pairs, pairs, strict=True)
    ]
    lines = [
        _sent_line(sent_pair.pair, sent) for sent_pair in sent_pairs for sent in sent_pair.sent
    ]
    if any(sent_pair.address for sent_pair in sent_pairs):
        gone = sending.gone("wandb")
        saved = (
            Sent(sink="wandb", state="failed", reason=gone)
            if gone
            else send_night_report(_build_night(report, sent_pairs), quiet=options.quiet)
        )
        lines.append(f"the night: {tracked_view(saved, None)}")
    command = sync_command([sent for sent_pair in sent_pairs for sent in sent_pair.sent])
    return (*lines, *([f"to send what W&B's client kept:\n  {command}"] if command else []))


def _sent_line(pair: PairNight, sent: Sent) -> str:
    """What became of a run; the command for those that W&B's client kept is one for all."""
    shown = replace(sent, next_command="") if sent.state == "offline" else sent
    return f"{printable(pair_name(pair))}: {tracked_view(shown, pair.run_folder)}"


def _send_pair(
    sending: NightSender, pair: PairNight, asked: NightPair, options: CompareOptions
) -> tuple[Sent, ...]:
    if pair.run_folder is None:
        return ()
    settings = asked.guard.run
    try:
        sinks = choose_sinks(options.track, asked.guard)
    except UsageError as error:
        return tuple(Sent(sink=name, state="failed", reason=str(error)) for name in settings.track)
    if not sinks:
        return ()
    documents = options.track_documents or settings.track_documents
    try:
        stored = read_stored_run(Path(pair.run_folder))
        stored.check_files()  # its samples are sent, too
    except EvalguardError as error:
        return tuple(Sent(sink=sink, state="failed", reason=str(error)) for sink in sinks)
    return sending.send(replace(stored.report, tracked=()), sinks, documents=documents)


def _build_night(report: NightReport, found: Sequence[SentPair]) -> TrackedNight:
    verdicts = tuple(
        NightVerdict(
            base=sent_pair.pair.base,
            candidate=sent_pair.pair.candidate,
            state=sent_pair.pair.state if sent_pair.pair.created else None,
            sentence="; but ".join((sent_pair.pair.reason, *sent_pair.pair.doubts)),
            url=sent_pair.address,
        )
        for sent_pair in found
    )
    return TrackedNight(name=report.name, verdicts=verdicts, trends=_night_trends(report))


def _night_trends(report: NightReport) -> tuple[NightTrend, ...]:
    """The gated metrics of every pair over nights; none where there is no history."""
    if not report.history:
        return ()
    try:
        with HistoryFile(Path(report.history)) as history:
            return tuple(
                _night_trend(metric, pair, history.nights(pair.pair, metric.key)[-_MOST_NIGHTS:])
                for pair in report.pairs
                for metric in pair.metrics
            )
    except EvalguardError:  # a damaged history is told of by the night itself
        return ()


def _night_trend(metric: NightlyMetric, pair: PairNight, nights: Sequence[Night]) -> NightTrend:
    unit = common_unit(nights)
    return NightTrend(
        base=pair.base,
        candidate=pair.candidate,
        task=metric.task,
        metric=metric.metric,
        points=tuple(_trend_point(night, unit) for night in nights),
        unit=unit,
    )


def _trend_point(night: Night, unit: DriftUnit) -> TrendPoint:
    low, high = night.metric.interval_in(unit)
    return TrendPoint(
        created=night.run.created,
        drift=night.metric.drift_in(unit)[0],
        low=low,
        high=high,
    )
