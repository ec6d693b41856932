"""``evalguard compare`` and ``evalguard demo``."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from evalguard.cli.options import (
    CANDIDATE_SETTINGS,
    EPILOG,
    GATE,
    MODELS,
    OUTPUT,
    RUNNING,
    TASKS,
    together,
)
from evalguard.cli.output import Answer, Job, terminal_width, wants_color

if TYPE_CHECKING:
    from evalguard.pipeline.result import CompareResult


@click.command("compare", epilog=EPILOG)
@click.option(
    "--base",
    required=True,
    metavar="MODEL",
    help="Name in the guard file, path, hub id, or lm-eval run.",
)
@click.option(
    "--cand", "--candidate", required=True, metavar="MODEL", help="The same for the candidate."
)
@together(*MODELS, *TASKS, *RUNNING, *GATE, *OUTPUT)
@click.pass_obj
def compare_command(command: str, /, base: str, cand: str, as_json: bool, **given: Any) -> Job:
    """Compare a candidate with its base on the same documents.

    The drift is given in standard errors of the base (sigma); how sure it is comes from the
    paired difference. Both sides answer the same requests in the same batches.
    """
    return partial(_compare, base, cand, as_json=as_json, command=command, **given)


@click.command("demo", short_help="Compare the built-in model with a port of it.")
@together(CANDIDATE_SETTINGS, *RUNNING, *OUTPUT)
@click.pass_obj
def demo_command(command: str, /, as_json: bool, **given: Any) -> Job:
    """Compare the built-in model with a port of it that went wrong (exit code 1)."""
    return partial(_demo, as_json=as_json, command=command, **given)


def _demo(*, as_json: bool, **given: Any) -> Answer:
    from evalguard.pipeline.demo import demo_config

    return _compare("orig", "fla-port", as_json=as_json, config=demo_config(), **given)


def _compare(base: str, cand: str, *, as_json: bool, **given: Any) -> Answer:
    from evalguard.pipeline.compare import compare

    result = compare(base, cand, **compare_options(given))
    return Answer(result.to_json if as_json else partial(_rendered, result), result.exit_code)


def compare_options(given: dict[str, Any]) -> dict[str, Any]:
    """Turn click's values into fields of CompareOptions."""
    from evalguard.pipeline.arguments import parse_arguments

    options = dict(given)
    for name in ("base_model_args", "cand_model_args", "gen_kwargs"):
        if name in options:
            options[name] = parse_arguments(options[name], where=f"--{name.replace('_', '-')}")
    for name in ("base_set", "cand_set"):
        if name in options:
            options[name] = dict(options[name])
    if "tasks" in options:
        options["tasks"] = tuple(t for t in (p.strip() for p in options["tasks"].split(",")) if t)
    if "allow_differing" in options:
        options["allow_differing"] = frozenset(options["allow_differing"])
    options["use_cache"] = not options.pop("no_cache", False)
    return options


def _rendered(result: CompareResult) -> str:
    return result.render(width=terminal_width(), color=wants_color(sys.stdout))
