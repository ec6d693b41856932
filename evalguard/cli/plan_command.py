"""``evalguard plan``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from evalguard.cli.click_options import (
    PATH,
    Command,
    add_options,
    list_ignored_options,
    model_option,
    option_factory,
    read_compare_options,
)
from evalguard.cli.option_groups import BASE, MODELS, SCORING, SHOWING, TASKS, take
from evalguard.cli.output import CommandResult, Job, show_result
from evalguard.cli.value_types import FiniteRange
from evalguard.errors import UsageError

_COUNT_FOR_A_RUN = frozenset(
    {"run", "tasks", "limit", "margin", "confidence", "power", "as_json", "quiet", "verbose"}
)
_plan_option = option_factory("Plan")
_PLANNING = (
    _plan_option(
        "--pilot",
        type=click.IntRange(min=2),
        default=64,
        show_default=True,
        metavar="N",
        help="Documents of each task to score now, sampled at random (--seed).",
    ),
    _plan_option(
        "--power",
        type=FiniteRange(0.5, 1, max_open=True),
        default=0.8,
        show_default=True,
        metavar="P",
        help="Probability of detecting a drift that is real.",
    ),
    _plan_option(
        "--run",
        type=PATH,
        metavar="FOLDER",
        help="Instead of two models: plan from a finished run folder; nothing is scored.",
    ),
)
_FIRST_OF_PLAN = (
    "base",
    "cand",
    "run",
    "tasks",
    "limit",
    "config",
    "cand_set",
    "pilot",
    "power",
    "margin",
    "confidence",
    "device",
    "as_json",
)


@click.command(
    "plan",
    cls=Command,
    moves=True,
    first=_FIRST_OF_PLAN,
)
@BASE
@model_option("--cand", "--candidate", metavar="MODEL", help="Candidate, in the same forms.")
@add_options(
    *_PLANNING,
    *MODELS,
    *TASKS,
    *SCORING,
    *take("margin", "confidence", "gate_limits"),
    *SHOWING,
)
@click.pass_context
def plan_command(
    context: click.Context,
    /,
    base: str | None,
    cand: str | None,
    run: Path | None,
    as_json: bool,
    **given: Any,
) -> Job:
    """Tell what a comparison would show, and what it would cost, before anything long runs.

    Both models score a few documents of each task. From their scatter come, for every metric, the
    smallest drift that all documents would show, and the documents that would be enough for the
    margin; from their pace the time and the tokens. --limit and --margin are those of the run that
    is planned. Nothing is judged: the exit code is 0, or 3 where a metric gave no scores.
    """
    if run is not None:
        _refuse_without_effect(context)
        return partial(_from_run, run, as_json=as_json, command=context.obj, **given)
    if base is None or cand is None:
        name = "--base" if base is None else "--cand"
        raise UsageError(
            f"missing option '{name}'", hint="name both models, or a finished run with --run"
        )
    return partial(_plan, base, cand, as_json=as_json, command=context.obj, **given)


def _refuse_without_effect(context: click.Context) -> None:
    given = list_ignored_options(context, _COUNT_FOR_A_RUN)
    if given:
        raise UsageError(
            f"with --run nothing is loaded or scored, so {', '.join(given)} would have no effect",
            hint="leave it out, or name both models with --base and --cand instead of --run",
        )


def _plan(base: str, cand: str, *, as_json: bool, verbose: bool, **given: Any) -> CommandResult:
    from evalguard.planning.plan_run import plan

    planned = plan(base, cand, **read_compare_options(given))
    return show_result(planned, as_json=as_json, verbose=verbose)


def _from_run(
    run: Path, *, as_json: bool, verbose: bool, pilot: int, **given: Any
) -> CommandResult:
    from evalguard.planning.plan_run import plan_from_run

    del pilot  # a stored run is its own pilot
    planned = plan_from_run(run, **read_compare_options(given))
    return show_result(planned, as_json=as_json, verbose=verbose)
