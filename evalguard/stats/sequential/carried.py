"""What one look leaves for the next: a verdict once shown stays shown."""

from __future__ import annotations

from dataclasses import replace

from evalguard.stats.sequential.finding import Finding
from evalguard.verdict import Margin


def carried(
    before: Finding | None, now: Finding | None, *, margin: float | Margin
) -> Finding | None:
    """The present finding, with what an earlier look has shown.

    The levels hold for all looks together, so that what was shown once may be kept while other
    metrics of the task go on; but not against an estimate that has moved to the other side since.
    Its ends hold in the margin's unit, and are counted in sigma anew.
    """
    if before is None or before.side is None or now is None or now.side is not None:
        return now
    size = (margin.value if isinstance(margin, Margin) else margin) * now.scale
    same = now.sigma > size if before.side == "above" else now.sigma < size
    if not same:
        return now
    again = now.scale / before.scale
    return replace(
        now,
        side=before.side,
        low=before.low * again,
        high=before.high * again,
        error_chance=before.error_chance,
    )
