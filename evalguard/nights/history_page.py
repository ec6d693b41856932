"""A history for people: lists, trends with their plots, and changes, in a terminal and as pages."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup
from rich.text import Text

from evalguard.core.amounts import size_text
from evalguard.core.result import Result
from evalguard.core.verdict import DriftUnit
from evalguard.errors import EXIT_FAILED, EXIT_PASSED, EXIT_REGRESSED, UsageError
from evalguard.nights.change_points import ChangePoint
from evalguard.nights.history_flips import BrokenDocuments, DocumentFlips
from evalguard.nights.history_report import (
    Change,
    FlipReport,
    Found,
    HistoryAddition,
    HistoryCheck,
    HistoryExport,
    HistoryListing,
    HistoryPruning,
    HistoryRun,
    MetricFlips,
    Night,
    NightMetric,
    NightRun,
    Trend,
    TrendReport,
    history_document,
)
from evalguard.nights.trend_plot import (
    TrendLevel,
    TrendNight,
    draw_sparkline,
    draw_trend,
    plot_trend,
)
from evalguard.page.html_page import html_page
from evalguard.page.phrases import format_time, metric_key_text
from evalguard.page.rounding import format_count, format_drift, format_with_stderr, p_value_phrase
from evalguard.page.safe_text import fit_text, printable
from evalguard.page.table import Table
from evalguard.page.terminal import next_lines, render_page, wrap_prose
from evalguard.report.metric_labels import (
    GRAVITY,
    STATE_STYLE,
    format_percent,
    key_label,
    outcome_name,
)
from evalguard.store.atomic_files import check_output, write_output


def change_blocks(found: HistoryAddition | HistoryPruning, width: int) -> Iterator[list[Text]]:
    """Blocks of lines."""
    if isinstance(found, HistoryAddition):
        yield wrap_prose(_added_text(found), width)
        yield from (wrap_prose(printable(note), width) for note in found.notes)
    else:
        yield from _pruned_blocks(found, width)


def _added_text(found: HistoryAddition) -> str:
    run = found.run
    return printable(
        f"{found.file}: run {run.number}, {run.base} vs {run.candidate} of {run.created}; "
        f"{format_count(found.metrics)} metrics, {format_count(found.with_documents)} of them "
        "with documents."
    )


def _night_span(runs: Sequence[NightRun]) -> str:
    first, last = (f"run {run.number} of {run.created}" for run in (runs[0], runs[-1]))
    return first if len(runs) == 1 else f"from {first} to {last}"


def _nothing_removed_text(number: int) -> str:
    if number < 2:
        return "the only run is kept" if number else "there are no runs"
    return f"all {format_count(number)} runs are kept"


def _pruned_blocks(found: HistoryPruning, width: int) -> Iterator[list[Text]]:
    verb = "would be removed" if found.dry_run else "removed"
    if found.removed:
        total = len(found.removed) + found.kept
        runs = "run" if total == 1 else "runs"
        removed = f"{format_count(len(found.removed))} of {format_count(total)} {runs} {verb}"
        yield wrap_prose(f"{removed}: {_night_span(found.removed)}.", width)
    else:
        yield wrap_prose(f"Nothing to remove: {_nothing_removed_text(found.kept)}.", width)
    sizes = f"{size_text(found.size_before)} before, {size_text(found.size)} now"
    if found.removed and not found.dry_run:
        yield wrap_prose(f"{printable(found.file)}: {sizes}.", width)


_RUN_HEADER = ("run", "time (UTC)", "gate", "sigma", "worst metric", "base vs candidate")
_WIDEST_NAME = 28
# Narrower than this, the day alone is shown, so that gate and sigma have room.
_NARROWEST_WITH_TIME = 60


def listing_blocks(listing: HistoryListing, width: int) -> Iterator[list[Text]]:
    """The table, under a line that says how many runs there are."""
    shown = len(listing.runs)
    part = "" if shown == listing.total else f", the last {format_count(shown)} of them"
    runs = "run" if listing.total == 1 else "runs"
    pairs = {entry.run.pair for entry in listing.runs}
    of = "" if len(pairs) != 1 else printable(" of {} vs {}".format(*next(iter(pairs))))
    yield wrap_prose(
        f"{printable(listing.file)}: {format_count(listing.total)} {runs}{of}{part}", width
    )
    if not listing.runs:
        return
    rows = [_RUN_HEADER, *(_run_cells(entry) for entry in listing.runs)]
    if len(pairs) == 1:
        rows = [row[:-1] for row in rows]
    if width < _NARROWEST_WITH_TIME:
        rows = [(number, time[:10], *cells) for number, time, *cells in rows]
    styles = ["bold", *(STATE_STYLE[entry.run.state] for entry in listing.runs)]
    yield Table(headings=rows[0], rows=rows[1:]).lines(width, styles)


def _run_cells(kept: HistoryRun) -> tuple[str, ...]:
    run, worst = kept.run, _worst_metric(kept)
    label = "-" if worst is None else key_label(*worst.key)
    return (
        str(run.number),
        format_time(run.created),
        _run_state(kept),
        "-" if worst is None else format_drift(worst.drift, worst.drift_stderr, worst.unit),
        fit_text(label, _WIDEST_NAME),
        fit_text(printable(f"{run.base} vs {run.candidate}"), _WIDEST_NAME),
    )


def _run_state(kept: HistoryRun) -> str:
    accepted = sum(bool(metric.accepted) for metric in kept.metrics)
    return f"{kept.run.state}, {accepted} accepted" if accepted else kept.run.state


def _worst_metric(kept: HistoryRun) -> NightMetric | None:
    """The gated metric with the gravest outcome, and of those the largest sigma."""
    gated = [metric for metric in kept.metrics if metric.gated] or list(kept.metrics)
    return min(
        gated,
        key=lambda m: (GRAVITY.index(m.outcome), -(m.sigma if m.sigma is not None else 0.0)),
        default=None,
    )


_MOST_DOCUMENTS = 12


def flip_blocks(report: FlipReport, width: int) -> Iterator[list[Text]]:
    """One block per metric, under a line that names the two nights."""
    first, second = report.first, report.second
    yield wrap_prose(
        f"{printable(second.candidate)} against {printable(second.base)}: run {first.number} "
        f"({format_time(first.created)}) -> run {second.number} ({format_time(second.created)})",
        width,
    )
    for metric in report.metrics:
        yield list(_metric_flip_lines(metric, report, width))


def _metric_flip_lines(found: MetricFlips, report: FlipReport, width: int) -> Iterator[Text]:
    yield Text(key_label(*found.key), style="bold")
    if found.flips is None or found.broken is None:
        yield from wrap_prose(printable(found.reason), width)
        return
    for line in _flip_sentences(found.flips):
        yield from wrap_prose(line, width)
    for line in _broken_sentences(found.broken, report):
        yield from wrap_prose(line, width)


def _flip_sentences(flips: DocumentFlips) -> Iterator[str]:
    parts = [
        f"{format_count(number)} only in the {which}"
        for which, number in (("first", flips.only_first), ("second", flips.only_second))
        if number
    ]
    share = "".join(f", {text}" for text in parts)
    yield (
        f"{format_count(flips.shared)} documents{share}; {format_count(flips.same)} scored the "
        f"same to the bit"
    )
    if flips.lost is not None and flips.won is not None:
        yield f"lost {_document_list(flips.lost)}"
        yield f"won {_document_list(flips.won)}"
    elif flips.moved:
        moves = [f"{moved.doc_id} ({-moved.worse:+.2g})" for moved in flips.moved]
        yield f"moved most: {', '.join(moves)}; below 0 is worse"
    if flips.base_moved:
        yield f"the base scores {format_count(flips.base_moved)} of them otherwise, too"


def _broken_sentences(broken: BrokenDocuments, report: FlipReport) -> Iterator[str]:
    if not broken.total and not broken.repaired:
        return
    parts = [
        f"{format_count(len(broken.still))} still",
        f"{format_count(len(broken.new))} for the first time",
        f"{format_count(len(broken.again))} again",
    ]
    yield (
        f"broken in run {report.second.number}: {format_count(broken.total)} ({', '.join(parts)}); "
        f"{format_count(len(broken.repaired))} of the night before are repaired"
    )
    if broken.again:
        yield f"broken again {_document_list(broken.again)}"
    alike = broken.alike
    if alike is not None:
        fresh = len(broken.new) + len(broken.again)
        yield (
            f"{format_count(alike.again)} of the {format_count(fresh)} that broke were broken "
            f"in run {alike.run} "
            f"({format_time(report.nights.get(alike.run, ''))}), too; by chance about "
            f"{alike.by_chance:.2g}"
        )


def _document_list(ids: Sequence[int]) -> str:
    """Return "3: documents 1, 2, 5", cut."""
    if not ids:
        return "none"
    suffix = (
        f" and {format_count(len(ids) - _MOST_DOCUMENTS)} more"
        if len(ids) > _MOST_DOCUMENTS
        else ""
    )
    return (
        f"{format_count(len(ids))}: documents {', '.join(map(str, ids[:_MOST_DOCUMENTS]))}{suffix}"
    )


_MOST_PLOTS = 2
_SPARK_WIDTH, _SIGMA_WIDTH = 24, 16
_MOST_NAMED = 4
_MOST_LINES, _MOST_NOTES = 6, 2


def trend_blocks(report: TrendReport, width: int, *, verbose: bool = False) -> Iterator[list[Text]]:
    """What changed, then a plot of one metric or a line for each; of many, those that changed.

    With ``verbose`` there is a line for each, a plot for one or two, and all change points.
    """
    pair = f"{printable(report.candidate)} against {printable(report.base)}"
    n_points = sum(len(trend.scan.points) for trend in report.trends)
    answer = (
        f"{n_points} change point{'' if n_points == 1 else 's'}" if n_points else "No change point"
    )
    yield wrap_prose(
        f"{answer}: {pair}, {_drift_name(report.trends)} over nights", width, style="bold"
    )
    notes = [block for trend in report.trends for block in _note_blocks(trend, width)]
    if verbose:
        yield from notes
    else:
        omitted = len(notes) - _MOST_NOTES
        rest = wrap_prose(
            f"and {omitted} more metrics with a note (-v)" if omitted > 0 else "", width
        )
        yield [*(line for block in notes[:_MOST_NOTES] for line in block), *rest]
    if len(report.trends) <= (_MOST_PLOTS if verbose else 1):
        for trend in report.trends:
            yield [Text(fit_text(_title(trend), width), style="bold"), *plot_trend(trend, width)]
    else:
        trends = list(report.trends)
        if not verbose:
            trends = sorted(trends, key=_news_order)[:_MOST_LINES]
        omitted = len(report.trends) - len(trends)
        rest = wrap_prose(f"and {omitted} more trends (-v)" if omitted else "", width)
        yield [*_trend_lines(trends, width), *rest]
    yield [
        *wrap_prose(trend_error_text(report), width, style="dim"),
        *wrap_prose(f"History: {printable(report.file)}", width, style="dim"),
        *(_next_lines(report, width) if n_points else []),
    ]


def _drift_name(trends: Sequence[Trend]) -> str:
    """ "sigma", or "drift" where one of the trends is in another unit."""
    return "sigma" if all(trend.unit == "sigma" for trend in trends) else "drift"


def _next_lines(report: TrendReport, width: int) -> list[Text]:
    """The command that shows the documents behind the latest change, of the first that has one."""
    trend = next(trend for trend in report.trends if trend.scan.points)
    at = trend.scan.points[-1].position
    before, after = (trend.nights[trend.used[index]].run.number for index in (at - 1, at))
    words = ["evalguard", "history", "flips", str(before), str(after), "--base", report.base]
    words += ["--cand", report.candidate, "--history", report.file]
    command = shlex.join(map(printable, words))
    return next_lines("to see which documents changed", command, width)


def _news_order(trend: Trend) -> tuple[int, float]:
    """Sorts trends with change points to the front, then the largest drift."""
    sigma = trend.nights[-1].metric.sigma
    return -len(trend.scan.points), -(sigma if sigma is not None and sigma == sigma else 0.0)


def _trend_lines(trends: Sequence[Trend], width: int) -> Iterator[Text]:
    room = max(width - _SPARK_WIDTH - _SIGMA_WIDTH - 4, 12)
    rows = [
        [fit_text(key_label(*trend.key), room), draw_sparkline(trend, _SPARK_WIDTH), _latest(trend)]
        for trend in trends
    ]
    yield from Table(headings=["", " " * _SPARK_WIDTH, ""], rows=rows, leaving=()).lines(width)[1:]


def _title(trend: Trend) -> str:
    nights = format_count(len(trend.nights))
    noun = "night" if len(trend.nights) == 1 else "nights"
    return f"{key_label(*trend.key)}: {nights} {noun}, the latest {_latest(trend)}"


def _latest(trend: Trend) -> str:
    metric = trend.nights[-1].metric
    drift, stderr = metric.drift_in(trend.unit)
    return metric.outcome if drift is None else format_drift(drift, stderr, trend.unit)


def change_sentences(trend: Trend) -> list[str]:
    """What is said of each change point."""
    return [
        f"{_change_text(trend, point)}{_cause_text(changes)}"
        for point, changes in zip(trend.scan.points, trend.changes, strict=True)
    ]


def _note_blocks(trend: Trend, width: int) -> Iterator[list[Text]]:
    """What changed, and which nights could not be used."""
    label = key_label(*trend.key)
    lines: list[Text] = []
    for point, sentence in zip(trend.scan.points, change_sentences(trend), strict=True):
        style = "red" if point.step > 0 else "green"
        lines += wrap_prose(f"{label}: {sentence}", width, style=style)
    left_out = len(trend.nights) - len(trend.used)
    if left_out:
        verb = "has" if left_out == 1 else "have"
        lines += wrap_prose(
            f"{label}: {format_count(left_out)} of {format_count(len(trend.nights))} nights "
            f"{verb} no finite "
            f"{_drift_name([trend])} and are left out",
            width,
        )
    if lines:
        yield lines


def _change_text(trend: Trend, point: ChangePoint) -> str:
    runs = [trend.nights[index].run for index in trend.used]
    run, first, last = (runs[at] for at in (point.position, point.earliest, point.latest))
    within = "" if first == last else f"; 95%: {first.number} to {last.number}"
    way = "worse" if point.step > 0 else "better"
    before = format_with_stderr(point.before.mean, point.before.stderr)
    after = format_with_stderr(point.after.mean, point.after.stderr)
    step = format_with_stderr(abs(point.step), point.stderr)
    return (
        f"{way} by {step} {trend.unit} from run {run.number} on "
        f"({format_time(run.created)[:10]}{within}): "
        f"{before} before, {after} since ({p_value_phrase(point.p_value)})"
    )


def _cause_text(changes: tuple[Change, ...]) -> str:
    if not changes:
        return "; nothing else that is kept changed there"
    changed = [
        f"{printable(change.what)} {printable(change.before)} -> {printable(change.after)} in run "
        f"{change.run}"
        for change in changes[:_MOST_NAMED]
    ]
    suffix = f" and {len(changes) - _MOST_NAMED} more" if len(changes) > _MOST_NAMED else ""
    return f"; changed there: {', '.join(changed)}{suffix}"


def trend_error_text(report: TrendReport) -> str:
    """How many change points there are, and the chance of a false one."""
    several = len(report.trends) > 1
    among = f"among these {format_count(len(report.trends))} trends" if several else "in this trend"
    n_points = sum(len(trend.scan.points) for trend in report.trends)
    points = (
        "no change point"
        if not n_points
        else f"{n_points} change point{'s' if n_points > 1 else ''}"
    )
    looks = f" in {format_count(report.looks)} answers like this" if report.looks > 1 else ""
    return (
        f"{points}; the chance of any false one {among}{looks} is at most "
        f"{format_percent(report.alpha)} (permutation scan{_alike_text(report)})"
    )


def _alike_text(report: TrendReport) -> str:
    """What nights that follow each other mean for that chance."""
    correlation = max((trend.scan.correlation for trend in report.trends), default=0.0)
    if correlation == 0.0:
        return "; nights in a row are not seen to be alike"
    return (
        f"; nights in a row are alike, correlation {correlation:.2f}, which is counted: by "
        "simulation up to twice that chance"
    )


_MOST_PROBLEMS = 3


def history_text(found: Found, *, width: int, color: bool, verbose: bool = False) -> str:
    """Return the text for a terminal of a width; with ``verbose`` every trend."""
    return render_page(_answer_blocks(found, width, verbose), width, color=color)


def _answer_blocks(found: Found, width: int, verbose: bool) -> Iterator[list[Text]]:
    if not isinstance(found, (HistoryCheck, HistoryAddition)) and found.problems:
        yield wrap_prose(_damaged_rows_text(found.problems), width, style="bold magenta")
    if isinstance(found, HistoryListing):
        yield from listing_blocks(found, width)
    elif isinstance(found, TrendReport):
        yield from trend_blocks(found, width, verbose=verbose)
    elif isinstance(found, FlipReport):
        yield from flip_blocks(found, width)
    elif isinstance(found, HistoryCheck):
        yield from _check_blocks(found, width)
    elif isinstance(found, HistoryExport):
        yield from _export_blocks(found, width)
    else:
        yield from change_blocks(found, width)


def _damaged_rows_text(problems: tuple[str, ...]) -> str:
    rows = "row is" if len(problems) == 1 else "rows are"
    return (
        f"{format_count(len(problems))} {rows} damaged and left out (evalguard history check): "
        f"{printable('; '.join(problems[:_MOST_PROBLEMS]))}"
    )


def _check_blocks(check: HistoryCheck, width: int) -> Iterator[list[Text]]:
    for problem in check.problems:
        yield wrap_prose(printable(problem), width)
    damaged = f"{format_count(len(check.problems))} problems" if check.problems else "all whole"
    summary = (
        f"{printable(check.file)}: {format_count(check.runs)} runs, "
        f"{format_count(check.metrics)} metrics, "
        f"{format_count(check.vectors)} vectors, {size_text(check.size)}; {damaged}."
    )
    yield wrap_prose(summary, width)
    if check.problems:
        rescue = (
            f"What can be read: sqlite3 {printable(check.file)} .recover | sqlite3 NEW; run "
            "folders keep their own result.json and samples."
        )
        yield wrap_prose(rescue, width)


def _export_blocks(export: HistoryExport, width: int) -> Iterator[list[Text]]:
    for file, rows in export.written.items():
        yield wrap_prose(f"wrote {printable(file)}: {format_count(rows)} rows", width)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrendFigure:
    """A metric over nights: a picture, and what it shows in words."""

    title: str
    plot: Markup
    said: tuple[str, ...]


def trend_figure(trend: Trend) -> TrendFigure | None:
    """The figure of a metric; None where no night has a number."""
    if not trend.used:
        return None
    nights = [trend.nights[index] for index in trend.used]
    title = printable(metric_key_text(trend.key))
    sentences = tuple(map(format_sentence, change_sentences(trend))) or ("No change point.",)
    return TrendFigure(
        title=title,
        plot=draw_trend(
            [_plotted_night(night, trend.unit) for night in nights],
            [
                TrendLevel(start=level.start, stop=level.stop, mean=level.mean)
                for level in trend.scan.levels
            ],
            margin=nights[-1].margin_in(trend.unit),
            unit=trend.unit,
            ends=(nights[0].run.created[:10], nights[-1].run.created[:10]),
            said=f"{title}: {trend.unit} of {len(nights)} nights. {' '.join(sentences)}",
        ),
        said=sentences,
    )


def format_sentence(words: str) -> str:
    """With a capital and a full stop."""
    return f"{words[:1].upper()}{words[1:]}."


def _plotted_night(night: Night, unit: DriftUnit) -> TrendNight:
    metric = night.metric
    drift, stderr = metric.drift_in(unit)
    low, high = metric.interval_in(unit)
    value = format_with_stderr(drift, stderr)
    return TrendNight(
        drift=drift,
        low=low,
        high=high,
        kind=metric.outcome if metric.gated else "",
        said=printable(f"{night.run.created}: {value} {unit}, {outcome_name(metric.outcome)}"),
    )


def render_history_page(report: TrendReport) -> str:
    """Return the page of a pair's trends, with their change points."""
    figures = [figure for trend in report.trends if (figure := trend_figure(trend)) is not None]
    return html_page(
        "nights/history.html",
        title=printable(f"{report.candidate} against {report.base}: sigma over nights"),
        figures=figures,
        rate=format_sentence(trend_error_text(report)),
        file=printable(report.file),
        problems=[printable(line) for line in report.problems],
    )


