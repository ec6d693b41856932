"""Which trackers a comparison is sent to."""

from __future__ import annotations

from collections.abc import Sequence

from evalguard.pipeline.tracking.names import checked_track
from evalguard.tracked_run import SINKS, SinkName
from evalguard.tracking import wandb_is_configured


def chosen_sinks(names: Sequence[str], *, unasked: bool = True) -> tuple[SinkName, ...]:
    """Return where to send: the names, else W&B where it is configured.

    Args:
        unasked: whether that last one may be.
    """
    if not names:
        return ("wandb",) if unasked and wandb_is_configured() else ()
    return tuple(sink for sink in SINKS if sink in checked_track(names))
