"""Options of how the two models' distributions are compared."""

from __future__ import annotations

import click

from evalguard.cli.help import distribution_option, speed_option
from evalguard.cli.values import PATH

DISTRIBUTIONS = (
    distribution_option(
        "--distributions",
        type=click.Choice(["auto", "lockstep", "reference", "off"]),
        help="Compare the models' token distributions: with both models loaded (lockstep), or one "
        "after the other (reference). Default auto: lockstep where both fit.",
    ),
    distribution_option(
        "--reference-top-k",
        type=click.IntRange(min=1),
        metavar="N",
        help="Most likely tokens of the base that a reference stores per position. Default 64.",
    ),
)
MEMORY = speed_option(
    "--memory",
    type=click.Choice(["auto", "lockstep", "sequential"]),
    help="Load both models (lockstep), or one after the other (sequential). Default auto: both "
    "where they fit.",
)
REFERENCE_FILE = distribution_option(
    "--reference",
    type=PATH,
    metavar="FILE",
    help="The base's answers and distributions: read where FILE exists, else written to it.",
)
