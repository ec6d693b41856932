"""``evalguard report``: a finished run, shown again."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from evalguard import tools
from evalguard.cli.click_options import PATH, Command, add_options, output_option
from evalguard.cli.option_groups import DEBUG, EPILOG, JSON, REPORT_FILES
from evalguard.cli.output import (
    CommandResult,
    Job,
    check_stdout_formats,
    render_for_stdout,
    terminal_width,
    wants_color,
)
from evalguard.errors import UsageError

if TYPE_CHECKING:
    from evalguard.core.option_words import Format
    from evalguard.tracing.trace_result import TraceFormat, TraceResult


@click.command("report", cls=Command, epilog=EPILOG)
@click.argument("run", type=PATH)
@add_options(*REPORT_FILES, JSON)
@output_option(
    "--verbose",
    "-v",
    is_flag=True,
    expose_value=False,
    help="Show everything, as this command does anyway.",
)
@output_option(
    "--width",
    type=click.IntRange(min=20),
    metavar="COLUMNS",
    help="Width of the text report. Default: the terminal's, else 80.",
)
@DEBUG
def report_command(
    run: Path,
    output: tuple[Path, ...],
    output_format: Format | None,
    as_json: bool,
    width: int | None,
) -> Job:
    """Show the comparison in a run folder again, bisection, trace and all; no model is run.

    RUN is a folder of `evalguard compare`, or its result.json, or a folder of `evalguard trace`.
    With -o FILE it is written there, and nothing is printed. The exit code is 0 whatever the
    verdict was.
    """
    return partial(_report, run, output, output_format, as_json, width)


def _report(
    run: Path,
    output: tuple[Path, ...],
    output_format: Format | None,
    as_json: bool,
    width: int | None,
) -> CommandResult:
    from evalguard.comparison.report_files import write_files
    from evalguard.comparison.result import CompareResult
    from evalguard.comparison.stored_run import read_stored_run

    check_stdout_formats(output, output_format, as_json=as_json)
    read_trace = tools.fetch("read_trace_folder") if tools.has("read_trace_folder") else None
    trace: TraceResult | None = None if read_trace is None else read_trace(run)
    if trace is not None:
        if output_format not in (None, "text", "json", "html"):
            raise UsageError(
                f"a trace has no format '{output_format}'", hint="-o FILE.html, FILE.json, FILE.txt"
            )
        return _report_trace(trace, output, output_format, as_json=as_json, width=width)
    result = CompareResult(read_stored_run(run).report)
    write_files(result.report, output, output_format)
    if output and not as_json:
        return CommandResult(str)
    return CommandResult(
        partial(render_for_stdout, result, output_format, as_json=as_json, width=width),
        workflow_commands=output_format == "annotations" and not as_json,
    )


def _report_trace(
    trace: TraceResult,
    output: tuple[Path, ...],
    chosen: TraceFormat | None,
    *,
    as_json: bool,
    width: int | None,
) -> CommandResult:
    for path in output:
        trace.save(path, chosen)
    if as_json:
        return CommandResult(trace.to_json)
    if output:
        return CommandResult(str)
    if chosen not in (None, "text"):
        return CommandResult(lambda: trace.rendered(chosen).removesuffix("\n"))
    columns, color = width or terminal_width(), wants_color(sys.stdout)
    return CommandResult(partial(trace.render, width=columns, color=color, verbose=True))
