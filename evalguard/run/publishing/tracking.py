"""Track a comparison that was finished before, from its run folder."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from evalguard.core.redaction import redacted_text
from evalguard.core.reports.compare_report import CompareReport
from evalguard.core.reports.tracked_run import (
    JobType,
    Sent,
    TrackedRun,
    tracker_title,
)
from evalguard.errors import EXIT_FAILED, EXIT_PASSED, Interrupted, UsageError
from evalguard.integrations.jobs import SendingLimits
from evalguard.integrations.sending import send_run
from evalguard.plugins import TRACKERS
from evalguard.report.progress import ProgressLine
from evalguard.report.view.tracked_view import tracked_views
from evalguard.run.publishing.build_tracked_run import build_tracked_run
from evalguard.run.publishing.trackers import choose_sinks
from evalguard.run.stored_run import read_stored_run


@dataclass(frozen=True, slots=True)
class TrackResult:
    """What became of stored runs at trackers; ``tracked`` of a report says it of each."""

    reports: tuple[CompareReport, ...]

    @property
    def exit_code(self) -> int:
        """0 where every tracker has the run, or this machine keeps it for one; else 3."""
        failed = any(sent.state == "failed" for one in self.reports for sent in one.tracked)
        return EXIT_FAILED if failed else EXIT_PASSED

    def render(self) -> str:
        """Return one line for each tracker, below the folder of each run where there are more."""
        found: list[str] = []
        for one in self.reports:
            found += [f"{one.run_folder}:"] if len(self.reports) > 1 else []
            found += map(str, tracked_views(one))
        return "\n".join(found)


def track_stored(
    runs: Sequence[Path],
    names: Sequence[str] = (),
    *,
    documents: bool = False,
    quiet: bool = False,
) -> TrackResult:
    """Send stored comparisons to trackers, once all of them have been read.

    Args:
        runs: run folders, or their result.json.
        names: of the trackers; none: W&B where it is configured.
        documents: as in ``track_run``.

    Raises:
        UsageError: one is not a run folder, or no tracker is named or configured, or ``none`` is.
        StoreError: one is damaged, or a file of it was changed.
    """
    if set(names) == {"none"}:
        raise UsageError(
            "--track none sends the run nowhere, and sending is all that evalguard track does",
            hint=f"name a tracker: {', '.join(TRACKERS.list_names())}",
        )
    sinks = choose_sinks(names)
    if not sinks:
        raise UsageError(
            "no tracker is configured",
            hint=f"name one by --track: {', '.join(TRACKERS.list_names())}",
        )
    stored = [read_stored_run(run) for run in dict.fromkeys(runs)]
    for one in stored:
        one.check_files()  # its samples are sent, too
    sent = (track_run(one.report, sinks, documents=documents, quiet=quiet) for one in stored)
    return TrackResult(tuple(sent))


TRACKING_INTERRUPTED = "interrupted"
_LOG = logging.getLogger(__name__)


def track_run(
    report: CompareReport,
    sinks: Sequence[str],
    *,
    documents: bool = False,
    job_type: JobType | None = None,
    group: str | None = None,
    quiet: bool = False,
    bounds: SendingLimits | None = None,
    unreached: str = "",
) -> CompareReport:
    """Send a report to each of the sinks; return it with what became of it there.

    Everything local has to be written by now. No exception but one of the interpreter's own leaves
    this; Ctrl-C leaves out what was not sent yet.

    Args:
        documents, job_type, group: as in ``build_tracked_run``.
        bounds: how long each sink may take.
        unreached: why no tracker is asked at all; W&B's client then keeps the run here.
    """
    done: list[Sent] = []
    with ProgressLine(quiet=quiet) as progress:
        try:
            for sink in sinks:
                for other in TRACKERS.find_shadowed(sink):
                    progress.note(f"--track {sink} is evalguard's own; {other.origin} is not used")
                if not unreached:
                    what = "the run with its documents" if documents else "figures of the run"
                    progress.note(
                        f"sending {what} to {tracker_title(sink)} (Ctrl-C leaves that out)"
                    )
                run = partial(
                    build_tracked_run, report, documents=documents, job_type=job_type, group=group
                )
                sent = _send_to_sink(report, sink, run, bounds, unreached)
                done.append(replace(sent, next_command=_retry_command(report, sent, documents)))
        except (KeyboardInterrupt, Interrupted):
            done += [
                Sent(sink=s, state="failed", reason=TRACKING_INTERRUPTED)
                for s in sinks[len(done) :]
            ]
    return replace(report, tracked=(*report.tracked, *done)) if done else report


def _retry_command(report: CompareReport, sent: Sent, documents: bool) -> str:
    """The command that sends what is not at its tracker; "" where there is none."""
    if sent.state != "failed" or not report.run_folder:
        return sent.next_command
    with_documents = " --track-documents" if documents else ""
    folder = shlex.quote(report.run_folder)
    return f"evalguard track {folder} --track {sent.sink}{with_documents}"


def _send_to_sink(
    report: CompareReport,
    sink: str,
    run: Callable[[], TrackedRun],
    bounds: SendingLimits | None,
    unreached: str,
) -> Sent:
    folder = Path(report.run_folder).parent if report.run_folder else Path.cwd()
    try:
        return send_run(sink, run(), folder=folder, bounds=bounds, unreached=unreached)
    except Exception as error:  # noqa: BLE001 - the verdict stands, whatever it is
        _LOG.info("sending failed", exc_info=True)  # shown under --debug
        reason = redacted_text(f"{type(error).__name__}: {error}")
        return Sent(sink=sink, state="failed", reason=reason)
