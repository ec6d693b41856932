"""``evalguard compare`` and ``evalguard demo``."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from evalguard.cli.values import BatchSize, Limit, Pairs

if TYPE_CHECKING:
    from evalguard.pipeline.result import CompareResult

Decorated = TypeVar("Decorated", bound=Callable[..., Any])
_PATH = click.Path(path_type=Path)
_MODEL_ARGS = "a=b,c=d or JSON"

_MODELS = (
    click.option(
        "--config", type=_PATH, help="Guard file. Default: ./evalguard.yaml, ./configs/*."
    ),
    click.option(
        "--model", default="hf", show_default=True, help="lm-eval model type of a path or hub id."
    ),
    click.option(
        "--base-model-args",
        "base_model_args",
        default="",
        metavar=_MODEL_ARGS,
        help="Added to the base's.",
    ),
    click.option(
        "--cand-model-args",
        "cand_model_args",
        default="",
        metavar=_MODEL_ARGS,
        help="Added to the candidate's.",
    ),
    click.option(
        "--set",
        "cand_set",
        type=Pairs(),
        multiple=True,
        help="Value of a candidate's setting: reference, candidate or another. Repeatable.",
    ),
    click.option("--base-set", type=Pairs(), multiple=True, help="The same for the base."),
    click.option("--trust-remote-code", is_flag=True, help="Run code that comes with a model."),
    click.option(
        "--allow-code",
        is_flag=True,
        help="Run code of a guard file that was not named with --config.",
    ),
)
_TASKS = (
    click.option("--tasks", default="", metavar="A,B", help="lm-eval tasks, tags or groups."),
    click.option(
        "--include-path",
        type=_PATH,
        multiple=True,
        help="Folder with further task files. Repeatable.",
    ),
    click.option(
        "--limit", type=Limit(), help="First N documents of each task, or a share below 1."
    ),
    click.option("--num-fewshot", type=click.IntRange(min=0), help="Examples in the prompt."),
    click.option("--seed", type=int, help="Seed of few-shot examples and sampling."),
    click.option(
        "--apply-chat-template", is_flag=True, default=None, help="Use each model's chat template."
    ),
    click.option("--system-instruction", help="System message of the prompt."),
    click.option(
        "--fewshot-as-multiturn", is_flag=True, default=None, help="Few-shot examples as turns."
    ),
    click.option("--gen-kwargs", default="", metavar=_MODEL_ARGS, help="Generation arguments."),
    click.option(
        "--confirm-run-unsafe-code", is_flag=True, help="Run tasks that execute model output."
    ),
    click.option(
        "--allow-differing",
        type=click.Choice(["prompt", "tokens"]),
        multiple=True,
        help="A difference between the sides that is meant.",
    ),
)
_RUNNING = (
    click.option(
        "--batch-size", type=BatchSize(), help="Sequences per forward pass, for both models."
    ),
    click.option(
        "--check-batch-size",
        type=click.IntRange(min=0),
        default=0,
        metavar="N",
        help="Score N documents per task again at batch size 1.",
    ),
    click.option("--device", default="", help="cpu, cuda, cuda:1, mps."),
    click.option(
        "--threads", type=click.IntRange(min=0), default=0, help="CPU threads; 0: automatic."
    ),
    click.option(
        "--worker",
        type=click.Choice(["auto", "always"]),
        default="auto",
        help="Score in worker processes: where a setting needs it, or always.",
    ),
    click.option(
        "--timeout",
        type=click.FloatRange(min=0, min_open=True),
        help="Seconds one call to a worker may take.",
    ),
    click.option("--cache-dir", type=_PATH, help="Where finished scores are kept."),
    click.option("--no-cache", is_flag=True, help="Neither read nor keep finished scores."),
)
_GATE = (
    click.option(
        "--margin",
        type=click.FloatRange(min=0, min_open=True),
        help="Allowed drift in standard errors of the base. Default 1.",
    ),
    click.option(
        "--fail-on",
        type=click.Choice(["margin", "significant", "certain", "any-degradation"]),
        help="What makes the gate fail. Default margin.",
    ),
    click.option(
        "--confidence",
        type=click.FloatRange(0.5, 1, min_open=True, max_open=True),
        help="Of the intervals. Default 0.95.",
    ),
    click.option("--strict", is_flag=True, help="Undecided exits with 4."),
    click.option(
        "--git-bisect",
        is_flag=True,
        help="Exit codes for git bisect run: what gives no verdict is 125.",
    ),
)
_OUTPUT = (
    click.option("--output-path", type=_PATH, help="Where run folders go. Default ./reports."),
    click.option(
        "--json", "as_json", is_flag=True, help="One JSON document on stdout, nothing else."
    ),
    click.option("--quiet", "-q", is_flag=True, help="No progress."),
    click.option("--debug", is_flag=True, help="Tracebacks of errors."),
)


def _with(*options: Callable[[Decorated], Decorated]) -> Callable[[Decorated], Decorated]:
    def decorate(function: Decorated) -> Decorated:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


@click.command("compare")
@click.option("--base", required=True, help="Name in the guard file, path, hub id, or lm-eval run.")
@click.option("--cand", "--candidate", required=True, help="The same for the candidate.")
@_with(*_MODELS, *_TASKS, *_RUNNING, *_GATE, *_OUTPUT)
def compare_command(base: str, cand: str, as_json: bool, debug: bool, **given: Any) -> int:  # noqa: ARG001 - main() reads --debug
    """Compare a candidate with its base on the same documents.

    The drift is given in standard errors of the base (sigma); how sure it is comes from the
    paired difference. Both sides answer the same requests in the same batches.
    """
    return _compare(base, cand, as_json=as_json, **given)


@click.command("demo")
@_with(*_RUNNING, *_OUTPUT)
def demo_command(as_json: bool, debug: bool, **given: Any) -> int:  # noqa: ARG001 - main() reads --debug
    """Compare the built-in model with a port of it that went wrong (exit code 1)."""
    return _compare("orig", "fla-port", as_json=as_json, demo=True, **given)


def _compare(base: str, cand: str, *, as_json: bool, demo: bool = False, **given: Any) -> int:
    from evalguard.pipeline.compare import compare
    from evalguard.pipeline.demo import demo_config

    options = _options(given)
    if demo:
        options["config"] = demo_config()
    result = compare(base, cand, command=_command_line(), **options)
    _print(result, as_json=as_json)
    return result.exit_code


def _options(given: dict[str, Any]) -> dict[str, Any]:
    """Turn click's values into fields of CompareOptions."""
    from evalguard.pipeline.arguments import parse_arguments

    options = dict(given)
    for name in ("base_model_args", "cand_model_args", "gen_kwargs"):
        if name in options:
            options[name] = parse_arguments(options[name], where=f"--{name}")
    for name in ("base_set", "cand_set"):
        if name in options:
            options[name] = dict(options[name])
    if "tasks" in options:
        options["tasks"] = tuple(t for t in (p.strip() for p in options["tasks"].split(",")) if t)
    if "allow_differing" in options:
        options["allow_differing"] = frozenset(options["allow_differing"])
    options["use_cache"] = not options.pop("no_cache")
    return options


def _command_line() -> str:
    return shlex.join(["evalguard", *sys.argv[1:]])


def _print(result: CompareResult, *, as_json: bool) -> None:
    if as_json:
        click.echo(result.to_json())
        return
    color = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    width = shutil.get_terminal_size((80, 24)).columns if sys.stdout.isatty() else 80
    click.echo(result.render(width=width, color=color), color=color)
