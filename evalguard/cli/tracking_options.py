"""The option that says which experiment trackers get a run."""

from __future__ import annotations

import click

from evalguard.cli.help import record_option
from evalguard.tracked_run import SINKS

TRACKING = (
    record_option(
        "--track",
        type=click.Choice([*SINKS, "none"]),
        multiple=True,
        help="Send the finished run to a tracker. Repeatable. Default: W&B where it is configured.",
    ),
)
