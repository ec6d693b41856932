"""The ``evalguard`` command: its sub-commands, signals, library logs and exit codes."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Any, NoReturn

import click

import evalguard
from evalguard import tools
from evalguard.cli.bisect_command import bisect_command
from evalguard.cli.cache_command import cache_command, envs_command
from evalguard.cli.card_command import card_command
from evalguard.cli.click_options import HELP_OPTIONS, Group
from evalguard.cli.compare_command import compare_command, demo_command
from evalguard.cli.dump_command import dump_command
from evalguard.cli.error_output import FailureStyle, report_error, warn_problems
from evalguard.cli.floor_command import floor_command
from evalguard.cli.forge_commands import github_command, gitlab_command
from evalguard.cli.guard_commands import (
    check_command,
    init_command,
    models_command,
    schema_command,
    skill_command,
    tasks_command,
)
from evalguard.cli.history_command import history_command
from evalguard.cli.nightly_command import nightly_command
from evalguard.cli.output import (
    NOT_ARRIVED,
    flush_streams,
    neutral_streams,
    prepare_streams,
    reserve_stdout,
    write_result,
)
from evalguard.cli.plan_command import plan_command
from evalguard.cli.report_command import report_command
from evalguard.cli.tensors_command import tensors_command
from evalguard.cli.trace_command import trace_command
from evalguard.cli.track_command import track_command
from evalguard.core.exit_code import EXIT_INTERRUPTED, EXIT_TERMINATED
from evalguard.core.redaction import redacted_command, redacted_text
from evalguard.errors import EXIT_FAILED, EXIT_PASSED, EXIT_USAGE, Interrupted, UsageError, nearest
from evalguard.run_token import run_scope


def show_log() -> None:
    """Show what is logged from now on.

    Without it, warnings of lm-eval are left out: what matters of them is in the report.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(_RedactingFormatter("%(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


# What these warn of while they are imported is how they were built.
_OF_BUILDS = ("torchao", "torch.utils._pytree", "torch.onnx")


def hide_builds() -> None:
    """Leave out what libraries say of their own builds: kernels that this machine cannot load."""
    for name in _OF_BUILDS:
        logging.getLogger(name).setLevel(logging.ERROR)


class _SaidOnce(logging.Filter):
    """Lets a message through the first time: some libraries warn at every call of a layer."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: set[tuple[str, str]] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        key = (record.name, record.getMessage())
        new = key not in self._seen
        self._seen.add(key)
        return new


SAID_ONCE = _SaidOnce()


class _RedactingFormatter(logging.Formatter):
    """Libraries log addresses and headers, and tracebacks quote what was called."""

    def format(self, record: logging.LogRecord) -> str:
        return redacted_text(super().format(record))


# `timeout` and some terminals send a signal twice; the second must not cut off the first's answer.
_ONE_SIGNAL = 1.0


class Interrupts:
    """Raises KeyboardInterrupt for SIGINT and for SIGTERM, with which CI cancels a job.

    Only handlers that are Python's own are replaced, and they are put back on leaving: who ignores
    a signal (``nohup``) or handles it keeps that.

    Attributes:
        terminated: whether the last signal was SIGTERM.
    """

    def __init__(self) -> None:
        self.terminated = False
        self._last = float("-inf")
        self._before: dict[signal.Signals, Any] = {}

    @property
    def exit_code(self) -> int:
        """128 + the number of the signal, as a shell has it: 130 or 143."""
        return EXIT_TERMINATED if self.terminated else EXIT_INTERRUPTED

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            replaceable = {
                signal.SIGINT: signal.default_int_handler,
                signal.SIGTERM: signal.SIG_DFL,
            }
            for number, default in replaceable.items():
                if signal.getsignal(number) is default:
                    self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _handle(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        now = time.monotonic()
        repeated, self._last = now - self._last < _ONE_SIGNAL, now
        if repeated:
            return
        self.terminated = number == signal.SIGTERM
        raise KeyboardInterrupt


# Commands that a tool gives, by its folder; they go with it.
_OF_TOOLS = {
    "bisect": "bisect", "trace": "tracing", "dump": "tracing", "tensors": "tensors",
    "card": "several", "plan": "planning", "floor": "floors", "nightly": "nights",
    "history": "nights", "github": "publish", "gitlab": "publish", "track": "publish",
}  # fmt: skip


def _keep_given(*commands: click.Command) -> tuple[click.Command, ...]:
    """Leave out commands of tools that are not there."""
    tool_of = ((one, _OF_TOOLS.get(one.name or "")) for one in commands)
    return tuple(one for one, tool in tool_of if tool is None or tools.is_there(tool))


# The commands as --help shows them.
_COMMANDS = {
    "Start here": _keep_given(
        demo_command,
        compare_command,
        bisect_command,
        trace_command,
        tensors_command,
        dump_command,
        report_command,
        card_command,
    ),
    "Prepare": _keep_given(init_command, check_command, plan_command, floor_command),
    "Run in CI and every night": _keep_given(
        nightly_command, history_command, github_command, gitlab_command
    ),
    "Look up": _keep_given(
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
            if args[0] in _OF_TOOLS:
                raise tools.missing(_OF_TOOLS[args[0]])
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
