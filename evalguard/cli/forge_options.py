"""What ``evalguard github`` and ``evalguard gitlab`` take."""

from __future__ import annotations

import click

from evalguard.cli.values import PATH

RESULT = click.argument("result", type=PATH)
COMMENT = click.option(
    "--comment",
    type=click.Choice(["always", "failures", "never"]),
    default="always",
    show_default=True,
    help="Comment on the pull or merge request. The comment of an earlier run is updated.",
)
NAME = click.option(
    "--name",
    default="",
    metavar="NAME",
    help="Tells the comments of several comparisons in one request apart.",
)
