"""Track a comparison that was finished before, from its run folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from evalguard.compare_report import CompareReport
from evalguard.errors import EXIT_FAILED, EXIT_PASSED, UsageError
from evalguard.pipeline.stored_run import stored_run
from evalguard.pipeline.tracking.choice import chosen_sinks
from evalguard.pipeline.tracking.tracking import tracked
from evalguard.report.tracked_words import tracked_views


@dataclass(frozen=True, slots=True)
class TrackResult:
    """What became of a stored run at trackers; ``report.tracked`` says it of each."""

    report: CompareReport

    @property
    def exit_code(self) -> int:
        """0 where every tracker has the run, or this machine keeps it for one; else 3."""
        failed = any(sent.state == "failed" for sent in self.report.tracked)
        return EXIT_FAILED if failed else EXIT_PASSED

    def render(self) -> str:
        """Return one line for each tracker."""
        return "\n".join(map(str, tracked_views(self.report)))


def track_stored(run: Path, names: Sequence[str] = (), *, quiet: bool = False) -> TrackResult:
    """Send a stored comparison to trackers.

    Args:
        run: the run folder, or its result.json.
        names: of the trackers; none: W&B where it is configured.

    Raises:
        UsageError: this is no run folder, or no tracker is named or configured, or ``none`` is.
        StoreError: it is damaged, or a file of it was changed.
    """
    if set(names) == {"none"}:
        raise UsageError(
            "--track none sends the run nowhere, and sending is all that evalguard track does",
            hint="name a tracker: --track wandb, trackio or mlflow",
        )
    sinks = chosen_sinks(names)
    if not sinks:
        raise UsageError(
            "no tracker is configured", hint="name one: --track wandb, trackio or mlflow"
        )
    stored = stored_run(run)
    stored.check_files()  # its samples are sent, too
    return TrackResult(tracked(stored.report, sinks, quiet=quiet))
