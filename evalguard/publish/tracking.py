"""Send a finished comparison to trackers, and say what came of it.

A tracker that does not answer costs up to a minute and a half a run: two hundred pairs would
wait for hours. What failed twice in a row is not tried again in this night.
"""

from __future__ import annotations

import logging
import os
import secrets
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from evalguard.comparison.stored_run import read_stored_run
from evalguard.core.compare_report import CompareReport
from evalguard.core.redaction import redacted_text
from evalguard.core.tracked_night import TrackedNight
from evalguard.core.tracked_run import JobType, Sent, TrackedRun, tracker_title
from evalguard.engine.tracker_choice import choose_sinks, find_open_run
from evalguard.errors import Interrupted, UsageError
from evalguard.page.progress import ProgressLine
from evalguard.plugins import TRACKERS
from evalguard.publish.sending_job import SendingLimits, TrackingJob, run_in_process
from evalguard.publish.tracked_comparison import build_tracked_run
from evalguard.publish.wandb_tracker import log_into_open_run

_ID_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"


def send_run(
    sink: str,
    run: TrackedRun,
    *,
    folder: Path,
    bounds: SendingLimits | None = None,
    unreached: str = "",
) -> Sent:
    """Send a run; what a tracker does wrong becomes the answer's reason.

    Args:
        folder: where W&B keeps a run that did not reach its server, and the run's files.
        bounds: how long each part may take.
        unreached: why the tracker is not asked at all; "" for it is.

    Raises:
        KeyboardInterrupt: on Ctrl-C; nothing goes on in the background.
    """
    bounds = bounds or SendingLimits()
    job = TrackingJob(
        sink=sink, run=run, run_id=_new_id(), folder=str(folder.absolute()), bounds=bounds
    )  # fmt: skip
    if unreached:
        sent = _write_offline(job) if sink == "wandb" else Sent(sink=sink, state="failed")
        return replace(sent, reason="; ".join(filter(None, (unreached, sent.reason))))
    if sink != "wandb":
        return run_in_process(job, seconds=bounds.online, environment={})
    own = find_open_run()
    if own is not None:
        return log_into_open_run(own, run, seconds=bounds.finish)
    return _send_to_wandb(job)


def save_night(night: TrackedNight, *, bounds: SendingLimits | None = None) -> Sent:
    """Save a report on a night to W&B; as ``send_run`` otherwise."""
    bounds = bounds or SendingLimits()
    job = TrackingJob(sink="wandb", night=night, folder=os.getcwd(), bounds=bounds)
    return run_in_process(job, seconds=bounds.online, environment={})


def _send_to_wandb(job: TrackingJob) -> Sent:
    if os.environ.get("WANDB_MODE") in ("offline", "dryrun"):
        return _write_offline(job)
    sent = run_in_process(job, seconds=job.bounds.online, environment={})
    if sent.state != "failed":
        return sent
    offline = _write_offline(job)
    both = f"{sent.reason}; nor could it be kept for later: {offline.reason}"
    return replace(offline, reason=both if offline.state == "failed" else sent.reason)


def _write_offline(job: TrackingJob) -> Sent:
    """Write the run to this machine, with copies of its files, so that it can be synced."""
    Path(job.folder).mkdir(parents=True, exist_ok=True)
    here: Mapping[str, str] = {
        "WANDB_DIR": job.folder,
        "WANDB_DATA_DIR": str(Path(job.folder) / "wandb"),
    }
    offline = replace(job, offline=True)
    return run_in_process(offline, seconds=job.bounds.local, environment=here)


def _new_id() -> str:
    """An id as W&B makes them: eight letters and digits."""
    return "".join(secrets.choice(_ID_LETTERS) for _ in range(8))


def track_stored(
    runs: Sequence[Path],
    names: Sequence[str] = (),
    *,
    documents: bool = False,
    quiet: bool = False,
) -> tuple[CompareReport, ...]:
    """Send stored comparisons to trackers, once all of them have been read.

    ``tracked`` of each report says what became of it.

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
    for stored_run in stored:
        stored_run.check_files()  # its samples are sent, too
    return tuple(
        track_run(stored_run.report, sinks, documents=documents, quiet=quiet)
        for stored_run in stored
    )


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
                for shadowed in TRACKERS.find_shadowed(sink):
                    progress.note(
                        f"--track {sink} is evalguard's own; {shadowed.origin} is not used"
                    )
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


MOST_FAILURES = 2


@dataclass(slots=True, kw_only=True)
class NightSender:
    """Sends runs in one group.

    Attributes:
        failures: of each tracker, in a row.
        reasons: of the last failure of each.
    """

    group: str
    quiet: bool
    failures: Counter[str] = field(default_factory=Counter)
    reasons: dict[str, str] = field(default_factory=dict)

    def send(
        self, run: CompareReport, sinks: Sequence[str], *, documents: bool = False
    ) -> tuple[Sent, ...]:
        """Send a run to each of the sinks; what became of it there."""
        return tuple(self._sent(run, sink, documents=documents) for sink in sinks)

    def gone(self, sink: str) -> str:
        """Why a tracker is not tried any more; "" while it is."""
        reason = self.reasons.get(sink, "")
        if reason == TRACKING_INTERRUPTED:
            return reason
        if self.failures[sink] < MOST_FAILURES:
            return ""
        return f"not tried: the {MOST_FAILURES} before it failed"

    def _sent(self, run: CompareReport, sink: str, *, documents: bool) -> Sent:
        gone = self.gone(sink)
        if gone == TRACKING_INTERRUPTED:
            return Sent(sink=sink, state="failed", reason=gone)
        (sent,) = track_run(
            run,
            (sink,),
            documents=documents,
            job_type="nightly",
            group=self.group,
            quiet=self.quiet,
            unreached=gone,
        ).tracked
        if not gone:
            failed = sent.state != "sent" and bool(sent.reason)
            self.failures[sink] = self.failures[sink] + 1 if failed else 0
            self.reasons[sink] = sent.reason
        return sent


def sync_command(sent: Sequence[Sent]) -> str:
    """The one command that sends all runs that W&B's client kept here; "" if there are none."""
    paths = [
        Path(result.place)
        for result in sent
        if result.sink == "wandb" and result.state == "offline"
    ]
    if len(paths) == 1:
        return f"wandb sync {shlex.quote(str(paths[0]))}"
    folders = dict.fromkeys(path.parent for path in paths)
    places = [f"{shlex.quote(str(folder))}/offline-run-*" for folder in folders]
    return f"wandb sync {' '.join(places)}" if places else ""
