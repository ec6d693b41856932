"""``evalguard nightly``."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import click

from evalguard.cli.bisect_options import BISECT
from evalguard.cli.given import compare_options
from evalguard.cli.history_options import NIGHT_HISTORY
from evalguard.cli.options import CODE, CONFIG, EPILOG, OUTPUT, RUNNING, STRICT, together
from evalguard.cli.output import Answer, Job, terminal_width, wants_color
from evalguard.cli.tracking_options import TRACKING


@click.command("nightly", epilog=EPILOG, short_help="Compare every pair of a guard file.")
@click.option(
    "--resume-hours",
    type=click.FloatRange(min=0),
    default=12.0,
    show_default=True,
    metavar="N",
    help="Go on with a night that was stopped, if it began less than N hours ago; 0: never.",
)
@click.option(
    "--pair-hours",
    type=click.FloatRange(min=0),
    metavar="N",
    help="Stop a pair that takes longer than N hours, or its bisection; 0: never. Default: the "
    "guard file's run: {pair_hours: N}, else 12.",
)
@together(CONFIG, *CODE, *RUNNING, STRICT, *BISECT, *NIGHT_HISTORY, *TRACKING, *OUTPUT)
@click.pass_obj
def nightly_command(command: str, /, as_json: bool, **given: Any) -> Job:
    """Compare every pair of the guard file, one after the other; one that fails, hangs or takes its
    process down stops no other.

    Verdicts come first, then the bisections of what failed. The night's folder,
    reports/nightly/<time>, holds summary.txt (a mail), summary.md, night.json and the run folders;
    every run is added to a history. What is other than last night stands on top.

    The exit code over all pairs is the first of these that any pair has: 1 regressed, 3 failed,
    4 undecided under --strict, else 0.
    """
    return partial(_nightly, as_json=as_json, command=command, **given)


def _nightly(*, as_json: bool, **given: Any) -> Answer:
    from evalguard.pipeline.nightly.nightly import nightly

    result = nightly(**compare_options(given))
    width, color = terminal_width(), wants_color(sys.stdout)
    text = result.to_json if as_json else partial(result.render, width=width, color=color)
    return Answer(text, result.exit_code, result.problems)
