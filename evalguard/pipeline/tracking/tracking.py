"""Tracking: send a finished comparison to trackers; whatever happens there, the verdict stands."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from evalguard.compare_report import CompareReport
from evalguard.errors import Interrupted
from evalguard.pipeline.tracking.tracked import tracked_run
from evalguard.redaction import redacted_text
from evalguard.report.progress import Progress
from evalguard.report.tracked_words import TITLES
from evalguard.tracked_run import JobType, Sent, SinkName, TrackedRun
from evalguard.tracking import send_run
from evalguard.tracking.bounds import Bounds

INTERRUPTED = "interrupted"
_LOG = logging.getLogger(__name__)


def tracked(
    report: CompareReport,
    sinks: Sequence[SinkName],
    *,
    job_type: JobType | None = None,
    group: str | None = None,
    quiet: bool = False,
    bounds: Bounds | None = None,
    unreached: str = "",
) -> CompareReport:
    """Send a report to each of the sinks; return it with what became of it there.

    Everything local has to be written by now. No exception but one of the interpreter's own leaves
    this; Ctrl-C leaves out what was not sent yet.

    Args:
        job_type, group: as in ``tracked_run``.
        bounds: how long each sink may take.
        unreached: why no tracker is asked at all; W&B's client then keeps the run here.
    """
    done: list[Sent] = []
    with Progress(quiet=quiet) as progress:
        try:
            for sink in sinks:
                if not unreached:
                    progress.note(f"sending the run to {TITLES[sink]} (Ctrl-C leaves that out)")
                run = partial(tracked_run, report, job_type=job_type, group=group)
                done.append(_sent(report, sink, run, bounds, unreached))
        except (KeyboardInterrupt, Interrupted):
            done += [Sent(sink=s, state="failed", reason=INTERRUPTED) for s in sinks[len(done) :]]
    return replace(report, tracked=(*report.tracked, *done)) if done else report


def _sent(
    report: CompareReport,
    sink: SinkName,
    run: Callable[[], TrackedRun],
    bounds: Bounds | None,
    unreached: str,
) -> Sent:
    folder = Path(report.run_folder).parent if report.run_folder else Path.cwd()
    try:
        return send_run(sink, run(), folder=folder, bounds=bounds, unreached=unreached)
    except Exception as error:  # noqa: BLE001 - the verdict stands, whatever it is
        _LOG.info("sending failed", exc_info=True)  # shown under --debug
        reason = redacted_text(f"{type(error).__name__}: {error}")
        return Sent(sink=sink, state="failed", reason=reason)
