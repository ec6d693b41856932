"""Options of a bisection, for ``evalguard compare`` and ``evalguard bisect``."""

from __future__ import annotations

import click

BISECT = (
    click.option(
        "--bisect",
        type=click.Choice(["auto", "always", "never"]),
        help="Look for the guilty settings. Default auto: where the gate fails and the "
        "candidate declares settings.",
    ),
    click.option(
        "--bisect-budget",
        type=click.FloatRange(min=0),
        metavar="FE",
        help="Full evaluations that may be spent on it. Default: no limit.",
    ),
    click.option(
        "--bisect-thorough/--no-bisect-thorough",
        default=None,
        help="Be surer of small effects, and spend more.",
    ),
    click.option(
        "--bisect-jobs",
        type=click.IntRange(min=1),
        metavar="N",
        help="Models asked at the same time. Default 1.",
    ),
)
SEARCH = (
    click.option(
        "--budget",
        "bisect_budget",
        type=click.FloatRange(min=0),
        metavar="FE",
        help="Full evaluations that may be spent. Default: no limit.",
    ),
    click.option(
        "--thorough/--no-thorough",
        "bisect_thorough",
        default=None,
        help="Be surer of small effects, and spend more.",
    ),
    click.option(
        "--jobs",
        "bisect_jobs",
        type=click.IntRange(min=1),
        metavar="N",
        help="Models asked at the same time. Default 1.",
    ),
)
