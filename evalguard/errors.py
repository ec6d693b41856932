"""Errors a user can act on: what was found, where, and what to do next.

Every error carries the exit code of the command that it ends. There is no code for "regressed"
here: an exception never becomes a verdict.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from evalguard.core.findings import Quote

WorkerEnd = Literal["killed", "late", "lost", "unplaced", ""]
EXIT_PASSED = 0
EXIT_REGRESSED = 1
EXIT_USAGE = 2
EXIT_FAILED = 3
EXIT_UNDECIDED = 4


class EvalguardError(Exception):
    """Base of all errors that evalguard raises on purpose.

    ``str(error)`` is the message; ``hint`` says what to do, or is empty.

    ``quotes`` are words that the message is about and that may be of documents. They follow it on
    this machine's screen alone: the message is also told elsewhere.

    Of an error that one setting causes, ``setting`` is its name, or ``target`` where it is applied,
    as a guard file writes it (``config.X``); "" where that is not known.
    """

    exit_code = EXIT_FAILED

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        setting: str = "",
        target: str = "",
        quotes: tuple[Quote, ...] = (),
    ) -> None:
        super().__init__(message)
        self.hint, self.setting, self.target, self.quotes = hint, setting, target, quotes
        self.__notes__ = [quote.text for quote in quotes]  # a traceback shows them


class UsageError(EvalguardError):
    """The command line, a name or a value given by the user cannot be used."""

    exit_code = EXIT_USAGE


class LaterVersionError(UsageError):
    """A file was written by a later version, whose form is not known here."""


class GuardFileError(UsageError):
    """A guard file cannot be read: ``what``, and ``where``, which is ``FILE:LINE`` or ``FILE``.

    ``others``: what else was found, a line each, with its place.
    """

    def __init__(
        self, message: str, *, where: str, others: Sequence[str] = (), hint: str = ""
    ) -> None:
        super().__init__("\n".join([f"{where}: {message}", *others]), hint=hint)
        self.what, self.where, self.others = message, where, tuple(others)


class EvaluationError(EvalguardError):
    """A model could not be loaded or scored, so nothing is known about it."""


class SettingError(EvaluationError):
    """A setting could not be applied, or its effective value is not the one that was asked for."""


class BuildError(EvaluationError):
    """A build recipe failed; nothing of its output is used."""


GIVEN_UP = ("share_prefixes", "scorer")


class FallbackError(EvaluationError):
    """A model cannot be scored as the policy asks, only in a plainer way.

    Base and candidate are scored alike, so both have to start again. ``giving_up`` names the field
    of the policy, one of ``GIVEN_UP``.
    """

    def __init__(self, message: str, *, giving_up: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.giving_up = giving_up


class WorkerError(EvaluationError):
    """A worker process died, hung or spoke garbage. ``log`` is the path of its captured output.

    ``quotes`` has the end of that log, which may hold words of documents.
    ``cause`` tells these apart: "killed" (what the system does where memory runs out), "late" (no
    answer or no sign of life in time), "lost" (with its machine, or what held it there), "unplaced"
    (no machine of a cluster has room for it), "" for any other.
    """

    def __init__(
        self,
        message: str,
        *,
        log: str = "",
        cause: WorkerEnd = "",
        hint: str = "",
        quotes: tuple[Quote, ...] = (),
    ) -> None:
        super().__init__(message, hint=hint, quotes=quotes)
        self.log = log
        self.cause: WorkerEnd = cause


class MisalignedRunsError(EvaluationError):
    """Base and candidate did not answer the same documents, so they cannot be paired.

    ``of_tokens``: they would, as other token ids: their tokenizers differ. ``of_prompts``: their
    prompts do. ``of``: the metric that the message begins with; ``what`` is the message without it.
    """

    def __init__(
        self,
        message: str,
        *,
        of: str = "",
        of_tokens: bool = False,
        of_prompts: bool = False,
        hint: str = "",
        quotes: tuple[Quote, ...] = (),
    ) -> None:
        super().__init__(f"{of}: {message}" if of else message, hint=hint, quotes=quotes)
        self.what, self.of_tokens, self.of_prompts = message, of_tokens, of_prompts


class StoreError(EvalguardError):
    """A result could not be written. The numbers themselves are not lost by this."""


class Interrupted(EvalguardError):
    """The user stopped the run; ``hint`` says what was kept and how to go on."""

    exit_code = 130


def nearest(name: str, choices: Iterable[str]) -> str:
    """Return ``"; did you mean 'X'?"`` for the closest choice, or ``""``."""
    matches = difflib.get_close_matches(name, list(choices), n=1, cutoff=0.6)
    return f"; did you mean '{matches[0]}'?" if matches else ""


def error_text(error: BaseException) -> str:
    """An error as a sentence, its hint with it."""
    if isinstance(error, (KeyboardInterrupt, Interrupted)):
        return "it was interrupted"
    if isinstance(error, EvalguardError):
        return f"{error} ({error.hint})" if error.hint else str(error)
    return f"{type(error).__name__}: {error}"
