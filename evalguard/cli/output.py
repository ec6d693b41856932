"""What a command prints: its result on stdout, and nothing else there.

In a job of GitHub Actions every line of both streams is read for workflow commands: ``::NAME ::``
at its start, ``##[NAME]`` anywhere. Text of models, tasks and files is none: all that is written
passes through ``JobStream``, but for the commands that are evalguard's own.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from evalguard.errors import EXIT_PASSED, StoreError, UsageError

if TYPE_CHECKING:
    from evalguard.comparison.result import CompareResult
    from evalguard.core.option_words import Format
    from evalguard.core.result import Result
    from evalguard.several.several_run import SeveralResult

PIPED_WIDTH = 80
NOT_ARRIVED = (
    "the result did not arrive where it was sent; a run folder holds it if one was written, "
    "and evalguard report RUN shows it"
)


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The result of a command: text for stdout, made when it is written, and the exit code.

    ``problems`` are told on stderr: what could not be done beside it, and changes no exit code.
    ``workflow_commands``: it holds commands of evalguard's own for a job of GitHub Actions, and no
    text that could be one.
    """

    text: Callable[[], str]
    code: int = EXIT_PASSED
    problems: tuple[str, ...] = ()
    workflow_commands: bool = False


Job = Callable[[], CommandResult]


def prepare_streams() -> None:
    """Let a terminal without UTF-8 show "?" for "…" and "±"; fill descriptors that were closed.

    A closed one would be given to the next file or pipe, and whatever prints would write into it.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - for the whole process
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


# What GitHub's runner leaves out before a command; more than that does no harm.
_BEFORE_COMMAND = re.compile(r"[\s\u200b-\u200f\u2060\ufeff]*")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_LINES = re.compile(r"[^\r\n]+|[\r\n]+")


class JobStream(io.TextIOBase):
    """A stream of a job of GitHub Actions in which no text is a workflow command.

    A backslash stands before a colon that begins a line, ``##[`` is written with the escape that
    leaves it the same in a JSON document, and control characters are "?".
    """

    def __init__(self, inner: TextIO) -> None:
        self.inner = inner
        self._begun = False  # the line has a character that is not left out before a command
        self._last = ""  # up to two characters, which ``##[`` may have begun with
        self.buffer = _JobBytes(self)

    def write(self, text: str) -> int:
        """Write a text, or a part of one, that may be anybody's."""
        self.inner.write("".join(map(self._neutral, _LINES.findall(text))))
        return len(text)

    def _neutral(self, part: str) -> str:
        if part[0] in "\r\n":
            self._begun, self._last = False, ""
            return part
        part = _CONTROL.sub("?", part)
        first = _BEFORE_COMMAND.match(part)
        if not self._begun and first is not None and first.end() < len(part):
            self._begun = True
            if part[first.end()] == ":":
                part = f"{first[0]}\\{part[first.end() :]}"
        known = len(self._last)
        whole = f"{self._last}{part}".replace("##[", "##\\u005b")
        self._last = whole[-2:]
        return whole[known:]

    def flush(self) -> None:
        """Flush the stream behind it."""
        if not self.inner.closed:
            self.inner.flush()

    def isatty(self) -> bool:
        """Whether the stream behind it is a terminal."""
        return self.inner.isatty()

    def fileno(self) -> int:
        """Return the descriptor of the stream behind it."""
        return self.inner.fileno()

    def writable(self) -> bool:
        """Return True."""
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Of the stream behind it."""
        return self.inner.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        """Of the stream behind it."""
        return self.inner.errors


class _JobBytes(io.BufferedIOBase):
    """The same for who writes bytes."""

    def __init__(self, text: JobStream) -> None:
        self._text = text
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def write(self, data: Any) -> int:
        """Write the beginning, or a part, of a text."""
        self._text.write(self._decoder.decode(bytes(data)))
        return len(data)

    def flush(self) -> None:
        """Flush the stream behind it."""
        self._text.flush()

    def writable(self) -> bool:
        """Return True."""
        return True


@contextlib.contextmanager
def neutral_streams(environment: Mapping[str, str]) -> Iterator[None]:
    """In a job of GitHub Actions, let nothing that is written be a workflow command."""
    with contextlib.ExitStack() as stack:
        if environment.get("GITHUB_ACTIONS"):
            if sys.stdout is not None:  # it was closed
                stack.enter_context(contextlib.redirect_stdout(JobStream(sys.stdout)))
            stack.enter_context(contextlib.redirect_stderr(JobStream(sys.stderr)))
        yield


@contextlib.contextmanager
def reserve_stdout() -> Iterator[None]:
    """Send to stderr what anything else writes to stdout: a library, a user's hook, a child.

    Both the stream and the file descriptor are moved, because code below Python writes to the
    latter.
    """
    with contextlib.ExitStack() as stack:
        _flush(sys.stdout)
        stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        with contextlib.suppress(OSError):  # a descriptor that the caller closed needs no care
            stdout_copy = os.dup(1)
            stack.callback(os.close, stdout_copy)
            os.dup2(2, 1)
            stack.callback(os.dup2, stdout_copy, 1)
            stack.callback(_flush, sys.__stdout__)
        yield


def write_result(text: str, *, workflow_commands: bool = False) -> None:
    """Write a result to stdout.

    A reader that went away (``| head``) has read enough: that is not an error.

    Args:
        workflow_commands: as of ``CommandResult``.

    Raises:
        StoreError: if stdout cannot be written (a full disk behind ``>``) or was closed.
    """
    if sys.stdout is None:
        raise StoreError("standard output is closed", hint=NOT_ARRIVED)
    own = sys.stdout.inner if workflow_commands and isinstance(sys.stdout, JobStream) else None
    try:
        click.echo(
            text, file=own, color=True
        )  # keep the styles as they are: colour was decided before
        _flush(sys.stdout)
    except BrokenPipeError:
        _discard(sys.stdout)
    except OSError as error:
        _discard(sys.stdout)
        raise StoreError(
            f"standard output cannot be written: {error.strerror or error}", hint=NOT_ARRIVED
        ) from error


def terminal_width() -> int:
    """Return the width of the terminal behind stdout; 80 where there is none."""
    if not _is_terminal(sys.stdout):
        return PIPED_WIDTH
    return shutil.get_terminal_size((PIPED_WIDTH, 24)).columns


def wants_color(stream: object) -> bool:
    """Return whether to colour what goes to a stream: a terminal, unless NO_COLOR says no."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return _is_terminal(stream) and not plain


def _is_terminal(stream: object) -> bool:
    return isinstance(stream, io.IOBase) and not stream.closed and stream.isatty()


def flush_streams() -> None:
    """Flush both streams, or give up what cannot be: the interpreter would fail once more."""
    for stream in (sys.stdout, sys.stderr):
        try:
            _flush(stream)
        except OSError:
            _discard(stream)


def _flush(stream: TextIO | None) -> None:
    if stream is not None and not stream.closed:
        stream.flush()


def _discard(stream: TextIO) -> None:
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


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


def show_result(
    result: Result[Any], *, as_json: bool, verbose: bool = False, problems: tuple[str, ...] = ()
) -> CommandResult:
    """A result as JSON or as a screen on stdout, and its exit code."""

    def render() -> str:
        color = wants_color(sys.stdout)
        return result.render(width=terminal_width(), color=color, verbose=verbose)

    return CommandResult(result.to_json if as_json else render, result.exit_code, problems)


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
