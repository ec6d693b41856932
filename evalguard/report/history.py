"""What a history answered: its runs, flips between two nights and changes, for a terminal and as
``evalguard.history/1``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich.text import Text

from evalguard.core.amounts import size_text
from evalguard.core.history import Night, NightMetric, NightRun
from evalguard.core.reports.broken_on_nights import BrokenDocuments
from evalguard.core.reports.document_flips import DocumentFlips
from evalguard.core.reports.history_report import (
    SCHEMA,
    FlipReport,
    Found,
    HistoryAddition,
    HistoryCheck,
    HistoryExport,
    HistoryListing,
    HistoryPruning,
    MetricFlips,
    Trend,
    TrendReport,
)
from evalguard.report.contract.forms import key_fields
from evalguard.report.contract.json_values import replace_non_finite
from evalguard.report.page import render_page, wrap_prose
from evalguard.report.trends import format_time, key_label, listing_blocks, trend_blocks
from evalguard.report.words.plain_text import printable
from evalguard.report.words.rounding import format_count
from evalguard.stats.series.levels import ChangePoint, Level

_MOST_PROBLEMS = 3


def history_text(found: Found, *, width: int, color: bool, verbose: bool = False) -> str:
    """Return the text for a terminal of a width; with ``verbose`` every trend."""
    return render_page(_answer_blocks(found, width, verbose), width, color=color)


def _answer_blocks(found: Found, width: int, verbose: bool) -> Iterator[list[Text]]:
    if (
        isinstance(found, (HistoryListing, TrendReport, FlipReport, HistoryPruning))
        and found.problems
    ):
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


# What was put into a history, or taken out of it, for a terminal.


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


# Flips between two nights, in words.


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
    others = [
        f"{format_count(number)} only in the {which}"
        for which, number in (("first", flips.only_first), ("second", flips.only_second))
        if number
    ]
    share = "".join(f", {text}" for text in others)
    yield (
        f"{format_count(flips.shared)} documents{share}; {format_count(flips.same)} scored the "
        f"same to the bit"
    )
    if flips.lost is not None and flips.won is not None:
        yield f"lost {_document_list(flips.lost)}"
        yield f"won {_document_list(flips.won)}"
    elif flips.moved:
        told = [f"{moved.doc_id} ({-moved.worse:+.2g})" for moved in flips.moved]
        yield f"moved most: {', '.join(told)}; below 0 is worse"
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
    more = (
        f" and {format_count(len(ids) - _MOST_DOCUMENTS)} more"
        if len(ids) > _MOST_DOCUMENTS
        else ""
    )
    return f"{format_count(len(ids))}: documents {', '.join(map(str, ids[:_MOST_DOCUMENTS]))}{more}"


# The JSON documents of ``evalguard history`` (schema ``evalguard.history/1``).


def history_document(found: Found) -> dict[str, Any]:
    """Return the document; numbers that are infinite are null, like those that do not exist."""
    if isinstance(found, HistoryListing):
        content = _listing_document(found)
    elif isinstance(found, TrendReport):
        content = _trends_document(found)
    elif isinstance(found, FlipReport):
        content = _flips_document(found)
    elif isinstance(found, HistoryCheck):
        content = {"check": {"whole": not found.problems, **asdict(found)}}
    elif isinstance(found, HistoryPruning):
        removed = [_run_document(run) for run in found.removed]
        content = {"prune": {**asdict(found), "removed": removed}}
    elif isinstance(found, HistoryAddition):
        content = {"add": {**asdict(found), "run": _run_document(found.run)}}
    else:
        content = {"export": asdict(found)}
    return {"schema": SCHEMA, **replace_non_finite(content, "", {})}


def _listing_document(listing: HistoryListing) -> dict[str, Any]:
    runs = [
        {
            **_run_document(kept.run),
            "metrics": [_metric_document(metric) for metric in kept.metrics],
        }
        for kept in listing.runs
    ]
    return {
        "file": listing.file,
        "total": listing.total,
        "runs": runs,
        "problems": listing.problems,
    }


def _trends_document(report: TrendReport) -> dict[str, Any]:
    return {
        "file": report.file,
        "base": report.base,
        "candidate": report.candidate,
        "alpha": report.alpha,
        "looks": report.looks,
        "trends": [_trend_document(trend) for trend in report.trends],
        "problems": report.problems,
    }


def _trend_document(trend: Trend) -> dict[str, Any]:
    scan, used, key = trend.scan, set(trend.used), key_fields(trend.key)
    nights = [trend.nights[place] for place in trend.used]
    return {
        **key,
        "alpha": scan.alpha,
        "shortest": scan.shortest,
        "smallest_step": scan.smallest_step,
        "seed": scan.seed,
        "correlation": scan.correlation,
        "nights": [
            {"run": night.run.number, "created": night.run.created, "used": place in used}
            | {
                name: value
                for name, value in _metric_document(night.metric).items()
                if name not in key
            }
            for place, night in enumerate(trend.nights)
        ],
        "levels": [_level_document(level, nights) for level in scan.levels],
        "change_points": [
            {
                **_change_point_document(point, nights),
                "changes": [asdict(change) for change in changes],
            }
            for point, changes in zip(scan.points, trend.changes, strict=True)
        ],
    }


def _change_point_document(point: ChangePoint, nights: list[Night]) -> dict[str, Any]:
    return {
        "run": nights[point.position].run.number,
        "created": nights[point.position].run.created,
        "earliest_run": nights[point.earliest].run.number,
        "latest_run": nights[point.latest].run.number,
        "before": point.before.mean,
        "after": point.after.mean,
        "step": point.step,
        "step_stderr": point.stderr,
        "p_value": point.p_value,
        "level": point.level,
    }


def _level_document(level: Level, nights: list[Night]) -> dict[str, Any]:
    return {
        "first_run": nights[level.start].run.number,
        "last_run": nights[level.stop - 1].run.number,
        "nights": level.stop - level.start,
        "sigma": level.mean,
        "stderr": level.stderr,
    }


def _flips_document(report: FlipReport) -> dict[str, Any]:
    return {
        "file": report.file,
        "first": _run_document(report.first),
        "second": _run_document(report.second),
        "metrics": [_metric_flips_document(metric) for metric in report.metrics],
        "problems": report.problems,
    }


def _metric_flips_document(found: MetricFlips) -> dict[str, Any]:
    broken = None if found.broken is None else {"total": found.broken.total, **asdict(found.broken)}
    changed = None if found.flips is None else asdict(found.flips)
    return {**key_fields(found.key), "reason": found.reason, "flips": changed, "broken": broken}


def _run_document(run: NightRun) -> dict[str, Any]:
    return {"run" if name == "number" else name: value for name, value in asdict(run).items()}


def _metric_document(metric: NightMetric) -> dict[str, Any]:
    return {**asdict(metric), "sigma_stderr": metric.stderr}
