"""``evalguard bisect``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from evalguard.cli.click_options import (
    PATH,
    Command,
    add_options,
    bisect_option,
    list_ignored_options,
    model_option,
    read_compare_options,
)
from evalguard.cli.option_groups import BASE, BISECT, EPILOG
from evalguard.cli.output import CommandResult, Job, check_stdout_formats, comparison_result
from evalguard.errors import UsageError

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
)
@BASE
@model_option("--cand", "--candidate", metavar="MODEL", help="Candidate, in the same forms.")
@bisect_option(
    "--resume",
    type=PATH,
    metavar="RUN",
    help="Continue a bisection that was stopped; RUN is its run folder.",
)
@add_options(*BISECT)
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
    from evalguard.bisect.command import bisect_settings

    check_stdout_formats(given["output"], given["output_format"], as_json=as_json)
    options = read_compare_options({name: given[name] for name in given.keys() - {"verbose"}})
    result = bisect_settings(base, cand, **options)
    return comparison_result(result, given, as_json=as_json)


def _resume(run: Path, *, as_json: bool, **given: Any) -> CommandResult:
    from evalguard.bisect.command import resume_bisection

    check_stdout_formats(given["output"], given["output_format"], as_json=as_json)
    named = {name: given[name] for name in given.keys() - {"verbose"}}
    changed = {name: value for name, value in named.items() if value not in (None, ())}
    return comparison_result(resume_bisection(run, **changed), given, as_json=as_json)
