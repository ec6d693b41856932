"""A night of comparisons in words: its headline, and what is new."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from evalguard.core.gate_state import Key
from evalguard.core.reports.night_report import (
    GRAVEST_FIRST,
    GonePair,
    NightlyMetric,
    NightReport,
    PairChanges,
    PairNight,
)
from evalguard.report.words.glossary import outcome_name
from evalguard.report.words.metric_labels import format_percent
from evalguard.report.words.plain_text import printable
from evalguard.report.words.rounding import format_count, format_sigma_interval, format_with_stderr

_MOST_NAMED = 5
_FIRST_NIGHT = "This is the first night: everything below is new."


def night_subject(report: NightReport) -> str:
    """One line: the gravest state, what is new, and how many pairs came to what."""
    new = sum(len(one.regressed) for one in report.changes)
    states = [
        f"{format_count(report.count(state))} {state}"
        for state in GRAVEST_FIRST
        if report.count(state)
    ]
    head = next((state for state in GRAVEST_FIRST if report.count(state)), "passed").upper()
    newly = f", {format_count(new)} new" if new else ""
    told = ", ".join(states) or "no pair"
    return printable(f"evalguard nightly {report.created[:10]}: {head}{newly} ({told})")


def night_news(report: NightReport) -> list[str]:
    """What is other than last night, the gravest first, and passes that may say little."""
    found = [] if report.previous else [_FIRST_NIGHT]
    start = len(found)
    for kind in (
        _new_regressions,
        _new_failures,
        _still_regressed,
        _recovered,
        _change_points,
        _broken_again,
        _waiver_news,
        _problem_news,
    ):
        for pair, changes in zip(report.pairs, report.changes, strict=True):
            found += [printable(line) for line in kind(pair, changes)]
    found += [printable(line) for line in _other_pairs(report)]
    if len(found) == start and report.previous:
        found.append("Nothing is other than last night.")
    for pair in report.pairs:
        found += [printable(f"Passed, but: {pair_name(pair)}: {doubt}.") for doubt in pair.doubts]
    return found


def change_point_error_text(report: NightReport) -> str:
    """How often a change point is a false one; "" where none is told of."""
    if not any(one.steps for one in report.changes):
        return ""
    return (
        f"Change points: the chance of any false one is at most {format_percent(report.alpha)} "
        "for a pair "
        f"in {format_count(report.looks)} nights; nights in a row that are alike are counted."
    )


def night_pair_line(pair: PairNight) -> str:
    """The pair, and why it is in its state."""
    return printable(f"{pair_name(pair)}: {pair.reason}")


def night_metric_line(metric: NightlyMetric, margin: float) -> str:
    """A gated metric with sigma and its interval."""
    drift, low, high = night_drift_texts(metric, margin)
    interval = f" [{low}, {high}]" if low else ""
    accepted = f"; accepted {metric.accepted}" if metric.accepted else ""
    label = metric_key_text(metric.key)
    name = outcome_name(metric.outcome, fails=metric.state == "regressed")
    unit = " sigma" if metric.unit == "sigma" else ""
    return printable(f"{label}: {drift}{unit}{interval}, {name}{accepted}")


def night_drift_texts(metric: NightlyMetric, margin: float) -> tuple[str, str, str]:
    """A drift and the ends of its interval, "" without one; any unit but sigma stands behind it."""
    in_sigma = metric.unit == "sigma"
    drift, low, high = (
        (metric.sigma, metric.low, metric.high)
        if in_sigma
        else (metric.drift, metric.drift_low, metric.drift_high)
    )
    ends = None if low is None or high is None else (low, high)
    told = format_sigma_interval(drift, ends, margin=margin if in_sigma else 0.0)
    unit = "" if in_sigma else metric.unit
    return (f"{told[0]}{unit}", *(told[1:] if ends else ("", "")))


def pair_name(pair: PairNight | PairChanges | GonePair) -> str:
    """The pair's two models."""
    return f"{pair.candidate} against {pair.base}"


