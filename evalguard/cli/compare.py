"""``evalguard compare``, ``demo`` and ``bisect``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from evalguard.cli.options import (
    BASE,
    CANDIDATE_SETTINGS,
    EPILOG,
    FLOOR_FILE,
    GATE,
    HISTORY,
    MODELS,
    OUTPUT,
    RUNNING,
    TASKS,
    TRACKING,
)
from evalguard.cli.output import CommandResult, Job
from evalguard.cli.parameters import (
    PATH,
    Command,
    add_options,
    bisect_option,
    list_ignored_options,
    model_option,
    read_compare_options,
)
from evalguard.cli.report import check_stdout_formats, render_for_stdout
from evalguard.errors import UsageError

if TYPE_CHECKING:
    from evalguard.run.result import CompareResult


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
        type=click.FloatRange(min=0),
        metavar="EVALUATIONS",
        help=_BUDGET_HELP,
    ),
    bisect_option("--thorough/--no-thorough", "bisect_thorough", default=None, help=_THOROUGH_HELP),
    bisect_option(
        "--jobs", "bisect_jobs", type=click.IntRange(min=1), metavar="N", help=_JOBS_HELP
    ),
    bisect_option("--over", "bisect_over", type=_OVER, metavar="WHAT", help=_OVER_HELP),
)


# ``evalguard compare`` and ``evalguard demo``.


_FIRST_OF_COMPARE = (
    "base",
    "cand",
    "tasks",
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
@add_options(*MODELS, *TASKS, *RUNNING, *GATE, BISECT, FLOOR_FILE, HISTORY, TRACKING, *OUTPUT)
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
    short_help="Compare the built-in model with a port of it.",
)
@add_options(CANDIDATE_SETTINGS, *RUNNING, BISECT, TRACKING, *OUTPUT)
@click.pass_obj
def demo_command(command: str, /, as_json: bool, **given: Any) -> Job:
    """Compare the built-in model with a port of it that went wrong (exit code 1)."""
    return partial(_demo, as_json=as_json, command=command, **given)


def _demo(*, as_json: bool, **given: Any) -> CommandResult:
    from evalguard.run.demo import find_demo_guard

    return _compare("orig", "fla-port", as_json=as_json, config=find_demo_guard(), **given)


def _compare(base: str, cand: str, *, as_json: bool, **given: Any) -> CommandResult:
    from evalguard.run.compare import compare

    check_stdout_formats(given["output"], given["output_format"], as_json=as_json)
    options = read_compare_options({name: given[name] for name in given.keys() - {"verbose"}})
    result = compare(base, cand, **options)
    return comparison_result(result, given, as_json=as_json)


def _compare_several(
    base: str, cand: Sequence[str], *, chain: bool, as_json: bool, **given: Any
) -> CommandResult:
    from evalguard.run.several import compare_several

    check_stdout_formats(given["output"], given["output_format"], as_json=as_json)
    of_stdout = None if given["output"] else given["output_format"]
    options = read_compare_options({name: given[name] for name in given.keys() - {"verbose"}})
    result = compare_several(base, cand, chain=chain, **options)
    return CommandResult(
        partial(render_for_stdout, result, of_stdout, as_json=as_json, verbose=given["verbose"]),
        result.exit_code,
        result.problems,
    )


def comparison_result(
    result: CompareResult, given: Mapping[str, Any], *, as_json: bool
) -> CommandResult:
    """The result of a comparison on stdout, its problems, and its exit code."""
    of_stdout = None if given["output"] else given["output_format"]
    return CommandResult(
        partial(render_for_stdout, result, of_stdout, as_json=as_json, verbose=given["verbose"]),
        result.exit_code,
        result.problems,
    )


# ``evalguard bisect``.


_COUNT_FOR_RESUME = frozenset(
    {
        "resume",
        "bisect_budget",
        "bisect_thorough",
        "bisect_jobs",
        "output",
        "output_format",
        "quiet",
        "verbose",
        "as_json",
    }
)


_FIRST_OF_BISECT = (
    "base",
    "cand",
    "tasks",
    "limit",
    "config",
    "cand_set",
    "margin",
    "bisect_over",
    "bisect_budget",
    "bisect_thorough",
    "bisect_jobs",
    "resume",
    "device",
    "output",
    "as_json",
)


@click.command(
    "bisect",
    cls=Command,
    moves=True,
    first=_FIRST_OF_BISECT,
    epilog=EPILOG,
    short_help="Name the settings that make a candidate drift.",
)
@BASE
@model_option("--cand", "--candidate", metavar="MODEL", help="Candidate, in the same forms.")
@bisect_option(
    "--resume",
    type=PATH,
    metavar="RUN",
    help="Continue a bisection that was stopped; RUN is its run folder.",
)
@add_options(*SEARCH, *MODELS, *TASKS, *RUNNING, *GATE, FLOOR_FILE, HISTORY, TRACKING, *OUTPUT)
@click.pass_context
def bisect_command(
    context: click.Context,
    /,
    base: str | None,
    cand: str | None,
    resume: Path | None,
    **given: Any,
) -> Job:
    """Compare a candidate with its base, and name the settings that make it drift.

    These are settings that the candidate declares in a guard file, else differences of the two
    models, or (--over) its layers. A setting is named once all documents prove it. Ctrl-C keeps
    what was found.
    """
    if resume is not None:
        unused = list_ignored_options(context, _COUNT_FOR_RESUME)
        if unused:
            raise UsageError(
                f"--resume goes on with the models and options of then, not with "
                f"{', '.join(unused)}",
                hint="leave it out; --budget, --thorough and --jobs may be others",
            )
        return partial(
            _resume, resume, **{name: given[name] for name in _COUNT_FOR_RESUME - {"resume"}}
        )
    if cand is None or base is None:
        raise UsageError(
            f"{'--cand' if cand is None else '--base'} is missing",
            hint="evalguard bisect --base A --cand B, or --resume RUN",
        )
    return partial(_bisect, base, cand, command=context.obj, **given)


def _bisect(base: str, cand: str, *, as_json: bool, **given: Any) -> CommandResult:
    from evalguard.run.bisection.command import bisect_settings

    check_stdout_formats(given["output"], given["output_format"], as_json=as_json)
    options = read_compare_options({name: given[name] for name in given.keys() - {"verbose"}})
    result = bisect_settings(base, cand, **options)
    return comparison_result(result, given, as_json=as_json)


def _resume(run: Path, *, as_json: bool, **given: Any) -> CommandResult:
    from evalguard.run.bisection.command import resume_bisection

    check_stdout_formats(given["output"], given["output_format"], as_json=as_json)
    named = {name: given[name] for name in given.keys() - {"verbose"}}
    changed = {name: value for name, value in named.items() if value not in (None, ())}
    return comparison_result(resume_bisection(run, **changed), given, as_json=as_json)
