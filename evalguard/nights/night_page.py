"""A night for people and programs: news, terminal, Markdown, the index page, the JSON document.

A night without night.json is not finished, and is gone on with.
"""

from __future__ import annotations

import json
import logging
import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.text import Text

from evalguard.comparison.report_files import ReportFile, check_files, requested_files
from evalguard.config.options import CompareOptions
from evalguard.core.exit_code import EXIT_GIT_BISECT_SKIP
from evalguard.core.findings import Finding, without_quotes
from evalguard.core.gate_state import GateState, Key
from evalguard.core.option_words import Format
from evalguard.core.result import Result
from evalguard.errors import (
    EXIT_FAILED,
    EXIT_PASSED,
    EXIT_REGRESSED,
    EXIT_UNDECIDED,
    EvalguardError,
    UsageError,
    error_text,
)
from evalguard.nights.history_page import TrendFigure, trend_figure
from evalguard.nights.history_questions import HistorySelection
from evalguard.nights.history_report import TrendReport
from evalguard.nights.night_changes import read_night_trends
from evalguard.nights.night_report import (
    GRAVEST_FIRST,
    SCHEMA,
    GonePair,
    NightlyMetric,
    NightReport,
    PairChanges,
    PairNight,
    gravity,
)
from evalguard.page.html_page import html_page
from evalguard.page.phrases import metric_key_text
from evalguard.page.rounding import format_count, format_sigma_interval, format_with_stderr
from evalguard.page.safe_text import inline, printable, wrap_text
from evalguard.page.table import Table
from evalguard.page.terminal import next_lines, render_page
from evalguard.report.metric_labels import format_percent, outcome_name
from evalguard.report.record_documents import replace_non_finite, write_record
from evalguard.report.record_schema import FINDING_KIND, TEXT, add_keys, contract_schema
from evalguard.store.atomic_files import write_output
from evalguard.store.run_folder import NIGHT_RESULT, write_text


def render_night_index(report: NightReport) -> str:
    """Return the page; a history that cannot be read costs only the trends."""

    return render_night_page(report, tuple(_read_pair_trends(report)))


def _read_pair_trends(report: NightReport) -> Iterator[TrendReport]:
    for pair in report.pairs:
        if not (report.history and pair.created):
            continue
        wanted = HistorySelection(base=pair.base, candidate=pair.candidate)
        try:
            yield read_night_trends(Path(report.history), wanted)
        except EvalguardError:  # the night's changes say why
            continue


_MOST_NAMED = 5
_FIRST_NIGHT = "This is the first night: everything below is new."


def night_subject(report: NightReport) -> str:
    """One line: the gravest state, what is new, and how many pairs came to what."""
    new = sum(len(changes.regressed) for changes in report.changes)
    states = [
        f"{format_count(report.count(state))} {state}"
        for state in GRAVEST_FIRST
        if report.count(state)
    ]
    head = next((state for state in GRAVEST_FIRST if report.count(state)), "passed").upper()
    newly = f", {format_count(new)} new" if new else ""
    summary = ", ".join(states) or "no pair"
    return printable(f"evalguard nightly {report.created[:10]}: {head}{newly} ({summary})")


def night_news(report: NightReport) -> list[str]:
    """What is other than last night, the gravest first, and passes that may say little."""
    news = [] if report.previous else [_FIRST_NIGHT]
    start = len(news)
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
            news += [printable(line) for line in kind(pair, changes)]
    news += [printable(line) for line in _other_pairs(report)]
    if len(news) == start and report.previous:
        news.append("Nothing is other than last night.")
    for pair in report.pairs:
        news += [printable(f"Passed, but: {pair_name(pair)}: {doubt}.") for doubt in pair.doubts]
    return news


def change_point_error_text(report: NightReport) -> str:
    """How often a change point is a false one; "" where none is told of."""
    if not any(changes.steps for changes in report.changes):
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
    texts = format_sigma_interval(drift, ends, margin=margin if in_sigma else 0.0)
    unit = "" if in_sigma else metric.unit
    return (f"{texts[0]}{unit}", *(texts[1:] if ends else ("", "")))


