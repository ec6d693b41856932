"""``evalguard nightly``: every pair of a guard file, compared."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from evalguard.cli.click_options import Command, add_options, option_factory, read_compare_options
from evalguard.cli.option_groups import (
    CODE,
    CONFIG,
    EPILOG,
    OUTPUT,
    RUNNING,
    TRACKING,
    take,
)
from evalguard.cli.output import CommandResult, Job, show_result
from evalguard.cli.value_types import FiniteRange

_night_option = option_factory("Night")
(_HISTORY,) = take(
    "history",
    help="Add this run to a history, or to none. Default: the guard file's, else history.sqlite "
    "beside the nights.",
)
_FIRST_OF_NIGHTLY = (
    "config",
    "allow_code",
    "pair_hours",
    "resume_hours",
    "strict",
    "bisect",
    "history",
    "track",
    "device",
    "output_path",
    "as_json",
    "quiet",
)


@click.command(
    "nightly",
    cls=Command,
    moves=True,
    first=_FIRST_OF_NIGHTLY,
    epilog=EPILOG,
)
@_night_option(
    "--resume-hours",
    type=FiniteRange(min=0),
    default=12.0,
    show_default=True,
    metavar="HOURS",
    help="Continue a night that was stopped, if it began less than HOURS ago; 0: never.",
)
@_night_option(
    "--pair-hours",
    type=FiniteRange(min=0),
    metavar="HOURS",
    help="Stop a pair, or its bisection, after HOURS; 0: never. Default: the guard file's "
    "run: {pair_hours: N}, else 12.",
)
@add_options(CONFIG, *CODE, *RUNNING, *take("strict", "bisect"), _HISTORY, TRACKING, *OUTPUT)
@click.pass_obj
def nightly_command(command: str, /, as_json: bool, **given: Any) -> Job:
    """Compare every pair of the guard file: first all verdicts, then bisections of what failed.

    A pair that fails or hangs stops no other. reports/nightly/<time> holds summary.txt (a mail),
    summary.md, night.json and the run folders; every run is added to a history. The exit code is
    the first of these that any pair has: 1 regressed, 3 failed, 4 undecided under --strict, else 0.
    """
    return partial(_nightly, as_json=as_json, command=command, **given)


def _nightly(*, as_json: bool, verbose: bool, **given: Any) -> CommandResult:
    from evalguard.nights.night import nightly

    result = nightly(**read_compare_options(given))
    return show_result(result, as_json=as_json, verbose=verbose, problems=result.problems)
