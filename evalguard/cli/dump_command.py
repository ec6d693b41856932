"""``evalguard dump``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from evalguard.cli.click_options import (
    PATH,
    Command,
    add_options,
    model_option,
    option_factory,
    output_option,
    read_compare_options,
)
from evalguard.cli.option_groups import DEBUG, ONE_MODEL, PROMPTS, QUIET, TASK_NAMES, take
from evalguard.cli.output import CommandResult, Job
from evalguard.cli.trace_command import document_options, read_document_ids

_points_option = option_factory("Points")
_FIRST = (
    "inputs", "text", "tasks", "limit", "points", "port", "folder", "config", "device",
)  # fmt: skip


@click.command("dump", cls=Command, first=_FIRST)
@click.argument("base", metavar="MODEL")
@add_options(
    *document_options("the first ones of the task"),
    *TASK_NAMES,
    *PROMPTS,
    _points_option(
        "--points",
        multiple=True,
        metavar="PATTERN",
        help="Points to write: 'model.layers.*:out'. Repeatable. Default: all.",
    ),
    model_option(
        "--port",
        type=PATH,
        metavar="FOLDER",
        help="A port's dump: propose which of its tensors is which point (names.yaml).",
    ),
    *ONE_MODEL,
    *take("device", "threads", "cache_dir"),
    output_option(
        "-o",
        "--output",
        "folder",
        type=PATH,
        required=True,
        metavar="FOLDER",
        help="Where to: a new folder.",
    ),
    QUIET,
    DEBUG,
)
@click.pass_obj
def dump_command(command: str, /, base: str, folder: Path, **given: Any) -> Job:
    """Write what flows in a model while it reads documents, for whoever ports it.

    One folder a document, with a .npy file for each point (MODULE:in, MODULE:out) and what the
    model read (inputs.npz). A port writes the same; evalguard trace --cand FOLDER compares.
    """
    return partial(_dump, base, folder, command=command, **given)


def _dump(
    base: str,
    folder: Path,
    *,
    documents: str,
    text: tuple[Path, ...],
    inputs: tuple[Path, ...],
    points: tuple[str, ...],
    port: Path | None,
    **given: Any,
) -> CommandResult:
    from evalguard.tracing.dump_activations import dump, render_dump

    dumped = dump(
        base,
        folder,
        documents=read_document_ids(documents),
        text=text,
        inputs=inputs,
        points=points,
        port=port,
        **read_compare_options(given),
    )
    return CommandResult(lambda: "\n".join(render_dump(dumped)))
