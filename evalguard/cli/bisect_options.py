"""Options of a bisection, for ``evalguard compare`` and ``evalguard bisect``."""

from __future__ import annotations

import click

from evalguard.cli.help import bisect_option

_BUDGET = "Most full evaluations that the search may spend. Default: no limit."
_THOROUGH = "Also prove small effects; costs more evaluations."
_JOBS = "Models that are evaluated at the same time. Default 1."

BISECT = (
    bisect_option(
        "--bisect",
        type=click.Choice(["auto", "always", "never"]),
        help="Search the settings for culprits. Default auto: if the gate fails and the candidate "
        "declares settings.",
    ),
    bisect_option(
        "--bisect-budget", type=click.FloatRange(min=0), metavar="EVALUATIONS", help=_BUDGET
    ),
    bisect_option("--bisect-thorough/--no-bisect-thorough", default=None, help=_THOROUGH),
    bisect_option("--bisect-jobs", type=click.IntRange(min=1), metavar="N", help=_JOBS),
)
SEARCH = (
    bisect_option(
        "--budget",
        "bisect_budget",
        type=click.FloatRange(min=0),
        metavar="EVALUATIONS",
        help=_BUDGET,
    ),
    bisect_option("--thorough/--no-thorough", "bisect_thorough", default=None, help=_THOROUGH),
    bisect_option("--jobs", "bisect_jobs", type=click.IntRange(min=1), metavar="N", help=_JOBS),
)
