"""What one look leaves for the next: a verdict once shown stays shown."""

from __future__ import annotations

from dataclasses import replace

from evalguard.stats.sequential.finding import Finding


def carried(before: Finding | None, now: Finding | None, *, margin: float) -> Finding | None:
    """The present finding, with what an earlier look has shown.

    The levels hold for all looks together, so that what was shown once may be kept while other
    metrics of the task go on; but not against an estimate that has moved to the other side since.
    """
    if before is None or before.side is None or now is None or now.side is not None:
        return now
    same = now.sigma > margin if before.side == "above" else now.sigma < margin
    if not same:
        return now
    return replace(
        now, side=before.side, low=before.low, high=before.high, error_chance=before.error_chance
    )
