"""``evalguard compare`` and ``evalguard demo``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from evalguard.cli.bisect_options import BISECT
from evalguard.cli.floor import floor_answer
from evalguard.cli.given import compare_options, typed_without_effect
from evalguard.cli.help import Command, model_option, together
from evalguard.cli.history_options import HISTORY
from evalguard.cli.options import (
    BASE,
    CANDIDATE_SETTINGS,
    EPILOG,
    FLOOR,
    GATE,
    MODELS,
    OUTPUT,
    RUNNING,
)
from evalguard.cli.output import Answer, Job
from evalguard.cli.report import check_stdout, shown
from evalguard.cli.task_options import TASKS
from evalguard.cli.tracking_options import TRACKING
from evalguard.cli.values import PATH
from evalguard.errors import UsageError

if TYPE_CHECKING:
    from evalguard.pipeline.result import CompareResult

_WITHOUT_EFFECT_ON_AA = frozenset(
    {
        "fail_on",
        "gate_limits",
        "sequential",
        "sequential_alpha",
        "strict",
        "git_bisect",
        "check_batch_size",
        "verify_scorer",
        "floor",
        "baseline",
        "bisect",
        "bisect_budget",
        "bisect_thorough",
        "bisect_jobs",
        "output_path",
        "output",
        "output_format",
        "history",
        "no_history",
        "track",
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
    "fail_on",
    "strict",
    "bisect",
    "device",
    "output",
    "as_json",
)


@click.command("compare", cls=Command, first=_FIRST, epilog=EPILOG)
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
@model_option(
    "--baseline",
    type=PATH,
    metavar="RUN|HISTORY",
    help="Instead of --base: a run folder or a history that has its scores.",
)
@together(*MODELS, *TASKS, *RUNNING, *GATE, *BISECT, *FLOOR, *HISTORY, *TRACKING, *OUTPUT)
@click.pass_context
def compare_command(
    context: click.Context,
    /,
    base: str | None,
    cand: tuple[str, ...],
    chain: bool,
    aa: bool,
    vary: tuple[str, ...],
    **given: Any,
) -> Job:
    """Compare a candidate with its base on the same documents.

    The drift is in standard errors of the base (sigma), its interval from paired differences.
    Where the gate fails, the culprits among the settings that the candidate declares are named.
    """
    if base is None and (aa or given["baseline"] is None):
        raise UsageError("--base is missing", hint="--base MODEL, or --baseline RUN|HISTORY")
    base = base or ""
    if chain and len(cand) == 1:
        raise UsageError(
            "--chain needs two candidates or more, got 1", hint="--cand PORT --cand PORT-QUANTISED"
        )
    if not aa:
        if vary:
            raise UsageError("--vary has no effect without --aa", hint="add --aa, or leave it out")
        if len(cand) > 1:
            return partial(_compare_several, base, cand, chain=chain, command=context.obj, **given)
        return partial(_compare, base, *cand, command=context.obj, **given)
    if len(cand) > 1:
        raise UsageError(
            f"--aa measures one candidate, got {len(cand)}", hint="measure them one by one"
        )
    unused = typed_without_effect(context, context.params.keys() - _WITHOUT_EFFECT_ON_AA)
    if unused:
        raise UsageError(
            f"with --aa nothing is judged, so {', '.join(unused)} would have no effect",
            hint="leave it out",
        )
    counting = {name: given[name] for name in given.keys() - _WITHOUT_EFFECT_ON_AA}
    return partial(floor_answer, base, *cand, vary=vary, command=context.obj, **counting)


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
@together(CANDIDATE_SETTINGS, *RUNNING, *BISECT, *TRACKING, *OUTPUT)
@click.pass_obj
def demo_command(command: str, /, as_json: bool, **given: Any) -> Job:
    """Compare the built-in model with a port of it that went wrong (exit code 1)."""
    return partial(_demo, as_json=as_json, command=command, **given)


def _demo(*, as_json: bool, **given: Any) -> Answer:
    from evalguard.pipeline.demo import demo_config

    return _compare("orig", "fla-port", as_json=as_json, config=demo_config(), **given)


def _compare(base: str, cand: str, *, as_json: bool, **given: Any) -> Answer:
    from evalguard.pipeline.compare import compare

    check_stdout(given["output"], given["output_format"], as_json=as_json)
    options = compare_options({name: given[name] for name in given.keys() - {"verbose"}})
    result = compare(base, cand, **options)
    return compared_answer(result, given, as_json=as_json)


def _compare_several(
    base: str, cand: Sequence[str], *, chain: bool, as_json: bool, **given: Any
) -> Answer:
    from evalguard.pipeline.several import compare_several

    check_stdout(given["output"], given["output_format"], as_json=as_json)
    of_stdout = None if given["output"] else given["output_format"]
    options = compare_options({name: given[name] for name in given.keys() - {"verbose"}})
    result = compare_several(base, cand, chain=chain, **options)
    return Answer(
        partial(shown, result, of_stdout, as_json=as_json, verbose=given["verbose"]),
        result.exit_code,
        result.problems,
    )


def compared_answer(result: CompareResult, given: Mapping[str, Any], *, as_json: bool) -> Answer:
    """The result of a comparison on stdout, its problems, and its exit code."""
    of_stdout = None if given["output"] else given["output_format"]
    return Answer(
        partial(shown, result, of_stdout, as_json=as_json, verbose=given["verbose"]),
        result.exit_code,
        result.problems,
    )
