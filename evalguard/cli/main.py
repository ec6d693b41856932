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
from evalguard.cli.help import HELP_OPTIONS, Group
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

# The commands as --help shows them.
_COMMANDS = {
    "Start here": (demo_command, compare_command, bisect_command, report_command),
    "Prepare": (init_command, check_command, plan_command, floor_command),
    "Run in CI and every night": (nightly_command, history_command, github_command, gitlab_command),
    "Look up": (models_command, tasks_command, schema_command, cache_command, track_command),
}


class _Program(Group):
    """The program: names the nearest command when one does not exist."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            hint = nearest(args[0], self.list_commands(ctx))
            known = ", ".join(self.list_commands(ctx))
            raise click.UsageError(f"no such command '{args[0]}'{hint}\ncommands: {known}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, _: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands in sections, what people need first on top."""
        for heading, commands in _COMMANDS.items():
            with formatter.section(heading):
                formatter.write_dl(
                    [(command.name or "", command.get_short_help_str(80)) for command in commands]
                )


@click.group(
    cls=_Program,
    epilog=EPILOG,
    context_settings={
        "help_option_names": HELP_OPTIONS,
        "max_content_width": 100,
        "token_normalize_func": lambda token: token.replace("_", "-"),
    },
)
@click.version_option(evalguard.__version__, message="evalguard %(version)s")
def cli() -> None:
    """Tell whether a converted language model got worse, how much, and how sure that is.

    \b
    evalguard demo                                  models that come with it
    evalguard compare --base A --cand B --tasks T   folders, hub ids, lm-eval runs
    """


for _section in _COMMANDS.values():
    for _command in _section:
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
