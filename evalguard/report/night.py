"""A night of comparisons: headline and news in words, text and mail, Markdown, and the JSON
contract ``evalguard.nightly/1``.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from rich.text import Text

from evalguard.core.gate import EXIT_GIT_BISECT_SKIP
from evalguard.core.gate_state import GateState, Key
from evalguard.core.markdown_text import inline
from evalguard.core.reports.night_report import (
    GRAVEST_FIRST,
    SCHEMA,
    GonePair,
    NightlyMetric,
    NightReport,
    PairChanges,
    PairNight,
    gravity,
)
from evalguard.errors import (
    EXIT_FAILED,
    EXIT_PASSED,
    EXIT_REGRESSED,
    EXIT_UNDECIDED,
)
from evalguard.report.contract.forms import write_record
from evalguard.report.contract.json_values import replace_non_finite
from evalguard.report.contract.schema import TEXT, add_keys, contract_schema
from evalguard.report.page import command_lines, render_page
from evalguard.report.words.glossary import outcome_name
from evalguard.report.words.labels import format_percent
from evalguard.report.words.plain_text import printable, wrap_text
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
    """What is other than last night, the gravest first; one sentence each."""
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
    sigma, low, high = night_sigma_texts(metric, margin)
    interval = "" if metric.low is None else f" [{low}, {high}]"
    accepted = f"; accepted {metric.accepted}" if metric.accepted else ""
    label = metric_key_text(metric.key)
    name = outcome_name(metric.outcome, fails=metric.state == "regressed")
    return printable(f"{label}: {sigma} sigma{interval}, {name}{accepted}")


def night_sigma_texts(metric: NightlyMetric, margin: float) -> tuple[str, str, str]:
    """Sigma and the ends of its interval."""
    ends = None if metric.low is None or metric.high is None else (metric.low, metric.high)
    return format_sigma_interval(metric.sigma, ends, margin=margin)


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
            f"by {size} sigma "
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


# A night as plain text: for a terminal, and as a mail of 72 columns with its subject.


_MAIL_WIDTH = 72
_MOST_NEWS, _MOST_PAIRS, _MOST_METRICS = 5, 4, 3
_STYLES: dict[GateState, str] = {
    "regressed": "bold red",
    "failed": "bold magenta",
    "undecided": "yellow",
    "passed": "green",
}


def night_mail(report: NightReport) -> str:
    """The summary as a mail: a line "Subject: ...", an empty one, and text of 72 columns."""
    body = render_page(_blocks(report, _MAIL_WIDTH, links=True), _MAIL_WIDTH, color=False)
    return f"Subject: {night_subject(report)}\n\n{body}\n"


def night_text(report: NightReport, *, width: int, color: bool, verbose: bool = False) -> str:
    """The summary for a terminal; with ``verbose`` every pair and every note."""
    head = [Text(line, style="bold") for line in wrap_text(night_subject(report), width)]
    blocks = _blocks(report, width, links=False) if verbose else _first_screen(report, width)
    return render_page([head, *blocks], width, color=color)


def _first_screen(report: NightReport, width: int) -> Iterator[list[Text]]:
    """What is new, the gravest pairs, and a line about the rest."""
    told = night_news(report)
    lines = [line for text in told[:_MOST_NEWS] for line in _item_lines(text, width)]
    if len(told) > _MOST_NEWS:
        lines += _item_lines(f"and {len(told) - _MOST_NEWS} more that changed", width)
    yield lines
    pairs = sorted(report.pairs, key=_state_rank)
    grave = [pair for pair in pairs if pair.state != "passed"]
    for pair in grave[:_MOST_PAIRS]:
        yield list(_pair_lines(report, pair, width, links=False, most=_MOST_METRICS))
    rest = []
    if len(grave) > _MOST_PAIRS:
        rest.append(f"{len(grave) - _MOST_PAIRS} more pairs did not pass")
    if passed := len(pairs) - len(grave):
        noun = "pair" if passed == 1 else "pairs"
        rest.append(f"{passed} {noun} passed")
    if report.notes:
        rest.append(f"{len(report.notes)} note{'' if len(report.notes) == 1 else 's'}")
    ends = [*_item_lines(f"{'; '.join(rest)}.", width)] if rest else []
    shown = next((pair.run_folder for pair in grave if pair.run_folder), "")
    step = command_lines(shlex.join(["evalguard", "report", shown]), width) if shown else []
    if step:
        step = [Text("Next, to see the gravest in full:", style="bold"), *step]
    yield [
        *ends,
        *_foot_lines(report, width),
        *step,
        *_item_lines("More: summary.txt there, or the same command with -v", width),
    ]


def _blocks(report: NightReport, width: int, *, links: bool) -> Iterator[list[Text]]:
    yield [line for text in night_news(report) for line in _item_lines(text, width)]
    for pair in sorted(report.pairs, key=_state_rank):
        yield list(_pair_lines(report, pair, width, links=links))
    for note in report.notes:
        yield list(_item_lines(f"Note: {printable(note)}", width))
    if change_point_error_text(report):
        yield list(_item_lines(change_point_error_text(report), width))
    yield list(_foot_lines(report, width))


def _pair_lines(
    report: NightReport, pair: PairNight, width: int, *, links: bool, most: int | None = None
) -> Iterator[Text]:
    style = _STYLES[pair.state]
    for number, line in enumerate(
        wrap_text(f"{pair.state.upper()} {night_pair_line(pair)}", width)
    ):
        yield Text(line, style=style if number == 0 else "")
    told = [metric for metric in pair.metrics if metric.state != "passed" or metric.accepted]
    if most is not None:
        told.sort(key=gravity, reverse=True)
    for metric in told[:most]:
        yield from _item_lines(
            night_metric_line(metric, pair.margin), width, first="  ", rest="    "
        )
    if most is not None and len(told) > most:
        yield from _item_lines(
            f"and {len(told) - most} more metrics", width, first="  ", rest="    "
        )
    for text in _cause_texts(pair):
        yield from _item_lines(printable(text), width, first="  ", rest="  ")
    link = report_link(report, pair.run_folder)
    if links and link:
        yield Text(f"  {printable(link)}/")


def _cause_texts(pair: PairNight) -> Iterator[str]:
    if pair.hint:
        yield f"hint: {pair.hint}"
    if pair.culprits:
        yield f"culprits: {', '.join(pair.culprits)}"
    elif pair.bisection:
        yield f"bisection: {pair.bisection}"


def _foot_lines(report: NightReport, width: int) -> Iterator[Text]:
    history = f", history {printable(report.history)}" if report.history else ""
    yield from _item_lines(
        f"Exit code {report.exit_code}. {printable(report.guard)}; night "
        f"{printable(report.folder)}{history}.",
        width,
    )


def _item_lines(text: str, width: int, *, first: str = "", rest: str = "") -> Iterator[Text]:
    for line in wrap_text(text, width, first=first, rest=rest):
        yield Text(line)


def _state_rank(pair: PairNight) -> int:
    return list(_STYLES).index(pair.state)


# A night in Markdown: the summary of a scheduled job, a comment.


_ICON: dict[GateState, str] = {"passed": "✅", "regressed": "❌", "failed": "💥", "undecided": "⚠️"}
_MOST_ROWS = 500


def night_markdown(report: NightReport) -> str:
    """Return the page; names and texts of models stay text."""
    parts = [f"### {inline(night_subject(report), 300)}"]
    parts.append("\n".join(f"- {inline(line, 500)}" for line in night_news(report)))
    parts.append("\n".join(_table_lines(report)))
    if report.notes:
        parts.append("\n".join(f"- {inline(printable(note), 500)}" for note in report.notes))
    if change_point_error_text(report):
        parts.append(inline(change_point_error_text(report), 500))
    parts.append(f"Exit code {report.exit_code}; {inline(printable(report.guard), 200)}.")
    return "\n\n".join(parts) + "\n"


def _table_lines(report: NightReport) -> Iterator[str]:
    yield "| | pair | gate | worst metric | sigma | culprits | run |"
    yield "|---|---|---|---|---|---|---|"
    for pair in report.pairs[:_MOST_ROWS]:
        yield f"| {' | '.join(_pair_cells(report, pair))} |"
    if len(report.pairs) > _MOST_ROWS:
        yield f"| | _{len(report.pairs) - _MOST_ROWS} more pairs_ | | | | | |"


def _pair_cells(report: NightReport, pair: PairNight) -> Iterator[str]:
    yield _ICON[pair.state]
    yield inline(printable(pair_name(pair)))
    yield inline(printable(pair.reason), 300)
    worst = pair.worst
    if worst is None:
        yield from ("", "")
    else:
        sigma, low, high = night_sigma_texts(worst, pair.margin)
        yield inline(printable(metric_key_text(worst.key)))
        yield sigma if worst.low is None else f"{sigma} [{low}, {high}]"
    yield inline(printable(", ".join(pair.culprits) or pair.bisection), 300)
    yield inline(printable(report_link(report, pair.run_folder)), 200)


# The JSON contract ``evalguard.nightly/1``: one night as one strict JSON document.


_EXIT_CODES = (
    EXIT_PASSED,
    EXIT_REGRESSED,
    EXIT_FAILED,
    EXIT_UNDECIDED,
    EXIT_GIT_BISECT_SKIP,
)


def night_document(report: NightReport) -> dict[str, Any]:
    """Return a night as plain JSON values; a number that JSON cannot hold is null."""
    content = {"schema": SCHEMA, **write_record(report)}
    for pair, fields in zip(report.pairs, content["pairs"], strict=True):
        fields["report"] = report_link(report, pair.run_folder)
        fields["problems"] = list(pair_problems(pair))
    written: dict[str, Any] = replace_non_finite(content, "", {})
    return written


def night_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) that every document satisfies."""
    title = "A night of comparisons: every pair of the guard files"
    schema = contract_schema(SCHEMA, NightReport, title, exit_code={"enum": [*_EXIT_CODES]})
    text = 'Its run folder, from the night\'s own; "" where there is none.'
    add_keys(schema, PairNight, report={**TEXT, "description": text})
    return schema


def report_link(report: NightReport, run_folder: str | None) -> str:
    """The run folder as a link from the night's own folder; "" where there is none."""
    if run_folder is None:
        return ""
    return os.path.relpath(run_folder, report.folder).replace(os.sep, "/")
