"""The options of a bisection, of whichever command runs it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from evalguard.cli.parameters import bisect_option
from evalguard.cli.value_types import FiniteRange

if TYPE_CHECKING:
    pass


_BUDGET_HELP = "Most full evaluations that the search may spend. Default: no limit."
_THOROUGH_HELP = "Also prove small effects; costs more evaluations."
_JOBS_HELP = "Models that are evaluated at the same time. Default 1."
_OVER_HELP = "What to search: settings, layers or modules."
_OVER = click.Choice(["settings", "layers", "modules"])

BISECT = bisect_option(
    "--bisect",
    type=click.Choice(["auto", "always", "never"]),
    help="Search the settings for culprits. Default auto: if the gate fails and the candidate "
    "declares settings.",
)
SEARCH = (
    bisect_option(
        "--budget",
        "bisect_budget",
        type=FiniteRange(min=0),
        metavar="EVALUATIONS",
        help=_BUDGET_HELP,
    ),
    bisect_option("--thorough/--no-thorough", "bisect_thorough", default=None, help=_THOROUGH_HELP),
    bisect_option(
        "--jobs", "bisect_jobs", type=click.IntRange(min=1), metavar="N", help=_JOBS_HELP
    ),
    bisect_option("--over", "bisect_over", type=_OVER, metavar="WHAT", help=_OVER_HELP),
)
