"""The ``evalguard`` command: its sub-commands, signals, library logs and exit codes."""

from __future__ import annotations

import _weakrefset
import importlib
import logging
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType, TracebackType
from typing import Any, NoReturn

import click

import evalguard
from evalguard import tools
from evalguard.cli.click_options import HELP_OPTIONS, Group
from evalguard.cli.error_output import FailureStyle, report_error, warn_problems
from evalguard.cli.output import (
    NOT_ARRIVED,
    flush_streams,
    neutral_streams,
    prepare_streams,
    reserve_stdout,
    write_result,
)
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

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if _is_swallowed(frame):  # asked again in a moment, when something else runs
            again = threading.Timer(_LATER, os.kill, (os.getpid(), number))
            again.daemon = True
            again.start()
            return
        now = time.monotonic()
        repeated, self._last = now - self._last < _ONE_SIGNAL, now
        if repeated:
            return
        self.terminated = number == signal.SIGTERM
        raise KeyboardInterrupt


_LATER = 0.02  # seconds
_OF_WEAK_REFERENCES = (weakref.__file__, _weakrefset.__file__)


def _is_swallowed(frame: FrameType | None) -> bool:
    """Whether Python ignores what is raised here: in a finaliser or a weak reference's callback."""
    while frame is not None:
        code = frame.f_code
        if code.co_name == "__del__" or code.co_filename in _OF_WEAK_REFERENCES:
            return True
        frame = frame.f_back
    return False


# Commands that a tool gives, by its folder; they go with it.
_OF_TOOLS = {
    "bisect": "bisect", "trace": "tracing", "dump": "tracing", "tensors": "tensors",
    "card": "several", "plan": "planning", "floor": "floors", "nightly": "nights",
    "history": "nights", "github": "publish", "gitlab": "publish", "track": "publish",
}  # fmt: skip

# The commands as --help shows them: each with the file that has it, and what it is for.
_SECTIONS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "Start here": {
        "demo": ("compare_command", "Compare the built-in model with a port of it."),
        "compare": ("compare_command", "Compare a candidate with its base on the same documents."),
        "bisect": ("bisect_command", "Name the settings that make a candidate drift."),
        "trace": ("trace_command", "Name the module at which a candidate's error is introduced."),
        "tensors": ("tensors_command", "Compare weights and tensor files."),
        "dump": ("dump_command", "Write a model's activations for its porters."),
        "report": ("report_command", "Show a finished run again."),
        "card": ("card_command", "Publish finished runs: model card, metadata, badge."),
    },
    "Prepare": {
        "init": ("guard_commands", "Write a commented guard file to start from."),
        "check": ("guard_commands", "Check guard files."),
        "plan": ("plan_command", "Estimate what a comparison would show and cost."),
        "floor": ("floor_command", "Measure what an unchanged model shows: the noise floor."),
    },
    "Run in CI and every night": {
        "nightly": ("nightly_command", "Compare every pair of a guard file."),
        "history": ("history_command", "Show nights of comparisons: list, trend, flips."),
        "github": ("forge_commands", "Show a result in a job of GitHub Actions."),
        "gitlab": ("forge_commands", "Show a result in a job of GitLab CI."),
    },
    "Look up": {
        "models": ("guard_commands", "List the models, settings and pairs of the guard file."),
        "tasks": ("guard_commands", "List lm-eval tasks by name."),
        "schema": ("guard_commands", "Print the JSON Schema of guard files or of a report."),
        "cache": ("cache_command", "List or clear the cache of scores."),
        "envs": ("cache_command", "List or remove environments of models."),
        "track": ("track_command", "Send a finished run to W&B, trackio or MLflow."),
        "skill": ("guard_commands", "Print a page for coding agents."),
    },
}


def _is_given(command: str) -> bool:
    """Whether a command is there: those of tools go with these."""
    return command not in _OF_TOOLS or tools.is_there(_OF_TOOLS[command])


class _Commands(Mapping[str, click.Command]):
    """The commands by name; a command's file is imported when it is the one asked for."""

    def __init__(self) -> None:
        listed = [entry for section in _SECTIONS.values() for entry in section.items()]
        self._files = {name: file for name, (file, _) in listed if _is_given(name)}

    def __getitem__(self, name: str) -> click.Command:
        module = importlib.import_module(f"evalguard.cli.{self._files[name]}")
        command: click.Command = getattr(module, f"{name}_command")
        return command

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


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
        for heading, commands in _SECTIONS.items():
            with formatter.section(heading):
                formatter.write_dl(
                    [(name, text) for name, (_, text) in commands.items() if _is_given(name)]
                )


@click.group(
    cls=_Program,
    commands=_Commands(),
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


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit the process with its code."""
    words = list(sys.argv[1:] if argv is None else argv)
    style = FailureStyle.of(words)
    prepare_streams()
    with neutral_streams(os.environ), run_scope(), Interrupts() as interrupts:
        if style.debug:
            show_log()
        else:
            from evalguard.worker.process import hide_builds

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
