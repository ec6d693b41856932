"""News: change points of tonight's scan that a scan some nights ago did not have."""

from __future__ import annotations

from evalguard.stats.series.change_points import change_points
from evalguard.stats.series.levels import ChangePoint, Floats, Scan


def recently_found(values: Floats, stderrs: Floats, scan: Scan, *, nights: int) -> tuple[bool, ...]:
    """Whether each change point of a scan was found within the last ``nights`` nights.

    It is not its own age that counts: a small step is believed only many nights after it was made.

    Args:
        values, stderrs: of the nights that were scanned, shape (n,).
        scan: of all of them.
    """
    before = max(scan.n - nights, 0)
    if not any(point.position < before for point in scan.points):
        return (True,) * len(scan.points)
    earlier = change_points(
        values[:before],
        stderrs[:before],
        alpha=scan.alpha,
        shortest=scan.shortest,
        smallest_step=scan.smallest_step,
        seed=scan.seed,
    )
    return tuple(
        not any(_same(point, known, scan.shortest) for known in earlier.points)
        for point in scan.points
    )


def _same(point: ChangePoint, known: ChangePoint, shortest: int) -> bool:
    """Whether the ranges where they may lie meet, or almost do: later nights move them."""
    return (
        known.earliest - shortest < point.latest + 1
        and point.earliest - shortest < known.latest + 1
    )
