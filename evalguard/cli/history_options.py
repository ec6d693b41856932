"""The options that say which history."""

from __future__ import annotations

import click

from evalguard.cli.values import PATH

HISTORY = (
    click.option(
        "--history",
        type=PATH,
        metavar="FILE",
        help="Add this run to a history. Default: the guard file's, else none.",
    ),
    click.option("--no-history", is_flag=True, help="Not even if the guard file names one."),
)
