"""``evalguard history``: what nights of comparisons say together."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from evalguard.cli.click_options import PATH, Group, add_options, files_option, option_factory
from evalguard.cli.option_groups import DEBUG, JSON, VERBOSE
from evalguard.cli.output import CommandResult, Job, show_result
from evalguard.cli.value_types import FiniteRange

if TYPE_CHECKING:
    from evalguard.nights.history_report import Found

_file_option = option_factory("History")
_run_option = option_factory("Runs and metrics")
_FILE = (
    _file_option(
        "--history", type=PATH, metavar="FILE", help="History file. Default: the guard file's."
    ),
    _file_option(
        "--config",
        type=PATH,
        metavar="FILE",
        help="Guard file that names the history. Default: evalguard.yaml, configs/*.",
    ),
)
_SHOWN = (JSON, DEBUG)
_PAIR = (
    _run_option("--base", default="", metavar="MODEL", help="Only runs with this base."),
    _run_option(
        "--cand",
        "--candidate",
        "candidate",
        default="",
        metavar="MODEL",
        help="Only runs with this candidate.",
    ),
)
_METRICS = (
    _run_option("--task", default="", metavar="TASK", help="Only metrics of this task."),
    _run_option("--metric", default="", metavar="NAME", help="Only this metric."),
    _run_option("--filter", default="", metavar="NAME", help="Only this lm-eval filter."),
    _run_option("--all", "everything", is_flag=True, help="Also metrics that are not gated."),
)
_LAST = click.IntRange(min=1)


@click.group(
    "history",
    cls=Group,
    no_args_is_help=True,
)
def history_command() -> None:
    """Look at runs that `evalguard compare --history FILE` kept, over nights."""


@history_command.command("list", short_help="List the runs.")
@_run_option(
    "--last",
    type=_LAST,
    default=20,
    show_default=True,
    metavar="N",
    help="Only the latest N runs.",
)
@add_options(*_PAIR, *_FILE, *_SHOWN)
def history_list_command(last: int, as_json: bool, **given: Any) -> Job:
    """List the latest runs: number, time, gate, the worst gated metric."""
    return partial(_listed, last, as_json, given)


def _listed(last: int, as_json: bool, given: dict[str, Any]) -> CommandResult:
    from evalguard.nights.history_questions import HistorySelection, list_runs

    file = _take_history_file(given)
    return _history_result(list_runs(file, HistorySelection(**given), last=last), as_json)


@history_command.command("trend", short_help="Sigma over nights, and where its level moved.")
@_run_option("--last", type=_LAST, metavar="N", help="Only the latest N nights. Default: all.")
@_run_option(
    "--alpha",
    type=FiniteRange(0, 0.5, min_open=True, max_open=True),
    default=0.05,
    show_default=True,
    metavar="P",
    help="Probability of any false change point among all that is shown.",
)
@_run_option(
    "--looks",
    type=click.IntRange(min=1, max=10_000),
    default=1,
    show_default=True,
    metavar="N",
    help="Number of looks that share that probability: 365 for every night of a year.",
)
@files_option("trend", ".html (with plots), .txt or .json")
@add_options(*_PAIR, *_METRICS, *_FILE, VERBOSE, *_SHOWN)
def history_trend_command(
    output: tuple[Path, ...], everything: bool, as_json: bool, **given: Any
) -> Job:
    """Show sigma of a pair's gated metrics over nights, with change points."""
    return partial(_trend, output, everything, as_json, given)


def _trend(
    output: tuple[Path, ...], everything: bool, as_json: bool, given: dict[str, Any]
) -> CommandResult:
    from evalguard.nights.history_page import check_trend_files, write_trends
    from evalguard.nights.history_questions import HistorySelection, find_trends

    check_trend_files(output)
    verbose, file = given.pop("verbose"), _take_history_file(given)
    scanned = {name: given.pop(name) for name in ("last", "alpha", "looks")}
    trends = find_trends(file, HistorySelection(**given), **scanned, everything=everything)
    result = _history_result(trends, as_json, verbose)
    if output:
        write_trends(trends, output)
        return result if as_json else replace(result, text=str)
    return result


