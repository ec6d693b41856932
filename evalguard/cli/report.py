"""``evalguard report``, ``github``, ``gitlab`` and ``track``.

A finished run, shown again or sent on.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from evalguard.cli.options import DEBUG, EPILOG, JSON, REPORT_FILES, TRACKING
from evalguard.cli.output import CommandResult, Job, terminal_width, wants_color
from evalguard.cli.parameters import PATH, Command, add_options, output_option, record_option
from evalguard.errors import UsageError

if TYPE_CHECKING:
    from evalguard.core.reports.report_formats import Format
    from evalguard.run.publishing.forge_comment import CommentMode
    from evalguard.run.result import CompareResult
    from evalguard.run.several import SeveralResult
    from evalguard.run.tracing.trace_result import TraceResult


@click.command("report", cls=Command, epilog=EPILOG, short_help="Show a finished run again.")
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


def _report(
    run: Path,
    output: tuple[Path, ...],
    output_format: Format | None,
    as_json: bool,
    width: int | None,
) -> CommandResult:
    from evalguard.run.report_files import write_files
    from evalguard.run.result import CompareResult
    from evalguard.run.stored_run import read_stored_run
    from evalguard.run.tracing.trace_result import read_trace_folder

    check_stdout_formats(output, output_format, as_json=as_json)
    trace = read_trace_folder(run)
    if trace is not None:
        if output_format not in (None, "text", "json", "html"):
            raise UsageError(
                f"a trace has no format '{output_format}'", hint="-o FILE.html, FILE.json, FILE.txt"
            )
        return _report_trace(trace, output, as_json=as_json, width=width)
    result = CompareResult(read_stored_run(run).report)
    write_files(result.report, output, output_format)
    if output and not as_json:
        return CommandResult(str)
    return CommandResult(
        partial(render_for_stdout, result, output_format, as_json=as_json, width=width)
    )


def _report_trace(
    trace: TraceResult, output: tuple[Path, ...], *, as_json: bool, width: int | None
) -> CommandResult:
    for path in output:
        trace.save(path)
    if as_json:
        return CommandResult(trace.to_json)
    columns, color = width or terminal_width(), wants_color(sys.stdout)
    shown = partial(trace.render, width=columns, color=color, verbose=True)
    return CommandResult(str if output else shown)


# What ``evalguard github`` and ``evalguard gitlab`` take.


RESULT_ARGUMENT = click.argument("result", type=PATH)
COMMENT_OPTION = click.option(
    "--comment",
    type=click.Choice(["always", "failures", "never"]),
    default="always",
    show_default=True,
    help="Comment on the pull or merge request. The comment of an earlier run is updated.",
)
NAME_OPTION = click.option(
    "--name",
    default="",
    metavar="NAME",
    help="Tells the comments of several comparisons in one request apart.",
)


# ``evalguard github``: a result shown in the job of GitHub Actions that runs.


@click.command("github", short_help="Show a result in a job of GitHub Actions.")
@RESULT_ARGUMENT
@COMMENT_OPTION
@NAME_OPTION
@DEBUG
def github_command(result: Path, comment: CommentMode, name: str) -> Job:
    """Show a result in the job of GitHub Actions that runs: summary, annotations, comment.

    RESULT is a run folder, or a file with what --json printed; an error is shown too. The outputs
    state, passed, headline, guilty, run-folder and comment-url are set. A comment needs
    GITHUB_TOKEN with the permission `pull-requests: write`. The exit code is 0 whatever the
    verdict was.
    """
    return partial(_github, result, comment, name)


def _github(result: Path, comment: CommentMode, name: str) -> CommandResult:
    from evalguard.run.publishing.forges import show_on_github

    text = show_on_github(result, name=name, comment=comment, environment=os.environ)
    return CommandResult(lambda: text)


# ``evalguard gitlab``: a result shown in the job of GitLab CI that runs.


@click.command("gitlab", short_help="Show a result in a job of GitLab CI.")
@RESULT_ARGUMENT
@COMMENT_OPTION
@NAME_OPTION
@DEBUG
def gitlab_command(result: Path, comment: CommentMode, name: str) -> Job:
    """Show a result in the job of GitLab CI that runs: its log, and a note on the merge request.

    RESULT is a run folder, or a file with what --json printed; an error is shown too. A note needs
    EVALGUARD_GITLAB_TOKEN, a project access token with the scope `api`: GitLab lets no job's own
    token write notes. The exit code is 0 whatever the verdict was.
    """
    return partial(_gitlab, result, comment, name)


def _gitlab(result: Path, comment: CommentMode, name: str) -> CommandResult:
    from evalguard.run.publishing.forges import show_on_gitlab

    text = show_on_gitlab(result, name=name, comment=comment, environment=os.environ)
    return CommandResult(lambda: text)


# ``evalguard track``: send a finished comparison to experiment trackers.


_DOCUMENTS = record_option(
    "--track-documents",
    is_flag=True,
    help="Send it documents, too: prompts, answers, the run folder's files.",
)
_QUIET = click.option("--quiet", "-q", is_flag=True, help="Show no progress.")


@click.command("track", short_help="Send a finished run to W&B, trackio or MLflow.")
@click.argument("run", type=PATH, metavar="RUN")
@add_options(TRACKING, _DOCUMENTS, _QUIET, DEBUG)
def track_command(run: Path, track: tuple[str, ...], track_documents: bool, quiet: bool) -> Job:
    """Send a finished comparison to experiment trackers.

    RUN is a run folder, or its result.json. Exit codes: 0 sent, or kept here for wandb sync; 2
    usage; 3 not sent.
    """
    return partial(_tracked, run, track, documents=track_documents, quiet=quiet)


def _tracked(run: Path, track: tuple[str, ...], *, documents: bool, quiet: bool) -> CommandResult:
    from evalguard.run.publishing.tracking import track_stored

    result = track_stored(run, track, documents=documents, quiet=quiet)
    return CommandResult(result.render, result.exit_code)
