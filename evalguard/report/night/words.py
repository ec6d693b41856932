"""A night in words: its headline, what is other than last night, each pair in a line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from evalguard.gate_reason import Key
from evalguard.night_report import (
    GRAVEST_FIRST,
    GonePair,
    NightlyMetric,
    NightReport,
    PairChanges,
    PairNight,
)
from evalguard.report.plain_text import printable
from evalguard.report.rounding import count, sigma_with_interval, with_stderr
from evalguard.report.wording import percent

_MOST_NAMED = 5
_FIRST = "This is the first night: everything below is new."


def subject(report: NightReport) -> str:
    """One line: the gravest state, what is new, and how many pairs came to what."""
    new = sum(len(one.regressed) for one in report.changes)
    states = [
        f"{count(report.count(state))} {state}" for state in GRAVEST_FIRST if report.count(state)
    ]
    head = next((state for state in GRAVEST_FIRST if report.count(state)), "passed").upper()
    newly = f", {count(new)} new" if new else ""
    told = ", ".join(states) or "no pair"
    return printable(f"evalguard nightly {report.created[:10]}: {head}{newly} ({told})")


def news(report: NightReport) -> list[str]:
    """What is other than last night, the gravest first; one sentence each."""
    found = [] if report.previous else [_FIRST]
    start = len(found)
    for kind in (_new, _newly_failed, _still, _recovered, _steps, _broken, _waivers, _problems):
        for pair, changes in zip(report.pairs, report.changes, strict=True):
            found += [printable(line) for line in kind(pair, changes)]
    found += [printable(line) for line in _other_pairs(report)]
    if len(found) == start and report.previous:
        found.append("Nothing is other than last night.")
    return found


def rate(report: NightReport) -> str:
    """How often a change point is a false one; "" where none is told of."""
    if not any(one.steps for one in report.changes):
        return ""
    return (
        f"Change points: the chance of any false one is at most {percent(report.alpha)} for a pair "
        f"in {count(report.looks)} nights, if nights do not depend on each other."
    )


def pair_line(pair: PairNight) -> str:
    """The pair, and why it is in its state."""
    return printable(f"{name(pair)}: {pair.reason}")


def metric_line(metric: NightlyMetric, margin: float) -> str:
    """A gated metric with sigma and its interval."""
    sigma, low, high = sigma_text(metric, margin)
    interval = "" if metric.low is None else f" [{low}, {high}]"
    accepted = f"; accepted {metric.accepted}" if metric.accepted else ""
    label = key_text(metric.key)
    return printable(f"{label}: {sigma} sigma{interval}, {metric.outcome}{accepted}")


def sigma_text(metric: NightlyMetric, margin: float) -> tuple[str, str, str]:
    """Sigma and the ends of its interval."""
    ends = None if metric.low is None or metric.high is None else (metric.low, metric.high)
    return sigma_with_interval(metric.sigma, ends, margin=margin)


def name(pair: PairNight | PairChanges | GonePair) -> str:
    """The pair's two models."""
    return f"{pair.candidate} against {pair.base}"


def key_text(key: Key) -> str:
    """Task and metric, with the filter where it says anything."""
    task, filter_name, metric = key
    return " ".join((task, metric) if filter_name == "none" else (task, filter_name, metric))


def _other_pairs(report: NightReport) -> Iterator[str]:
    """Where tonight and last night are not about the same."""
    if not report.previous:
        return
    if report.other_bases:
        yield (
            f"Not what it was last night, a base: {_some(report.other_bases)} (weights, settings, "
            "packages or device)."
        )
    first = [name(one) for one in report.changes if one.was is None]
    if first:
        yield f"Not compared last night: {_some(first)}."
    gone = [f"{name(one)} ({one.was} last night)" for one in report.gone]
    if gone:
        yield f"Not compared any more: {_some(gone)}."


def _new(_: PairNight, changes: PairChanges) -> Iterator[str]:
    if changes.regressed:
        yield f"NEW: {name(changes)} regressed on {_names(changes.regressed)}."


def _newly_failed(pair: PairNight, changes: PairChanges) -> Iterator[str]:
    if changes.failed:
        yield f"NEW: {name(changes)} gave no number: {pair.reason}."


def _still(_: PairNight, changes: PairChanges) -> Iterator[str]:
    if changes.still:
        yield f"Still regressed: {name(changes)} on {_names(changes.still)}."


def _recovered(_: PairNight, changes: PairChanges) -> Iterator[str]:
    if changes.recovered:
        yield f"Recovered: {name(changes)} on {_names(changes.recovered)}."


def _steps(_: PairNight, changes: PairChanges) -> Iterator[str]:
    for step in changes.steps:
        direction = "worse" if step.after > step.before else "better"
        size = with_stderr(abs(step.after - step.before), step.stderr)
        changed = f"; changed there: {', '.join(step.changed)}" if step.changed else ""
        yield (
            f"Change point: {name(changes)}, {key_text(step.key)}, is {direction} by {size} sigma "
            f"since {step.created[:10]}{changed}."
        )


def _broken(_: PairNight, changes: PairChanges) -> Iterator[str]:
    for one in changes.broken:
        if one.notable:
            yield (
                f"Broken again: {name(changes)}, {key_text(one.key)}: {count(one.again)} documents "
                f"that were broken before, {count(one.new)} for the first time; "
                f"{count(one.shared)} of them as on {one.alike[:10]} (by chance about "
                f"{one.by_chance:.1f})."
            )


def _waivers(pair: PairNight, changes: PairChanges) -> Iterator[str]:
    for note in pair.waivers:
        loud = "EXPIRED WAIVER" if "EXPIRED" in note else "Waiver"
        yield f"{loud}: {name(changes)}: {note}."


def _problems(pair: PairNight, changes: PairChanges) -> Iterator[str]:
    for problem in filter(None, (*pair.problems, changes.problem)):
        yield f"PROBLEM: {name(changes)}: {problem}."


def _names(keys: Sequence[Key]) -> str:
    return _some([key_text(key) for key in keys])


def _some(names: Sequence[str]) -> str:
    """The first few, and how many more."""
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more
