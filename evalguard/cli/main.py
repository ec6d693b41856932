"""The ``evalguard`` command: its sub-commands, and how they end."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

import evalguard
from evalguard.cli.bisect import bisect_command
from evalguard.cli.cache import cache_command
from evalguard.cli.compare import compare_command, demo_command
from evalguard.cli.debug_log import show_log
from evalguard.cli.failure import FailureStyle, report, warn
from evalguard.cli.floor import floor_command
from evalguard.cli.github import github_command
from evalguard.cli.gitlab import gitlab_command
from evalguard.cli.guard import (
    check_command,
    init_command,
    models_command,
    schema_command,
    tasks_command,
)
from evalguard.cli.history import history_command
from evalguard.cli.interrupts import Interrupts
from evalguard.cli.nightly import nightly_command
from evalguard.cli.options import EPILOG
from evalguard.cli.output import (
    NOT_ARRIVED,
    prepare_streams,
    settle_streams,
    stdout_kept,
    write,
)
from evalguard.cli.plan import plan_command
from evalguard.cli.report import report_command
from evalguard.cli.track import track_command
from evalguard.errors import EXIT_FAILED, EXIT_PASSED, EXIT_USAGE, Interrupted, UsageError, nearest
from evalguard.redaction import redacted_command


class _Group(click.Group):
    """A group that names the nearest command when one does not exist."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            hint = nearest(args[0], self.list_commands(ctx))
            known = ", ".join(self.list_commands(ctx))
            raise click.UsageError(f"no such command '{args[0]}'{hint}\ncommands: {known}", ctx)
        return super().resolve_command(ctx, args)


@click.group(
    cls=_Group,
    epilog=EPILOG,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
        "token_normalize_func": lambda token: token.replace("_", "-"),
    },
)
@click.version_option(evalguard.__version__, message="evalguard %(version)s")
def cli() -> None:
    """Tell whether a converted language model got worse, how much, and how sure that is.

    \b
    evalguard demo                                a run on built-in models
    evalguard compare --base A --cand B --tasks T compare two models
    evalguard compare --base runs/a --cand runs/b compare finished lm-eval runs
    evalguard bisect --base A --cand B --tasks T  name the guilty settings
    evalguard plan --base A --cand B --tasks T    how many documents, how long
    evalguard floor --base A --tasks T            what an unchanged model shows
    evalguard init                                write a guard file to start from
    evalguard check                               check guard files
    evalguard nightly --config F                  every pair of a guard file
    evalguard history trend                       sigma over nights, change points
    evalguard report RUN                          show a finished run again
    evalguard track RUN --track wandb             send a finished run to W&B
    evalguard github RESULT                       show a result in GitHub Actions
    evalguard gitlab RESULT                       show a result in GitLab CI
    evalguard cache ls                            what is kept of finished runs
    """


for _command in (
    compare_command,
    bisect_command,
    demo_command,
    plan_command,
    floor_command,
    nightly_command,
    history_command,
    report_command,
    track_command,
    cache_command,
    github_command,
    gitlab_command,
    init_command,
    check_command,
    schema_command,
    models_command,
    tasks_command,
):
    cli.add_command(_command)


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit the process with its code."""
    words = list(sys.argv[1:] if argv is None else argv)
    style = FailureStyle.of(words)
    prepare_streams()
    if style.debug:
        show_log()
    with Interrupts() as interrupts:
        try:
            code = _run(words)
        except click.exceptions.NoArgsIsHelpError as error:
            error.show(sys.stderr)
            code = EXIT_USAGE
        except (KeyboardInterrupt, click.Abort, Interrupted) as error:
            code = report(error, style, code=interrupts.exit_code)
        except BaseException as error:  # noqa: BLE001 - the last fence: no exception is a verdict
            code = report(error, style)
        settle_streams()
    raise SystemExit(code)


def _require_folder() -> None:
    try:
        os.getcwd()
    except FileNotFoundError as error:
        raise UsageError("the current folder was removed", hint="cd to one that exists") from error


def _run(words: Sequence[str]) -> int:
    """Parse, then work, then write: click turns a broken pipe into exit code 1, a verdict."""
    command = redacted_command(["evalguard", *words])
    try:
        job = cli.main(list(words), prog_name="evalguard", standalone_mode=False, obj=command)
    except SystemExit as done:  # shell completion, or nobody reads the help
        return EXIT_FAILED if done.code else EXIT_PASSED
    if not callable(job):  # --help and --version have had their say
        return EXIT_PASSED
    _require_folder()
    with stdout_kept():
        answer = job()
    try:
        text = answer.text()
        if text:
            write(text)
    except KeyboardInterrupt:
        raise Interrupted("interrupted while the result was shown", hint=NOT_ARRIVED) from None
    finally:
        warn(answer.problems)
    code: int = answer.code
    return code
