"""What a command prints of a comparison: the screen, JSON, or the format that was asked for."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalguard.cli.output import CommandResult, terminal_width, wants_color
from evalguard.errors import UsageError

if TYPE_CHECKING:
    from evalguard.core.reports.report_formats import Format
    from evalguard.run.result import CompareResult
    from evalguard.run.several import SeveralResult


def check_stdout_formats(
    output: tuple[Path, ...], output_format: Format | None, *, as_json: bool
) -> None:
    """Refuse two formats for stdout.

    Raises:
        UsageError: with what to do instead.
    """
    if as_json and output_format not in (None, "json") and not output:
        raise UsageError(
            f"--json and --format {output_format} both say what to print",
            hint="leave one out, or name a file: -o FILE",
        )


def render_for_stdout(
    result: CompareResult | SeveralResult,
    output_format: Format | None = None,
    *,
    as_json: bool = False,
    width: int | None = None,
    verbose: bool = True,
) -> str:
    """Return what stdout gets of a result, without a final line break.

    Args:
        verbose: show everything, and not the first screen alone; a format of text always does.
    """
    if as_json:
        return result.to_json()
    if output_format in (None, "text"):
        return result.render(
            width=width or terminal_width(),
            color=wants_color(sys.stdout),
            verbose=verbose or output_format == "text",
        )
    return result.rendered(output_format).removesuffix("\n")


def comparison_result(
    result: CompareResult | SeveralResult, given: Mapping[str, Any], *, as_json: bool
) -> CommandResult:
    """The result of one comparison or of several on stdout, its problems, and its exit code."""
    of_stdout = None if given["output"] else given["output_format"]
    return CommandResult(
        partial(render_for_stdout, result, of_stdout, as_json=as_json, verbose=given["verbose"]),
        result.exit_code,
        result.problems,
        workflow_commands=of_stdout == "annotations" and not as_json,
    )
