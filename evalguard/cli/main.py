"""The ``evalguard`` command: its sub-commands, and its exit codes."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

import evalguard
from evalguard.cli.bisect import bisect_command
from evalguard.cli.cache import cache_command, envs_command
from evalguard.cli.card import card_command
from evalguard.cli.ci_jobs import github_command, gitlab_command
from evalguard.cli.compare import compare_command, demo_command
from evalguard.cli.dump import dump_command
from evalguard.cli.error_output import FailureStyle, report_error, warn_problems
from evalguard.cli.floor import floor_command
from evalguard.cli.guard_commands import (
    check_command,
    init_command,
    models_command,
    schema_command,
    skill_command,
    tasks_command,
)
from evalguard.cli.history import history_command
from evalguard.cli.library_log import SAID_ONCE, hide_builds, show_log
from evalguard.cli.nightly import nightly_command
from evalguard.cli.output import (
    NOT_ARRIVED,
    flush_streams,
    neutral_streams,
    prepare_streams,
    reserve_stdout,
    write_result,
)
from evalguard.cli.parameters import HELP_OPTIONS, Group
from evalguard.cli.plan import plan_command
from evalguard.cli.report import report_command
from evalguard.cli.signals import Interrupts
from evalguard.cli.tensors import tensors_command
from evalguard.cli.trace import trace_command
from evalguard.cli.track import track_command
from evalguard.core.redaction import redacted_command
from evalguard.errors import EXIT_FAILED, EXIT_PASSED, EXIT_USAGE, Interrupted, UsageError, nearest
from evalguard.run_token import run_scope

# The commands as --help shows them.
_COMMANDS = {
    "Start here": (
        demo_command,
        compare_command,
        bisect_command,
        trace_command,
        tensors_command,
        dump_command,
        report_command,
        card_command,
    ),
    "Prepare": (init_command, check_command, plan_command, floor_command),
    "Run in CI and every night": (nightly_command, history_command, github_command, gitlab_command),
    "Look up": (
        models_command,
        tasks_command,
        schema_command,
        cache_command,
        envs_command,
        track_command,
        skill_command,
    ),
}


_EPILOG = """\b
Exit: 0 passed, 1 regressed, 2 usage, 3 failed, 4 undecided, 130/143 stopped
evalguard --version; evalguard COMMAND --help"""


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

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Leave out the two options of the program, which the last line names: one screen."""
        self.format_commands(ctx, formatter)

    def format_commands(self, _: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands in sections, what people need first on top."""
        for heading, commands in _COMMANDS.items():
            with formatter.section(heading):
                formatter.write_dl(
                    [(command.name or "", command.get_short_help_str(80)) for command in commands]
                )


@click.group(
    cls=_Program,
    epilog=_EPILOG,
    context_settings={
        "help_option_names": HELP_OPTIONS,
        "max_content_width": 100,
        "token_normalize_func": lambda token: token.replace("_", "-"),
    },
)
@click.version_option(evalguard.__version__, message="evalguard %(version)s")
def cli() -> None:
    """\b
    Tell whether a converted language model got worse, and how sure that is.
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
    with neutral_streams(os.environ), run_scope(), Interrupts() as interrupts:
        if style.debug:
            show_log()
        else:
            hide_builds()
            if logging.lastResort is not None:
                logging.lastResort.addFilter(SAID_ONCE)
        try:
            code = _run_command(words)
        except click.exceptions.NoArgsIsHelpError as error:
            error.show(sys.stderr)
            code = EXIT_USAGE
        except (KeyboardInterrupt, click.Abort, Interrupted) as error:
            code = report_error(error, style, code=interrupts.exit_code)
        except BaseException as error:  # noqa: BLE001 - the last fence: no exception is a verdict
            code = report_error(error, style)
        flush_streams()
    raise SystemExit(code)


def _require_folder() -> None:
    try:
        os.getcwd()
    except FileNotFoundError as error:
        raise UsageError("the current folder was removed", hint="cd to one that exists") from error


def _run_command(words: Sequence[str]) -> int:
    """Parse, then work, then write: click turns a broken pipe into exit code 1, a verdict."""
    command = redacted_command(["evalguard", *words])
    try:
        job = cli.main(list(words), prog_name="evalguard", standalone_mode=False, obj=command)
    except SystemExit as done:  # shell completion, or nobody reads the help
        return EXIT_FAILED if done.code else EXIT_PASSED
    if not callable(job):  # --help and --version have had their say
        return EXIT_PASSED
    _require_folder()
    with reserve_stdout():
        answer = job()
    try:
        text = answer.text()
        if text:
            write_result(text, workflow_commands=answer.workflow_commands)
    except KeyboardInterrupt:
        raise Interrupted("interrupted while the result was shown", hint=NOT_ARRIVED) from None
    finally:
        warn_problems(answer.problems)
    code: int = answer.code
    return code