@history_command.command("flips", short_help="Documents that changed between two nights.")
@click.argument("first", default="latest~1")
@click.argument("second", default="latest")
@add_options(*_PAIR, *_METRICS, *_FILE, *_SHOWN)
def history_flips_command(
    first: str, second: str, everything: bool, as_json: bool, **given: Any
) -> Job:
    """Show documents that the candidate answers otherwise in run SECOND than in FIRST.

    And which documents are broken in SECOND: still, again, or for the first time. A run is latest,
    latest~1 (the one before), a number of `evalguard history list`, or a date.
    """
    return partial(_flips, first, second, everything, as_json, given)


def _flips(
    first: str, second: str, everything: bool, as_json: bool, given: dict[str, Any]
) -> CommandResult:
    from evalguard.nights.history_questions import HistorySelection, find_flips

    file = _take_history_file(given)
    flips = find_flips(
        file, HistorySelection(**given), first=first, second=second, everything=everything
    )
    return _history_result(flips, as_json)


@history_command.command("export", short_help="Write it as parquet files.")
@click.argument("folder", type=PATH)
@_run_option("--no-documents", is_flag=True, help="Export runs and metrics only.")
@add_options(*_FILE, *_SHOWN)
def history_export_command(folder: Path, no_documents: bool, as_json: bool, **given: Any) -> Job:
    """Write nights.parquet and documents.parquet into FOLDER."""
    return partial(_exported, folder, no_documents, as_json, given)


def _exported(
    folder: Path, no_documents: bool, as_json: bool, given: dict[str, Any]
) -> CommandResult:
    from evalguard.nights.history.export import export_history

    file = _take_history_file(given)
    return _history_result(
        export_history(file, folder.expanduser(), documents=not no_documents), as_json
    )


@history_command.command("check", short_help="Read all of it.")
@add_options(*_FILE, *_SHOWN)
def history_check_command(as_json: bool, **given: Any) -> Job:
    """Read every page, row and vector; exit with 1 if anything is damaged."""
    return partial(_checked, as_json, given)


def _checked(as_json: bool, given: dict[str, Any]) -> CommandResult:
    from evalguard.nights.history_questions import check_history

    return _history_result(check_history(_take_history_file(given)), as_json)


@history_command.command("add", short_help="Put a finished run into it.")
@click.argument("run", type=PATH)
@add_options(*_FILE, *_SHOWN)
def history_add_command(run: Path, as_json: bool, **given: Any) -> Job:
    """Put the run folder RUN into a history, as if it had been made with --history."""
    return partial(_added, run, as_json, given)


def _added(run: Path, as_json: bool, given: dict[str, Any]) -> CommandResult:
    from evalguard.nights.history_runs import add_run

    return _history_result(add_run(_take_history_file(given), run), as_json)


@history_command.command("prune", short_help="Take old nights out of it.")
@_run_option(
    "--keep-days",
    type=FiniteRange(min=0),
    metavar="DAYS",
    help="Keep the runs of the last DAYS days.",
)
@_run_option("--keep-nights", type=_LAST, metavar="N", help="Keep the latest N runs of every pair.")
@_run_option("--dry-run", is_flag=True, help="Only list what would be removed.")
@add_options(*_FILE, *_SHOWN)
def history_prune_command(
    keep_days: float | None, keep_nights: int | None, dry_run: bool, as_json: bool, **given: Any
) -> Job:
    """Take old runs out of a history, and give back the room. What either rule keeps stays."""
    return partial(_pruned, keep_days, keep_nights, dry_run, as_json, given)


def _pruned(
    days: float | None, nights: int | None, dry_run: bool, as_json: bool, given: dict[str, Any]
) -> CommandResult:
    from evalguard.nights.history_runs import prune_runs

    return _history_result(
        prune_runs(_take_history_file(given), days=days, nights=nights, dry_run=dry_run), as_json
    )


def _take_history_file(given: dict[str, Any]) -> Path:
    """Take the options that name the history out of ``given``."""
    from evalguard.nights.history_questions import require_history_file

    return require_history_file(given.pop("history"), given.pop("config"))


def _history_result(found: Found, as_json: bool, verbose: bool = False) -> CommandResult:
    from evalguard.nights.history_page import HistoryResult

    return show_result(HistoryResult(found), as_json=as_json, verbose=verbose)
