"""Options of how the two models' distributions are compared."""

from __future__ import annotations

import click

from evalguard.cli.values import PATH

DISTRIBUTIONS = (
    click.option(
        "--distributions",
        type=click.Choice(["auto", "lockstep", "reference", "off"]),
        help="Compare the models' distributions, both loaded (lockstep) or one after the other "
        "(reference). Default auto: lockstep where it is possible.",
    ),
    click.option(
        "--reference-top-k",
        type=click.IntRange(min=1),
        metavar="K",
        help="Tokens of the base that a reference keeps. Default 64.",
    ),
)
MEMORY = click.option(
    "--memory",
    type=click.Choice(["auto", "lockstep", "sequential"]),
    help="Load both models (lockstep) or one after the other (sequential). Default auto: both "
    "where they fit.",
)
REFERENCE_FILE = click.option(
    "--reference",
    type=PATH,
    metavar="FILE",
    help="The base's answers and distributions: read if FILE is there, else written.",
)
