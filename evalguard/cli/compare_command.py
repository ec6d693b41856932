"""``evalguard compare`` and ``evalguard demo``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import click

from evalguard.cli.click_options import Command, add_options, model_option, read_compare_options
from evalguard.cli.option_groups import BASE, COMPARE, EPILOG, OUTPUT, RUNNING, take
from evalguard.cli.output import CommandResult, Job, check_stdout_formats, comparison_result
from evalguard.errors import UsageError

_FIRST_OF_COMPARE = (
    "base",
    "cand",
    "tasks",
    "requests",
    "limit",
    "config",
    "cand_set",
    "margin",
    "fail_on",
    "strict",
    "bisect",
    "device",
    "output",
    "as_json",
)


@click.command("compare", cls=Command, moves=True, first=_FIRST_OF_COMPARE, epilog=EPILOG)
@BASE
@model_option(
    "--cand",
    "--candidate",
    required=True,
    multiple=True,
    metavar="MODEL",
    help="Candidate, in the same forms. Repeatable: each is compared with the base.",
)
@model_option(
    "--chain",
    is_flag=True,
    help="Each candidate was made from the one before it: split the drift over the steps.",
)
@add_options(*COMPARE)
@click.pass_context
def compare_command(
    context: click.Context,
    /,
    base: str | None,
    cand: tuple[str, ...],
    chain: bool,
    **given: Any,
) -> Job:
    """Compare a candidate with its base on the same documents.

    The drift is in standard errors of the base (sigma), its interval from paired differences.
    Where the gate fails, the culprits among the settings that the candidate declares are named.
    """
    if base is None:
        raise UsageError("--base is missing", hint="--base MODEL|RUN|HISTORY")
    if chain and len(cand) == 1:
        raise UsageError(
            "--chain needs two candidates or more, got 1", hint="--cand PORT --cand PORT-QUANTISED"
        )
    if len(cand) > 1:
        return partial(_compare_several, base, cand, chain=chain, command=context.obj, **given)
    return partial(_compare, base, *cand, command=context.obj, **given)


_FIRST_OF_DEMO = (
    "cand_set",
    "bisect",
    "sequential",
    "device",
    "output_path",
    "output",
    "as_json",
    "quiet",
)


@click.command(
    "demo",
    cls=Command,
    first=_FIRST_OF_DEMO,
)
@add_options(*take("cand_set"), *RUNNING, *take("bisect", "track"), *OUTPUT)
@click.pass_obj
def demo_command(command: str, /, as_json: bool, **given: Any) -> Job:
    """Compare the built-in model with a port of it that went wrong (exit code 1)."""
    return partial(_demo, as_json=as_json, command=command, **given)


def _demo(*, as_json: bool, **given: Any) -> CommandResult:
    from evalguard.comparison.listing import find_demo_guard

    return _compare("orig", "fla-port", as_json=as_json, config=find_demo_guard(), **given)


def _compare(base: str, cand: str, *, as_json: bool, **given: Any) -> CommandResult:
    from evalguard.comparison.compare import compare

    check_stdout_formats(given["output"], given["output_format"], as_json=as_json)
    options = read_compare_options({name: given[name] for name in given.keys() - {"verbose"}})
    result = compare(base, cand, **options)
    return comparison_result(result, given, as_json=as_json)


def _compare_several(
    base: str, cand: Sequence[str], *, chain: bool, as_json: bool, **given: Any
) -> CommandResult:
    from evalguard.several.several_run import compare_several

    check_stdout_formats(given["output"], given["output_format"], as_json=as_json)
    options = read_compare_options({name: given[name] for name in given.keys() - {"verbose"}})
    result = compare_several(base, cand, chain=chain, **options)
    return comparison_result(result, given, as_json=as_json)
