"""What a command prints: its result on stdout, and nothing else there."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TextIO

import click

from evalguard.errors import (
    EXIT_PASSED,
    StoreError,
)

PIPED_WIDTH = 80
NOT_ARRIVED = (
    "the result did not arrive where it was sent; a run folder holds it if one was written, "
    "and evalguard report RUN shows it"
)


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The result of a command: text for stdout, made when it is written, and the exit code.

    ``problems`` are told on stderr: what could not be done beside it, and changes no exit code.
    """

    text: Callable[[], str]
    code: int = EXIT_PASSED
    problems: tuple[str, ...] = ()


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
            kept = os.dup(1)
            stack.callback(os.close, kept)
            os.dup2(2, 1)
            stack.callback(os.dup2, kept, 1)
            stack.callback(_flush, sys.__stdout__)
        yield


def write_result(text: str) -> None:
    """Write a result to stdout.

    A reader that went away (``| head``) has read enough: that is not an error.

    Raises:
        StoreError: if stdout cannot be written (a full disk behind ``>``) or was closed.
    """
    if sys.stdout is None:
        raise StoreError("standard output is closed", hint=NOT_ARRIVED)
    try:
        click.echo(text, color=True)  # keep the styles as they are: colour was decided before
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
