"""What is other than last night: new, still there, gone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from evalguard.core.gate_state import Key
from evalguard.errors import EvalguardError
from evalguard.nights.change_points import ChangePoint, Floats, Scan, change_points
from evalguard.nights.history_questions import (
    HistorySelection,
    find_flips,
    find_trends,
    select_scanned_numbers,
)
from evalguard.nights.history_report import MetricFlips, Trend, TrendReport
from evalguard.nights.night_report import (
    ALPHA,
    LOOKS,
    BrokenTonight,
    GonePair,
    NightStep,
    PairChanges,
    PairNight,
)


def changed_since(tonight: PairNight, before: PairNight | None) -> PairChanges:
    """Compare a pair with what it came to last night.

    A metric that gave no number tonight has not recovered, and one that a waiver lets through does
    not fail.

    Args:
        before: None where the pair was not compared last night.
    """
    now = _in_state(tonight, "regressed")
    then = () if before is None else _in_state(before, "regressed")
    passing = (*_in_state(tonight, "passed"), *_in_state(tonight, "undecided"))
    return PairChanges(
        base=tonight.base,
        candidate=tonight.candidate,
        was=None if before is None else before.state,
        regressed=tuple(key for key in now if key not in then),
        still=tuple(key for key in now if key in then),
        recovered=tuple(key for key in then if key in passing),
        failed=_failing(tonight) and (before is None or not _failing(before)),
    )


def gone_since(tonight: Sequence[PairNight], before: Sequence[PairNight]) -> tuple[GonePair, ...]:
    """Pairs of last night that were taken out, or given another name."""
    there = {pair.pair for pair in tonight}
    return tuple(
        GonePair(base=pair.base, candidate=pair.candidate, was=pair.state)
        for pair in before
        if pair.pair not in there
    )


def other_bases(tonight: Sequence[PairNight], before: Sequence[PairNight]) -> tuple[str, ...]:
    """Bases that are not what they were last night: sigma is in their standard errors."""
    then = {(pair.base, pair.base_digest) for pair in before if pair.base_digest}
    known = {name for name, _ in then}
    now = dict.fromkeys((pair.base, pair.base_digest) for pair in tonight if pair.base_digest)
    return tuple(
        dict.fromkeys(names[0] for names in now if names[0] in known and names not in then)
    )


def _in_state(pair: PairNight, state: str) -> tuple[Key, ...]:
    return tuple(metric.key for metric in pair.metrics if metric.state == state)


def _failing(pair: PairNight) -> bool:
    return pair.state == "failed" or bool(_in_state(pair, "failed"))


MOST_NIGHTS = 120


def read_night_trends(history: Path, wanted: HistorySelection) -> TrendReport:
    """Trends with change points, for one of the looks of a year.

    Raises:
        UsageError: the history has no such pair, or cannot be read.
    """
    return find_trends(history, wanted, last=MOST_NIGHTS, alpha=ALPHA, looks=LOOKS)


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
    changed_pairs = [(pair, changed_since(pair, known.get(pair.pair))) for pair in pairs]
    return tuple(_add_history_changes(pair, changes, history) for pair, changes in changed_pairs)


def _add_history_changes(
    pair: PairNight, changes: PairChanges, history: Path | None
) -> PairChanges:
    """The same, with change points and documents; a history that fails costs only these."""
    if history is None or not pair.created:
        return changes
    wanted = HistorySelection(base=pair.base, candidate=pair.candidate)
    try:
        trends = read_night_trends(history, wanted)
        steps = tuple(step for trend in trends.trends for step in _new_steps(trend))
        broken = _broken_documents(history, wanted, trends)
    except EvalguardError as error:
        return replace(changes, problem=str(error))
    first, *remaining = trends.problems or ("",)
    damage = f"rows of the history are damaged and left out: {first}" if first else ""
    damage += f" and {len(remaining)} more (evalguard history check)" if remaining else ""
    return replace(changes, steps=steps, broken=broken, problem=damage)


def _new_steps(trend: Trend) -> list[NightStep]:
    """Change points that are news."""
    drifts, stderrs = select_scanned_numbers(trend.nights, trend.used)
    recent = recently_found(drifts, stderrs, trend.scan, nights=RECENT_NIGHTS)
    nights = [trend.nights[index].run.created for index in trend.used]
    return [
        NightStep(
            key=trend.key,
            created=nights[point.position],
            earliest=nights[point.earliest],
            latest=nights[point.latest],
            before=point.before.mean,
            after=point.after.mean,
            stderr=point.stderr,
            changed=tuple(f"{change.what} {change.before} -> {change.after}" for change in changes),
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
    metrics = (_broken_metric(metric, dict(flips.nights)) for metric in flips.metrics)
    return tuple(metric for metric in metrics if metric is not None)


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
