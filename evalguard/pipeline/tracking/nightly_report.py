"""The report of a night on W&B; best effort, like the runs that it links."""

from __future__ import annotations

import logging

from evalguard.errors import Interrupted
from evalguard.redaction import redacted_text
from evalguard.report.progress import Progress
from evalguard.tracked_night import TrackedNight
from evalguard.tracked_run import Sent
from evalguard.tracking import save_night
from evalguard.tracking.bounds import Bounds

_LOG = logging.getLogger(__name__)


def nightly_report(
    night: TrackedNight, *, quiet: bool = False, bounds: Bounds | None = None
) -> Sent:
    """Save a report on a night at W&B, and say where; what fails there is the answer's reason."""
    try:
        with Progress(quiet=quiet) as progress:
            progress.note("saving the night's report at W&B (Ctrl-C leaves that out)")
            return save_night(night, bounds=bounds)
    except (KeyboardInterrupt, Interrupted):
        return Sent(sink="wandb", state="failed", reason="interrupted")
    except Exception as error:  # noqa: BLE001 - the night's verdicts stand, whatever it is
        _LOG.info("the report was not saved", exc_info=True)  # shown under --debug
        return Sent(sink="wandb", state="failed", reason=redacted_text(str(error)))
