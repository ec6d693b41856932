"""Which nights of a history are kept when it is pruned."""

from __future__ import annotations

from collections.abc import Sequence

from evalguard.history.night import NightRun


def prunable(
    runs: Sequence[NightRun], *, since: str = "", nights: int | None = None
) -> tuple[NightRun, ...]:
    """Return the runs that neither rule keeps, in their order.

    Args:
        runs: in order of time.
        since: runs from this time on are kept; UTC, ISO 8601; "": the rule keeps none.
        nights: the latest runs of every pair that are kept; None: the rule keeps none.
    """
    latest: set[int] = set()
    for pair in dict.fromkeys(run.pair for run in runs):
        of_pair = [run.number for run in runs if run.pair == pair]
        latest.update(of_pair[-nights:] if nights else ())
    return tuple(
        run for run in runs if run.number not in latest and not (since and run.created >= since)
    )
