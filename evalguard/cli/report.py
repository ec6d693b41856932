"""``evalguard report``: a finished run, shown again."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from evalguard.cli.help import Command, output_option, together
from evalguard.cli.options import DEBUG, EPILOG, JSON, REPORT_FILES
from evalguard.cli.output import Answer, Job, terminal_width, wants_color
from evalguard.cli.values import PATH
from evalguard.errors import UsageError

if TYPE_CHECKING:
    from evalguard.pipeline.result import CompareResult
    from evalguard.pipeline.several import SeveralResult
    from evalguard.report_format import Format


@click.command("report", cls=Command, epilog=EPILOG, short_help="Show a finished run again.")
@click.argument("run", type=PATH)
@together(*REPORT_FILES, JSON)
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
    """Show the comparison in a run folder again, bisection and all; no model is run.

    RUN is a folder of `evalguard compare`, or its result.json. With -o FILE it is written there,
    and nothing is printed. The exit code is 0 whatever the verdict was.
    """
    return partial(_report, run, output, output_format, as_json, width)


def check_stdout(output: tuple[Path, ...], output_format: Format | None, *, as_json: bool) -> None:
    """Refuse two formats for stdout.

    Raises:
        UsageError: with what to do instead.
    """
    if as_json and output_format not in (None, "json") and not output:
        raise UsageError(
            f"--json and --format {output_format} both say what to print",
            hint="leave one out, or name a file: -o FILE",
        )


def shown(
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


def _report(
    run: Path,
    output: tuple[Path, ...],
    output_format: Format | None,
    as_json: bool,
    width: int | None,
) -> Answer:
    from evalguard.pipeline.report_files import write_files
    from evalguard.pipeline.result import CompareResult
    from evalguard.pipeline.stored_run import stored_run

    check_stdout(output, output_format, as_json=as_json)
    result = CompareResult(stored_run(run).report)
    write_files(result.report, output, output_format)
    if output and not as_json:
        return Answer(str)
    return Answer(partial(shown, result, output_format, as_json=as_json, width=width))
