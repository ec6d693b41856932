"""What is other than last night: verdicts, and what the history says of levels and documents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from evalguard.core.reports.history_report import MetricFlips, Trend, TrendReport
from evalguard.core.reports.night_changes import changed_since
from evalguard.core.reports.night_report import (
    BrokenTonight,
    NightStep,
    PairChanges,
    PairNight,
)
from evalguard.errors import EvalguardError
from evalguard.run.history.build_trend import select_scanned_numbers
from evalguard.run.history.queries import HistorySelection, find_flips
from evalguard.run.nightly.night_trends import read_night_trends
from evalguard.stats.series.news import recently_found

RECENT_NIGHTS = 7
"""Nights for which a change point is told of, from the one on that found it."""


def find_changes_tonight(
    pairs: Sequence[PairNight], before: Sequence[PairNight], history: Path | None
) -> tuple[PairChanges, ...]:
    """Compare a night with the one before, pair by pair.

    Args:
        before: the pairs of last night; () for the first one.
    """
    known = {pair.pair: pair for pair in before}
    found = [(pair, changed_since(pair, known.get(pair.pair))) for pair in pairs]
    return tuple(_add_history_changes(pair, changes, history) for pair, changes in found)


def _add_history_changes(
    pair: PairNight, changes: PairChanges, history: Path | None
) -> PairChanges:
    """The same, with change points and documents; a history that fails costs only these."""
    if history is None or not pair.created:
        return changes
    wanted = HistorySelection(base=pair.base, candidate=pair.candidate)
    try:
        found = read_night_trends(history, wanted)
        steps = tuple(step for trend in found.trends for step in _new_steps(trend))
        broken = _broken_documents(history, wanted, found)
    except EvalguardError as error:
        return replace(changes, problem=str(error))
    first, *more = found.problems or ("",)
    damage = f"rows of the history are damaged and left out: {first}" if first else ""
    damage += f" and {len(more)} more (evalguard history check)" if more else ""
    return replace(changes, steps=steps, broken=broken, problem=damage)


def _new_steps(trend: Trend) -> list[NightStep]:
    """Change points that are news."""
    drifts, stderrs = select_scanned_numbers(trend.nights, trend.used)
    recent = recently_found(drifts, stderrs, trend.scan, nights=RECENT_NIGHTS)
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
            unit=trend.unit,
        )
        for point, changes, new in zip(trend.scan.points, trend.changes, recent, strict=True)
        if new
    ]


def _broken_documents(
    history: Path, wanted: HistorySelection, found: TrendReport
) -> tuple[BrokenTonight, ...]:
    if max((len(trend.nights) for trend in found.trends), default=0) < 2:
        return ()
    flips = find_flips(history, wanted, first="latest~1", second="latest")
    told = (_broken_metric(metric, dict(flips.nights)) for metric in flips.metrics)
    return tuple(one for one in told if one is not None)


def _broken_metric(metric: MetricFlips, nights: dict[int, str]) -> BrokenTonight | None:
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