def pair_name(pair: PairNight | PairChanges | GonePair) -> str:
    """The pair's two models."""
    return f"{pair.candidate} against {pair.base}"


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
    first = [pair_name(changes) for changes in report.changes if changes.was is None]
    if first:
        yield f"Not compared last night: {_list_first(first)}."
    gone = [f"{pair_name(pair)} ({pair.was} last night)" for pair in report.gone]
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
    for broken in changes.broken:
        if broken.notable:
            yield (
                f"Broken again: {pair_name(changes)}, {metric_key_text(broken.key)}: "
                f"{format_count(broken.again)} documents "
                f"that were broken before, {format_count(broken.new)} for the first time; "
                f"{format_count(broken.shared)} of them as on {broken.alike[:10]} (by chance about "
                f"{broken.by_chance:.1f})."
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
    suffix = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + suffix


def report_link(report: NightReport, run_folder: str | None) -> str:
    """The run folder as a link from the night's own folder; "" where there is none."""
    if run_folder is None:
        return ""
    return os.path.relpath(run_folder, report.folder).replace(os.sep, "/")


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
    add_keys(schema, Finding, kind=FINDING_KIND)
    add_keys(schema, PairNight, report={**TEXT, "description": text})
    return schema


@dataclass(frozen=True, slots=True, kw_only=True)
class PairRow:
    """A pair in the table, all texts."""

    state: GateState
    name: str
    reason: str
    metric: str
    drift: str
    interval: str
    guilty: str
    link: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PairTrends:
    """The trends of a pair; ``unfolded`` where there is something to see in them."""

    name: str
    points: str
    unfolded: bool
    figures: tuple[TrendFigure, ...]


def render_night_page(report: NightReport, trends: Sequence[TrendReport] = ()) -> str:
    """Return the page.

    Args:
        trends: of its pairs; () without a history.
    """
    state = next((state for state in GRAVEST_FIRST if report.count(state)), "passed")
    return html_page(
        "nights/night.html",
        subject=night_subject(report),
        state=state,
        news=night_news(report),
        rows=sorted((_pair_row(report, pair) for pair in report.pairs), key=_gravity_order),
        trends=[section for trend in trends if (section := _pair_trends(report, trend)).figures],
        facts=list(_night_facts(report)),
        version=report.version,
    )


def _gravity_order(row: PairRow) -> int:
    return GRAVEST_FIRST.index(row.state)


def _pair_row(report: NightReport, pair: PairNight) -> PairRow:
    worst = pair.worst
    drift, low, high = ("", "", "") if worst is None else night_drift_texts(worst, pair.margin)
    link = report_link(report, pair.run_folder)
    return PairRow(
        state=pair.state,
        name=printable(pair_name(pair)),
        reason=printable(pair.reason),
        metric="" if worst is None else printable(metric_key_text(worst.key)),
        drift=drift,
        interval=f"[{low}, {high}]" if low else "",
        guilty=printable(", ".join(pair.culprits) or pair.bisection),
        link=f"{link}/report.html" if link else "",
        lines=tuple(_html_pair_lines(pair)),
    )


def _html_pair_lines(pair: PairNight) -> Iterator[str]:
    if pair.hint:
        yield printable(pair.hint)
    for metric in pair.metrics:
        yield night_metric_line(metric, pair.margin)
    findings = (finding.line for finding in pair.findings)
    for note in (*pair_problems(pair), *pair.waivers, *findings, *pair.notes):
        yield printable(note)


def _pair_trends(report: NightReport, trends: TrendReport) -> PairTrends:
    figures = (trend_figure(trend) for trend in trends.trends)
    sound = any(
        pair.pair == (trends.base, trends.candidate) and pair.state == "passed"
        for pair in report.pairs
    )
    points = sum(len(trend.scan.points) for trend in trends.trends)
    return PairTrends(
        name=printable(f"{trends.candidate} against {trends.base}"),
        points=f"{points:,} change point{'' if points == 1 else 's'}",
        unfolded=points > 0 or not sound,
        figures=tuple(figure for figure in figures if figure is not None),
    )


def _night_facts(report: NightReport) -> Iterator[tuple[str, str]]:
    facts = (
        ("Guard file", report.guard),
        ("Began", report.created),
        ("Finished", report.finished),
        ("Night before", report.previous),
        ("History", report.history),
        ("Exit code", str(report.exit_code)),
        ("Command", report.command),
    )
    for what, value in facts:
        if value:
            yield what, printable(value)
    for note in filter(None, (*report.notes, change_point_error_text(report))):
        yield "Note", printable(note)


_ICON: dict[GateState, str] = {"passed": "✅", "regressed": "❌", "failed": "💥", "undecided": "⚠️"}
_MOST_ROWS = 500


def night_markdown(report: NightReport) -> str:
    """Return the page; names and texts of models stay text."""
    parts = [f"### {inline(night_subject(report), 300)}"]
    parts.append("\n".join(f"- {inline(line, 500)}" for line in night_news(report)))
    parts.append(_pair_table(report))
    if report.notes:
        parts.append("\n".join(f"- {inline(printable(note), 500)}" for note in report.notes))
    if change_point_error_text(report):
        parts.append(inline(change_point_error_text(report), 500))
    parts.append(f"Exit code {report.exit_code}; {inline(printable(report.guard), 200)}.")
    return "\n\n".join(parts) + "\n"


def _pair_table(report: NightReport) -> str:
    headings = ["", "pair", "gate", "worst metric", "sigma", "culprits", "run"]
    shown = report.pairs[:_MOST_ROWS]
    table = Table(headings=headings, rows=[list(_pair_cells(report, pair)) for pair in shown])
    omitted = len(report.pairs) - len(shown)
    return table.markdown() + (f"\n\n_{omitted} more pairs_" if omitted else "")


def _pair_cells(report: NightReport, pair: PairNight) -> Iterator[str]:
    yield _ICON[pair.state]
    yield printable(pair_name(pair))
    yield printable(pair.reason)
    worst = pair.worst
    if worst is None:
        yield from ("", "")
    else:
        drift, low, high = night_drift_texts(worst, pair.margin)
        yield printable(metric_key_text(worst.key))
        yield f"{drift} [{low}, {high}]" if low else drift
    yield printable(", ".join(pair.culprits) or pair.bisection)
    yield printable(report_link(report, pair.run_folder))


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
    report = without_quotes(report)
    body = render_page(_blocks(report, _MAIL_WIDTH, links=True), _MAIL_WIDTH, color=False)
    return f"Subject: {night_subject(report)}\n\n{body}\n"


def night_text(report: NightReport, *, width: int, color: bool, verbose: bool = False) -> str:
    """The summary for a terminal; with ``verbose`` every pair and every note."""
    head = [Text(line, style="bold") for line in wrap_text(night_subject(report), width)]
    blocks = _blocks(report, width, links=False) if verbose else _first_screen(report, width)
    return render_page([head, *blocks], width, color=color)


def _first_screen(report: NightReport, width: int) -> Iterator[list[Text]]:
    """What is new, the gravest pairs, and a line about the rest."""
    news = night_news(report)
    lines = [line for text in news[:_MOST_NEWS] for line in _item_lines(text, width)]
    if len(news) > _MOST_NEWS:
        lines += _item_lines(f"and {len(news) - _MOST_NEWS} more that changed", width)
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
    command = shlex.join(["evalguard", "report", shown])
    yield [
        *ends,
        *_foot_lines(report, width),
        *(next_lines("to see the gravest in full", command, width) if shown else ()),
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
    metrics = [metric for metric in pair.metrics if metric.state != "passed" or metric.accepted]
    if most is not None:
        metrics.sort(key=gravity, reverse=True)
    for metric in metrics[:most]:
        yield from _item_lines(
            night_metric_line(metric, pair.margin), width, first="  ", rest="    "
        )
    if most is not None and len(metrics) > most:
        yield from _item_lines(
            f"and {len(metrics) - most} more metrics", width, first="  ", rest="    "
        )
    findings = [f"Note: {finding.line}" for finding in pair.findings] if most is None else []
    for text in (*_cause_texts(pair), *findings):
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


@dataclass(frozen=True, slots=True)
class NightlyResult(Result[NightReport]):
    """A finished night.

    ``problems`` say what of it could not be written, ``tracked`` what became of its runs at
    experiment trackers.
    """

    problems: tuple[str, ...] = ()
    tracked: tuple[str, ...] = ()

    @property
    def pairs(self) -> tuple[PairNight, ...]:
        """What every pair came to."""
        return self.report.pairs

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON contract (schema ``evalguard.nightly/1``) as plain data."""
        return night_document(self.report)

    def render(self, *, width: int = 80, color: bool = False, verbose: bool = False) -> str:
        """Return the text that the command line prints; with ``verbose`` every pair and note."""
        text = night_text(self.report, width=width, color=color, verbose=verbose)
        return "\n\n".join([text, "\n".join(self.tracked)]) if self.tracked else text


_LOG = logging.getLogger(__name__)


def _json(report: NightReport) -> str:
    return json.dumps(night_document(report), indent=2, allow_nan=False) + "\n"


def _text(report: NightReport) -> str:
    return night_text(report, width=80, color=False, verbose=True) + "\n"


_RENDERINGS: dict[Format, Callable[[NightReport], str]] = {
    "text": _text,
    "json": _json,
    "markdown": night_markdown,
    "html": render_night_index,
}
_FILES: dict[str, Callable[[NightReport], str]] = {
    "index.html": render_night_index,
    "summary.txt": night_mail,
    "summary.md": night_markdown,
    NIGHT_RESULT: _json,
}


def check_night_files(options: CompareOptions, *, cwd: Path) -> None:
    """Refuse files that cannot be written, before anything long runs.

    Raises:
        UsageError: naming the first.
    """
    files = requested_files(options, cwd=cwd)
    for file in files:
        if file.format not in _RENDERINGS:
            raise UsageError(
                f"-o {file.path}: a night is not written as {file.format}",
                hint=f"formats of a night: {', '.join(_RENDERINGS)}",
            )
    check_files(files)


def write_night(report: NightReport, options: CompareOptions, cwd: Path) -> NightlyResult:
    """Write everything; what cannot be written is a problem of the result, not of the verdicts."""
    problems = []
    for file in requested_files(options, cwd=cwd):
        problems += _try_write(file.path, partial(_write_requested, report, file))
    folder = Path(report.folder)
    for name in _FILES:
        problems += _try_write(folder / name, partial(_write_own, report, name))
    return NightlyResult(report, tuple(problems))


def _write_requested(report: NightReport, file: ReportFile) -> None:
    write_output(file.path, _RENDERINGS[file.format](report))


def _write_own(report: NightReport, name: str) -> None:
    write_text(Path(report.folder), name, _FILES[name](report))


def _try_write(path: Path, write: Callable[[], None]) -> list[str]:
    try:
        write()
    except Exception as error:  # noqa: BLE001 - the verdicts stand, whatever it is
        _LOG.info("%s was not written", path, exc_info=True)  # shown under --debug
        return [f"{path} was not written: {error_text(error)}"]
    return []
