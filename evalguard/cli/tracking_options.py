"""The option that says which experiment trackers get a run."""

from __future__ import annotations

import click

from evalguard.tracked_run import SINKS

TRACKING = (
    click.option(
        "--track",
        type=click.Choice([*SINKS, "none"]),
        multiple=True,
        help="Send the finished run to a tracker. Repeatable. Default: W&B where it is configured.",
    ),
)
