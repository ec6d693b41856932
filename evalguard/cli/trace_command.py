"""``evalguard trace``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click

from evalguard.cli.click_options import (
    PATH,
    Command,
    add_options,
    files_option,
    model_option,
    option_factory,
    output_option,
    read_compare_options,
    task_option,
)
from evalguard.cli.option_groups import (
    BASE,
    MODELS,
    PROMPTS,
    SHOWING,
    TASK_NAMES,
    take,
)
from evalguard.cli.output import CommandResult, Job, show_result
from evalguard.errors import UsageError

_document_option = option_factory("Documents")


def document_options(which: str) -> tuple[Callable[[Any], Any], ...]:
    """Options of the documents that a model reads while it is looked into."""
    return (
        task_option(
            "--limit",
            type=click.IntRange(min=1),
            default=8,
            show_default=True,
            metavar="N",
            help=f"Documents: {which}.",
        ),
        _document_option(
            "--documents",
            default="",
            metavar="ID,...",
            help="These documents of the task.",
        ),
        _document_option(
            "--text",
            type=PATH,
            multiple=True,
            metavar="FILE",
            help="A document of your own. Repeatable.",
        ),
        _document_option(
            "--inputs",
            type=PATH,
            multiple=True,
            metavar="FILE",
            help="Model inputs by name: .npz, .safetensors, .json, or a dump.",
        ),
    )


_DOCUMENTS = document_options("those that moved most in the last comparison, else the first ones")
_MAP = model_option(
    "--map",
    "name_map",
    type=PATH,
    metavar="FILE",
    help="YAML file: which recorded tensor is which of the base.",
)
_DETAIL = output_option(
    "--detail", is_flag=True, help="Errors of the suspects by token and by head, too."
)
_SWAP = task_option(
    "--swap",
    type=click.IntRange(min=0),
    metavar="N",
    help="Take N suspects from the base, one at a time: what are they worth on the task? Default: "
    "2 where that is cheap.",
)
_FILES = files_option("trace", ".html, .json or .txt")
_FIRST = (
    "base",
    "cand",
    "tasks",
    "limit",
    "documents",
    "text",
    "inputs",
    "name_map",
    "config",
    "swap",
    "detail",
    "device",
    "output",
    "as_json",
)
_EPILOG = """\b
Exit codes: 0 nothing beyond the floor, 1 a location is named, 2 usage or
guard file, 3 nothing known, 130 interrupted, 143 terminated."""


@click.command(
    "trace",
    cls=Command,
    moves=True,
    first=_FIRST,
    epilog=_EPILOG,
)
@BASE
@model_option(
    "--cand",
    "--candidate",
    metavar="MODEL|FOLDER",
    help="Candidate: a model, or a folder of recorded activations.",
)
@add_options(
    _MAP,
    *_DOCUMENTS,
    *TASK_NAMES,
    *PROMPTS,
    *MODELS,
    *take("device", "threads", "cache_dir"),
    _SWAP,
    _DETAIL,
    *take("output_path"),
    _FILES,
    *SHOWING,
)
@click.pass_obj
def trace_command(command: str, /, base: str | None, cand: str | None, **given: Any) -> Job:
    """Name the module at which a candidate's error is introduced.

    Every module of the candidate is given the base's own input there: its output shows what it
    does by itself, in multiples of what rounding alone does. Hyper-parameters are compared first.
    """
    if base is None or cand is None:
        raise UsageError(
            f"{'--base' if base is None else '--cand'} is missing",
            hint="evalguard trace --base A --cand B",
        )
    return partial(_trace, base, cand, command=command, **given)


def _trace(
    base: str,
    cand: str,
    *,
    documents: str,
    text: tuple[Path, ...],
    inputs: tuple[Path, ...],
    name_map: Path | None,
    detail: bool,
    swap: int | None,
    output: tuple[Path, ...],
    as_json: bool,
    verbose: bool,
    **given: Any,
) -> CommandResult:
    from evalguard.tracing.trace_run import trace

    result = trace(
        base,
        cand,
        documents=read_document_ids(documents),
        text=text,
        inputs=inputs,
        name_map=name_map,
        detail=detail,
        swap=swap,
        output=output,
        **read_compare_options(given),
    )
    return show_result(result, as_json=as_json, verbose=verbose, problems=result.problems)


def read_document_ids(text: str) -> tuple[int, ...]:
    """Document numbers, each once: "3,17"."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    for word in words:
        if not word.isdecimal():
            raise UsageError(
                f"--documents: '{word}' is not the number of a document", hint="--documents 3,17"
            )
    return tuple(dict.fromkeys(map(int, words)))