@dataclass(frozen=True, slots=True)
class HistoryResult(Result[Found]):
    """What was found in a history, or changed in it."""

    @property
    def exit_code(self) -> int:
        """1 where a check found something damaged, 3 where all that was asked for is damaged, else
        0: a history judges nothing."""
        if isinstance(self.report, HistoryCheck):
            return EXIT_REGRESSED if self.report.problems else EXIT_PASSED
        return EXIT_FAILED if _is_all_damaged(self.report) else EXIT_PASSED

    def to_dict(self) -> dict[str, Any]:
        """Return one JSON document (schema ``evalguard.history/1``) as plain data."""
        return history_document(self.report)

    def render(self, *, width: int = 80, color: bool = False, verbose: bool = False) -> str:
        """Return text for a terminal; with ``verbose`` every trend."""
        return history_text(self.report, width=width, color=color, verbose=verbose)


def _is_all_damaged(found: Found) -> bool:
    """Whether damaged rows were left out, and nothing is there beside them."""
    match found:
        case HistoryListing():
            known = any(run.metrics for run in found.runs)
        case TrendReport():
            known = bool(found.trends)
        case FlipReport():
            known = any(metric.flips is not None for metric in found.metrics)
        case HistoryExport():
            known = any(found.written.values())
        case _:
            return False
    return bool(found.problems) and not known


_SUFFIXES = (".html", ".htm", ".txt", ".json")


def check_trend_files(paths: Sequence[Path]) -> None:
    """Refuse files that cannot be written.

    Raises:
        UsageError: naming the first.
    """
    for path in paths:
        if path.suffix.lower() not in _SUFFIXES:
            raise UsageError(
                f"{path}: trends are not written as {path.suffix or 'a file without a suffix'}",
                hint=f"name it {' or '.join(f'*{suffix}' for suffix in _SUFFIXES)}",
            )
        check_output(path)


def write_trends(report: TrendReport, paths: Sequence[Path]) -> None:
    """Write trends to each file, in the format of its suffix.

    Raises:
        StoreError: one cannot be written.
    """
    for path in paths:
        write_output(path, _render_trends(report, path.suffix.lower()))


def _render_trends(report: TrendReport, suffix: str) -> str:
    if suffix in (".html", ".htm"):
        return render_history_page(report)
    result = HistoryResult(report)
    return (result.to_json() if suffix == ".json" else result.render()) + "\n"
