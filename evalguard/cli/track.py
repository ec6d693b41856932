"""``evalguard track``: send a finished comparison to experiment trackers."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from evalguard.cli.help import together
from evalguard.cli.options import DEBUG
from evalguard.cli.output import Answer, Job
from evalguard.cli.tracking_options import TRACKING
from evalguard.cli.values import PATH

_QUIET = click.option("--quiet", "-q", is_flag=True, help="Show no progress.")


@click.command("track", short_help="Send a finished run to W&B, trackio or MLflow.")
@click.argument("run", type=PATH, metavar="RUN")
@together(*TRACKING, _QUIET, DEBUG)
def track_command(run: Path, track: tuple[str, ...], quiet: bool) -> Job:
    """Send a finished comparison to experiment trackers.

    RUN is a run folder, or its result.json. Exit codes: 0 sent, or kept here for wandb sync; 2
    usage; 3 not sent.
    """
    return partial(_tracked, run, track, quiet=quiet)


def _tracked(run: Path, track: tuple[str, ...], *, quiet: bool) -> Answer:
    from evalguard.pipeline.tracking.stored import track_stored

    result = track_stored(run, track, quiet=quiet)
    return Answer(result.render, result.exit_code)
