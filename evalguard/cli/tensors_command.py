"""``evalguard tensors``: weights and tensor files compared."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import click

from evalguard.cli.click_options import (
    PATH,
    Command,
    add_options,
    files_option,
    model_option,
    option_factory,
    speed_option,
)
from evalguard.cli.option_groups import DEBUG, JSON, QUIET, VERBOSE
from evalguard.cli.output import CommandResult, Job, terminal_width, wants_color
from evalguard.cli.value_types import FiniteRange, ToolChoice
from evalguard.errors import UsageError

_tolerance_option = option_factory("Tolerance")
_compare_option = option_factory("Comparison")
_COMPARING = (
    model_option(
        "--map",
        "name_map",
        type=PATH,
        metavar="FILE",
        help="YAML file that says which names belong together, and how they are laid out. "
        "GGUF names are known without one.",
    ),
    _compare_option(
        "--invariant",
        "invariants",
        type=ToolChoice("INVARIANTS"),
        multiple=True,
        help="Check this instead of equality. Repeatable. sign-consensus: A is the model that B "
        "was fine-tuned from.",
    ),
    speed_option(
        "--processes",
        type=click.IntRange(min=0),
        default=0,
        metavar="N",
        help="Processes that read and sum. Default 0: one for each core, at most 8, on Linux and "
        "where there is much to do; else 1.",
    ),
    _tolerance_option(
        "--rtol",
        type=FiniteRange(min=0),
        metavar="X",
        help="Allowed relative difference; with --atol in place of the table's.",
    ),
    _tolerance_option(
        "--atol",
        type=FiniteRange(min=0),
        metavar="X",
        help="Allowed absolute difference: an element may differ by atol + rtol * |A|.",
    ),
    _tolerance_option(
        "--operation",
        type=ToolChoice("OPERATIONS"),
        default=None,
        help="The tensors are results of this operation: its row of the table counts.",
    ),
    _tolerance_option(
        "--platform",
        type=ToolChoice("PLATFORMS"),
        default=None,
        help="The operation ran there: with --operation, its row of the table counts.",
    ),
    _tolerance_option(
        "--tolerances", is_flag=True, help="Print the table of tolerances and their reasons."
    ),
    files_option("report", ".html, .json or .txt"),
    JSON,
    VERBOSE,
    QUIET,
    DEBUG,
)
_FIRST = (
    "name_map", "invariants", "rtol", "atol", "tolerances", "output", "as_json", "verbose",
)  # fmt: skip


@click.command("tensors", cls=Command, first=_FIRST)
@click.argument("base", metavar="A", required=False)
@click.argument("candidate", metavar="B", required=False)
@add_options(*_COMPARING)
@click.pass_obj
def tensors_command(
    command: str, /, base: str | None, candidate: str | None, as_json: bool, **given: Any
) -> Job:
    """Compare the tensors of two files or folders: A is what is right, B what is asked about.

    Reads safetensors, torch state dicts (a pickle of code is refused), GGUF, npz and npy, and
    folders of them, lazily. Tells per tensor what differs, in the terms of PyTorch's assert_close,
    and what the difference looks like: a rounding, or a tensor that is transposed, permuted,
    scaled, shifted or another one. Exit codes: 0 equal within tolerance, 1 not, 2 usage, 3 nothing
    is known.
    """
    if given.pop("tolerances"):
        return partial(_print_tolerances)
    if base is None or candidate is None:
        raise UsageError(
            "two files or folders are needed: what is right, and what is asked about",
            hint="evalguard tensors ./model model.gguf",
        )
    return partial(_compare, base, candidate, as_json=as_json, command=command, given=given)


def _compare(
    base: str, candidate: str, *, as_json: bool, command: str, given: Mapping[str, Any]
) -> CommandResult:
    from evalguard.tensors.compare_tensors import TensorOptions, compare_tensors
    from evalguard.tensors.tensors_page import check_outputs, render_report, write_outputs

    check_outputs(given["output"])
    progress = None if given["quiet"] or as_json else _Progress()
    options = TensorOptions(
        name_map=given["name_map"],
        rtol=given["rtol"],
        atol=given["atol"],
        platform=given["platform"] or "",
        operation=given["operation"] or "",
        invariants=given["invariants"],
        processes=given["processes"],
        command=command,
        progress=progress,
    )
    try:
        report = compare_tensors(base, candidate, options)
    finally:
        if progress is not None:
            progress.clear()
    problems = write_outputs(report, given["output"])
    text: Callable[[], str] = partial(
        render_report,
        report,
        "json" if as_json else "txt",
        width=terminal_width(),
        color=wants_color(sys.stdout),
        verbose=given["verbose"],
    )
    return CommandResult(text, report.exit_code, problems)


def _print_tolerances() -> CommandResult:
    from evalguard.tensors.tensors_page import render_tolerance_table

    width, color = terminal_width(), wants_color(sys.stdout)
    return CommandResult(partial(render_tolerance_table, width=width, color=color))


class _Progress:
    """A line on stderr while a comparison takes longer than a second; none where nobody looks."""

    def __init__(self) -> None:
        self._shown = False
        self._last = time.monotonic()
        self._live = sys.stderr.isatty()

    def __call__(self, done: int, total: int) -> None:
        """Show the share of elements that is done."""
        now = time.monotonic()
        if self._live and now - self._last > 1.0:
            self._last, self._shown = now, True
            click.echo(
                f"\rcompared {done / max(total, 1):4.0%} of {total:,} elements", err=True, nl=False
            )

    def clear(self) -> None:
        """Take the line away."""
        if self._shown:
            click.echo("\r" + " " * 60 + "\r", err=True, nl=False)