def metric_key_text(key: Key) -> str:
    """Task and metric, with the filter where it says anything."""
    task, filter_name, metric = key
    return " ".join((task, metric) if filter_name == "none" else (task, filter_name, metric))


def _other_pairs(report: NightReport) -> Iterator[str]:
    """Where tonight and last night are not about the same."""
    if not report.previous:
        return
    if report.other_bases:
        yield (
            f"Not what it was last night, a base: {_list_first(report.other_bases)} (weights, "
            "settings, "
            "packages or device)."
        )
    first = [pair_name(one) for one in report.changes if one.was is None]
    if first:
        yield f"Not compared last night: {_list_first(first)}."
    gone = [f"{pair_name(one)} ({one.was} last night)" for one in report.gone]
    if gone:
        yield f"Not compared any more: {_list_first(gone)}."


def _new_regressions(_: PairNight, changes: PairChanges) -> Iterator[str]:
    if changes.regressed:
        yield f"NEW: {pair_name(changes)} regressed on {_list_metrics(changes.regressed)}."


def _new_failures(pair: PairNight, changes: PairChanges) -> Iterator[str]:
    if changes.failed:
        yield f"NEW: {pair_name(changes)} gave no number: {pair.reason}."


def _still_regressed(_: PairNight, changes: PairChanges) -> Iterator[str]:
    if changes.still:
        yield f"Still regressed: {pair_name(changes)} on {_list_metrics(changes.still)}."


def _recovered(_: PairNight, changes: PairChanges) -> Iterator[str]:
    if changes.recovered:
        yield f"Recovered: {pair_name(changes)} on {_list_metrics(changes.recovered)}."


def _change_points(_: PairNight, changes: PairChanges) -> Iterator[str]:
    for step in changes.steps:
        direction = "worse" if step.after > step.before else "better"
        size = format_with_stderr(abs(step.after - step.before), step.stderr)
        changed = f"; changed there: {', '.join(step.changed)}" if step.changed else ""
        yield (
            f"Change point: {pair_name(changes)}, {metric_key_text(step.key)}, is {direction} "
            f"by {size} {step.unit} "
            f"since {step.created[:10]}{changed}."
        )


def _broken_again(_: PairNight, changes: PairChanges) -> Iterator[str]:
    for one in changes.broken:
        if one.notable:
            yield (
                f"Broken again: {pair_name(changes)}, {metric_key_text(one.key)}: "
                f"{format_count(one.again)} documents "
                f"that were broken before, {format_count(one.new)} for the first time; "
                f"{format_count(one.shared)} of them as on {one.alike[:10]} (by chance about "
                f"{one.by_chance:.1f})."
            )


def _waiver_news(pair: PairNight, changes: PairChanges) -> Iterator[str]:
    for note in pair.waivers:
        loud = "EXPIRED WAIVER" if note in pair.expired else "Waiver"
        yield f"{loud}: {pair_name(changes)}: {note}."


def pair_problems(pair: PairNight) -> tuple[str, ...]:
    """Return what of a pair could not be written or kept."""
    lost = f"this run is not in the history: {pair.not_kept}" if pair.not_kept else ""
    return (*pair.problems, *filter(None, [lost]))


def _problem_news(pair: PairNight, changes: PairChanges) -> Iterator[str]:
    for problem in (*pair_problems(pair), *filter(None, [changes.problem])):
        yield f"PROBLEM: {pair_name(changes)}: {problem}."


def _list_metrics(keys: Sequence[Key]) -> str:
    return _list_first([metric_key_text(key) for key in keys])


def _list_first(names: Sequence[str]) -> str:
    """The first few, and how many more."""
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more


def report_link(report: NightReport, run_folder: str | None) -> str:
    """The run folder as a link from the night's own folder; "" where there is none."""
    if run_folder is None:
        return ""
    return os.path.relpath(run_folder, report.folder).replace(os.sep, "/")
