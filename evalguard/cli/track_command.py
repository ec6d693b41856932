"""``evalguard track``: send a finished comparison to experiment trackers."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from evalguard.cli.click_options import PATH, add_options, record_option
from evalguard.cli.option_groups import DEBUG, TRACKING
from evalguard.cli.output import CommandResult, Job
from evalguard.errors import EXIT_FAILED, EXIT_PASSED

_DOCUMENTS = record_option(
    "--track-documents",
    is_flag=True,
    help="Send it documents, too: prompts, answers, the run folder's files.",
)
_QUIET = click.option("--quiet", "-q", is_flag=True, help="Show no progress.")


@click.command("track")
@click.argument("runs", type=PATH, nargs=-1, required=True, metavar="RUN...")
@add_options(TRACKING, _DOCUMENTS, _QUIET, DEBUG)
def track_command(
    runs: tuple[Path, ...], track: tuple[str, ...], track_documents: bool, quiet: bool
) -> Job:
    """Send finished comparisons to experiment trackers.

    RUN is a run folder, or its result.json. Exit codes: 0 sent, or kept here for wandb sync; 2
    usage; 3 not sent.
    """
    return partial(_tracked, runs, track, documents=track_documents, quiet=quiet)


def _tracked(
    runs: tuple[Path, ...], track: tuple[str, ...], *, documents: bool, quiet: bool
) -> CommandResult:
    """One line for each tracker, below the folder of each run where there are more."""
    from evalguard.publish.tracking import track_stored
    from evalguard.report.tracked_view import tracked_views

    reports = track_stored(runs, track, documents=documents, quiet=quiet)
    failed = any(sent.state == "failed" for report in reports for sent in report.tracked)
    lines: list[str] = []
    for report in reports:
        lines += [f"{report.run_folder}:"] if len(reports) > 1 else []
        lines += map(str, tracked_views(report))
    return CommandResult(partial("\n".join, lines), EXIT_FAILED if failed else EXIT_PASSED)
