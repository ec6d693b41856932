"""``evalguard bisect``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from evalguard.cli.bisect_options import SEARCH
from evalguard.cli.compare import compared_answer
from evalguard.cli.given import compare_options, typed_without_effect
from evalguard.cli.help import Command, bisect_option, model_option, together
from evalguard.cli.history_options import HISTORY
from evalguard.cli.options import BASE, EPILOG, FLOOR_FILE, GATE, MODELS, OUTPUT, RUNNING
from evalguard.cli.output import Answer, Job
from evalguard.cli.report import check_stdout
from evalguard.cli.task_options import TASKS
from evalguard.cli.tracking_options import TRACKING
from evalguard.cli.values import PATH
from evalguard.errors import UsageError

_GOING_ON = frozenset(
    {
        "resume",
        "bisect_budget",
        "bisect_thorough",
        "bisect_jobs",
        "timeout",
        "output",
        "output_format",
        "quiet",
        "verbose",
        "as_json",
    }
)


_FIRST = (
    "base",
    "cand",
    "tasks",
    "limit",
    "config",
    "cand_set",
    "margin",
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
    first=_FIRST,
    epilog=EPILOG,
    short_help="Name the settings that make a candidate drift.",
)
@BASE
@model_option("--cand", "--candidate", metavar="MODEL", help="Candidate, in the same forms.")
@model_option(
    "--baseline",
    type=PATH,
    metavar="RUN|HISTORY",
    help="Instead of --base: a run folder or a history that has its scores. Then only settings "
    "that the candidate declares can be searched.",
)
@bisect_option(
    "--resume",
    type=PATH,
    metavar="RUN",
    help="Continue a bisection that was stopped; RUN is its run folder.",
)
@together(*SEARCH, *MODELS, *TASKS, *RUNNING, *GATE, FLOOR_FILE, *HISTORY, *TRACKING, *OUTPUT)
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
    models. A setting is named once all documents prove it. Ctrl-C keeps what was found.
    """
    if resume is not None:
        unused = typed_without_effect(context, _GOING_ON)
        if unused:
            raise UsageError(
                f"--resume goes on with the models and options of then, not with "
                f"{', '.join(unused)}",
                hint="leave it out; --budget, --thorough, --jobs and --timeout may be others",
            )
        return partial(_resume, resume, **{name: given[name] for name in _GOING_ON - {"resume"}})
    if cand is None or (base is None and given["baseline"] is None):
        raise UsageError(
            f"{'--cand' if cand is None else '--base'} is missing",
            hint="evalguard bisect --base A --cand B, --baseline RUN|HISTORY --cand B, or "
            "--resume RUN",
        )
    return partial(_bisect, base or "", cand, command=context.obj, **given)


def _bisect(base: str, cand: str, *, as_json: bool, **given: Any) -> Answer:
    from evalguard.pipeline.bisection.bisect import bisect_settings

    check_stdout(given["output"], given["output_format"], as_json=as_json)
    options = compare_options({name: given[name] for name in given.keys() - {"verbose"}})
    result = bisect_settings(base, cand, **options)
    return compared_answer(result, given, as_json=as_json)


def _resume(run: Path, *, as_json: bool, **given: Any) -> Answer:
    from evalguard.pipeline.bisection.bisect import resume_bisection

    check_stdout(given["output"], given["output_format"], as_json=as_json)
    named = {name: given[name] for name in given.keys() - {"verbose"}}
    changed = {name: value for name, value in named.items() if value not in (None, ())}
    return compared_answer(resume_bisection(run, **changed), given, as_json=as_json)
