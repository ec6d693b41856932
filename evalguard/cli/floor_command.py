"""``evalguard floor``."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from evalguard.cli.click_options import (
    Command,
    add_options,
    floor_option,
    model_option,
    read_compare_options,
)
from evalguard.cli.option_groups import (
    ONE_MODEL,
    SCORING,
    SHOWING,
    TASKS,
    UNCHANGED_SINCE,
    take,
)
from evalguard.cli.output import CommandResult, Job, show_result
from evalguard.core.noise_floor import FACTORS

_VARIED = [factor.replace("_", "-") for factor in FACTORS]
_VARY = floor_option(
    "--vary",
    type=click.Choice(_VARIED),
    multiple=True,
    metavar="WHAT",
    help=f"What to vary while the model stays the same: {', '.join(_VARIED[:-1])} or "
    f"{_VARIED[-1]}. Repeatable. Default: all.",
)
_FIRST_OF_FLOOR = (
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
    "use_cache",
    "as_json",
)


@click.command(
    "floor",
    cls=Command,
    moves=True,
    first=_FIRST_OF_FLOOR,
)
@model_option(
    "--base",
    required=True,
    metavar="MODEL",
    help="Model: a name in the guard file, a folder or a hub id.",
)
@add_options(
    _VARY,
    *ONE_MODEL,
    *TASKS,
    *SCORING,
    *take("execution", "distributions", "use_cache"),
    UNCHANGED_SINCE,
    *take("margin", "confidence"),
    *SHOWING,
)
@click.pass_obj
def floor_command(command: str, /, base: str, as_json: bool, **given: Any) -> Job:
    """Measure what one unchanged model shows when what should not matter is varied.

    The model is scored as usual, then under another batch size, thread count, device, attention
    implementation and softmax dtype, and once more the same way; each is paired with the usual
    run. Comparisons with this base in this environment then say how far above that floor a drift
    is. Nothing is judged: the exit code is 0, or 3 where a metric has no floor.
    """
    return partial(_floor, base, as_json=as_json, command=command, **given)


def _floor(base: str, *, as_json: bool, **given: Any) -> CommandResult:
    from evalguard.floors.floor_run import floor

    vary, verbose = given.pop("vary", ()), given.pop("verbose")
    options = read_compare_options(given)
    if vary:
        options["vary"] = tuple(name.replace("-", "_") for name in vary)
    result = floor(base, **options)
    return show_result(result, as_json=as_json, verbose=verbose)
