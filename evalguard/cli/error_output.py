"""Errors as a user sees them: a message and a hint on stderr, JSON where asked, an exit code."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import click

from evalguard.cli.output import wants_color, write_result
from evalguard.core.exit_code import EXIT_GIT_BISECT_SKIP
from evalguard.core.findings import quotes_text
from evalguard.core.redaction import redacted_text, redacted_traceback
from evalguard.errors import (
    EXIT_PASSED,
    EXIT_REGRESSED,
    EvalguardError,
    EvaluationError,
    Interrupted,
    StoreError,
    UsageError,
)
from evalguard.run_token import keeps_for_itself

ERROR_SCHEMA = "evalguard.error/1"
# git bisect run stops the whole bisection at 128 and above, which is what an interrupt asks for.
_STOPS_GIT_BISECT = 128
_LONGEST_LINE = 2000
_GOES_ON = (
    "scores so far are kept for this run: if nothing that the models' own code reads changes "
    "meanwhile, the same command goes on from them with --unchanged-since {}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureStyle:
    """How errors are shown. Read from the words themselves: they count in usage errors too."""

    as_json: bool
    debug: bool
    git_bisect: bool

    @classmethod
    def of(cls, words: Sequence[str]) -> FailureStyle:
        """Read the style from the words of a command line."""
        flags = {word.replace("_", "-") for word in words}
        return cls(
            as_json="--json" in flags, debug="--debug" in flags, git_bisect="--git-bisect" in flags
        )

    def code(self, code: int) -> int:
        """Return the exit code, for ``git bisect run`` where that was asked for."""
        verdict = code in (EXIT_PASSED, EXIT_REGRESSED)
        if not self.git_bisect or verdict or code >= _STOPS_GIT_BISECT:
            return code
        return EXIT_GIT_BISECT_SKIP


def report_error(error: BaseException, style: FailureStyle, *, code: int | None = None) -> int:
    """Show an error; return the exit code.

    Args:
        error: whatever ended the command.
        code: exit code instead of the error's own.
    """
    known = as_known_error(error)
    code = style.code(known.exit_code if code is None else code)
    with contextlib.suppress(OSError):  # stderr is full or gone: the exit code still tells
        if style.debug:
            click.echo(_clean(redacted_traceback(error)), err=True, color=False)
        label = "stopped" if isinstance(known, Interrupted) else "error"
        _print_labelled(label, "red", _with_quotes(known))
        if known.hint:
            _print_labelled("hint", "cyan", known.hint)
        token = keeps_for_itself()
        if token and not isinstance(known, (UsageError, Interrupted)):
            _print_labelled("hint", "cyan", _GOES_ON.format(token))
    if style.as_json:
        return _write_json(known, code)
    return code


def warn_problems(problems: Iterable[str]) -> None:
    """Tell on stderr what could not be done beside a result that stands."""
    with contextlib.suppress(OSError):  # stderr is full or gone
        for problem in problems:
            _print_labelled("warning", "yellow", problem)


def as_known_error(error: BaseException) -> EvalguardError:
    """Return an error of ours for anything that can end a command. None becomes a verdict."""
    if isinstance(error, EvalguardError):
        return error
    if isinstance(error, click.ClickException):
        return _usage_error(error)
    if isinstance(error, (KeyboardInterrupt, click.Abort)):
        return Interrupted("interrupted", hint="the same command starts again")
    if isinstance(error, SystemExit):
        return EvaluationError(
            f"something called exit({error.code!r}) in the middle of the run",
            hint="code of a model, a task or a hook may have done it; --debug shows where",
        )
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        return StoreError(f"{where}{error.strerror}", hint="--debug shows what was being done")
    if isinstance(error, MemoryError):
        return EvaluationError(
            "memory ran out", hint="try a smaller --batch_size, fewer tasks, or another machine"
        )
    if isinstance(error, ImportError):
        return EvaluationError(
            f"a library cannot be loaded: {error}",
            hint="install evalguard anew, or give it more memory; --debug shows what needed it",
        )
    return EvalguardError(
        f"internal error: {type(error).__name__}: {error}",
        hint="this is a bug in evalguard or in a library; run again with --debug and report it",
    )


def _usage_error(error: click.ClickException) -> UsageError:
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "evalguard"
    if isinstance(error, click.NoSuchOption) and error.option_name == "--samples":
        return UsageError(
            "lm-eval's --samples is not supported: documents cannot be chosen by their index",
            hint="--limit N takes the first N; or make both runs with lm_eval --samples and "
            "--log_samples, and give their folders to --base and --cand",
        )
    return UsageError(error.format_message().rstrip("."), hint=f"{command} --help")


def _with_quotes(error: EvalguardError) -> str:
    """What happened; the end of a log in lines of its own."""
    if any("\n" in quote.text for quote in error.quotes):
        return "\n".join([f"{error}:", *(quote.text for quote in error.quotes)])
    return f"{error}{quotes_text(error.quotes)}"


def _print_labelled(label: str, color: str, text: str) -> None:
    colored = wants_color(sys.stderr)
    head = click.style(f"{label}:", fg=color) if colored else f"{label}:"
    click.echo(f"{head} {_clean(text)}", err=True, color=colored)


def _clean(text: str) -> str:
    """Drop control characters, which could drive the terminal, and secrets."""
    shown = "".join(char for char in text if char in "\n\t" or char.isprintable())
    return "\n".join(_shorten_line(line) for line in redacted_text(shown).split("\n"))


def _shorten_line(line: str) -> str:
    """Cut a line of thousands of characters (a name in a hostile file) in its middle."""
    half = _LONGEST_LINE // 2
    return line if len(line) <= _LONGEST_LINE else f"{line[:half]} … {line[-half:]}"


def _write_json(error: EvalguardError, code: int) -> int:
    kind = type(error).__name__
    content = {
        "type": kind,
        "message": redacted_text(str(error)),
        "quotes": [redacted_text(quote.text) for quote in error.quotes],
        "hint": redacted_text(error.hint),
    }
    document = {"schema": ERROR_SCHEMA, "error": content, "exit_code": code}
    try:
        write_result(json.dumps(document))
    except StoreError as unwritten:
        with contextlib.suppress(OSError):
            _print_labelled("error", "red", str(unwritten))
    return code
