"""What is other than last night: verdicts, and what the history says of levels and documents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from evalguard.errors import EvalguardError
from evalguard.history.news import recently_found
from evalguard.history.report import MetricFlips, Trend, TrendReport
from evalguard.night_changes import changed_since
from evalguard.night_report import BrokenTonight, NightStep, PairChanges, PairNight
from evalguard.pipeline.history.asking import Wanted, flips_between
from evalguard.pipeline.history.trends import scanned_numbers
from evalguard.pipeline.nightly.night_trends import night_trends

RECENT_NIGHTS = 7
"""Nights for which a change point is told of, from the one on that found it."""


def changes_tonight(
    pairs: Sequence[PairNight], before: Sequence[PairNight], history: Path | None
) -> tuple[PairChanges, ...]:
    """Compare a night with the one before, pair by pair.

    Args:
        before: the pairs of last night; () for the first one.
    """
    known = {pair.pair: pair for pair in before}
    found = [(pair, changed_since(pair, known.get(pair.pair))) for pair in pairs]
    return tuple(_with_history(pair, changes, history) for pair, changes in found)


def _with_history(pair: PairNight, changes: PairChanges, history: Path | None) -> PairChanges:
    """The same, with change points and documents; a history that fails costs only these."""
    if history is None or not pair.created:
        return changes
    wanted = Wanted(base=pair.base, candidate=pair.candidate)
    try:
        found = night_trends(history, wanted)
        steps = tuple(step for trend in found.trends for step in _steps(trend))
        broken = _broken(history, wanted, found)
    except EvalguardError as error:
        return replace(changes, problem=str(error))
    return replace(changes, steps=steps, broken=broken)


def _steps(trend: Trend) -> list[NightStep]:
    """Change points that are news."""
    sigmas, stderrs = scanned_numbers(trend.nights, trend.used)
    recent = recently_found(sigmas, stderrs, trend.scan, nights=RECENT_NIGHTS)
    nights = [trend.nights[place].run.created for place in trend.used]
    return [
        NightStep(
            key=trend.key,
            created=nights[point.position],
            earliest=nights[point.earliest],
            latest=nights[point.latest],
            before=point.before.mean,
            after=point.after.mean,
            stderr=point.stderr,
            changed=tuple(f"{one.what} {one.before} -> {one.after}" for one in changes),
        )
        for point, changes, new in zip(trend.scan.points, trend.changes, recent, strict=True)
        if new
    ]


def _broken(history: Path, wanted: Wanted, found: TrendReport) -> tuple[BrokenTonight, ...]:
    if max((len(trend.nights) for trend in found.trends), default=0) < 2:
        return ()
    flips = flips_between(history, wanted, first="latest~1", second="latest")
    told = (_told(metric, dict(flips.nights)) for metric in flips.metrics)
    return tuple(one for one in told if one is not None)


def _told(metric: MetricFlips, nights: dict[int, str]) -> BrokenTonight | None:
    broken = metric.broken
    if broken is None or not (broken.again or broken.new):
        return None
    alike = broken.alike
    return BrokenTonight(
        key=metric.key,
        total=broken.total,
        new=len(broken.new),
        again=len(broken.again),
        repaired=len(broken.repaired),
        alike="" if alike is None else nights.get(alike.run, ""),
        shared=0 if alike is None else alike.again,
        by_chance=0.0 if alike is None else alike.by_chance,
    )
