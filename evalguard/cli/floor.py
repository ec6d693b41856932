"""``evalguard floor``."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from evalguard.cli.distribution_options import DISTRIBUTIONS
from evalguard.cli.given import compare_options
from evalguard.cli.help import Command, model_option, together
from evalguard.cli.options import (
    CONFIDENCE,
    MARGIN,
    NO_CACHE,
    ONE_MODEL,
    SCORING,
    SHOWING,
    VARY,
)
from evalguard.cli.output import Answer, Job, terminal_width, wants_color
from evalguard.cli.task_options import TASKS

if TYPE_CHECKING:
    from evalguard.pipeline.floor_result import FloorResult


_FIRST = (
    "base",
    "vary",
    "tasks",
    "limit",
    "config",
    "base_set",
    "margin",
    "confidence",
    "batch_size",
    "device",
    "no_cache",
    "as_json",
)


@click.command(
    "floor",
    cls=Command,
    first=_FIRST,
    short_help="Measure what an unchanged model shows: the noise floor.",
)
@model_option(
    "--base",
    required=True,
    metavar="MODEL",
    help="Model: a name in the guard file, a folder or a hub id.",
)
@together(
    VARY, *ONE_MODEL, *TASKS, *SCORING, *DISTRIBUTIONS, NO_CACHE, MARGIN, CONFIDENCE, *SHOWING
)
@click.pass_obj
def floor_command(command: str, /, base: str, as_json: bool, **given: Any) -> Job:
    """Measure what one unchanged model shows when what should not matter is varied.

    The model is scored as usual, then under another batch size, thread count, device, attention
    implementation and softmax dtype, and once more the same way; each is paired with the usual
    run. Comparisons with this base in this environment then say how far above that floor a drift
    is. Nothing is judged: the exit code is 0, or 3 where a metric has no floor.
    """
    return partial(floor_answer, base, None, as_json=as_json, command=command, **given)


def floor_answer(base: str, cand: str | None, *, as_json: bool, **given: Any) -> Answer:
    """Measure the floor of a model; ``cand`` names it a second time (``compare --aa``)."""
    from evalguard.pipeline.floor import floor, floor_of_pair

    vary, verbose = given.pop("vary", ()), given.pop("verbose")
    options = compare_options(given)
    if vary:
        options["vary"] = tuple(name.replace("-", "_") for name in vary)
    result = floor(base, **options) if cand is None else floor_of_pair(base, cand, **options)
    return Answer(
        result.to_json if as_json else partial(_rendered, result, verbose), result.exit_code
    )


def _rendered(result: FloorResult, verbose: bool) -> str:
    width, color = terminal_width(), wants_color(sys.stdout)
    return result.render(width=width, color=color, verbose=verbose)
