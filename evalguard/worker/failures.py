"""Exceptions across the pipe: evalguard's own keep their class, others become EvaluationError."""

from __future__ import annotations

from dataclasses import dataclass

from evalguard import errors
from evalguard.core.reports.findings import Quote
from evalguard.errors import EvalguardError, EvaluationError

# By name, and fixed: what a worker says is never looked up among arbitrary classes.
_CLASSES: dict[str, type[EvalguardError]] = {
    kind.__name__: kind
    for kind in (
        errors.EvalguardError,
        errors.UsageError,
        errors.GuardFileError,
        errors.EvaluationError,
        errors.SettingError,
        errors.BuildError,
        errors.FallbackError,
        errors.WorkerError,
        errors.MisalignedRunsError,
        errors.StoreError,
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An exception that a call raised.

    ``kind`` is the name of the nearest evalguard error class; ``expected`` is False for any other
    exception, whose traceback is in the worker's log. ``where`` belongs to GuardFileError,
    ``giving_up`` to FallbackError; ``setting``, ``target`` and ``quotes`` are as in
    EvalguardError.
    """

    kind: str
    message: str
    hint: str
    where: str
    giving_up: str
    expected: bool
    setting: str = ""
    target: str = ""
    quotes: tuple[Quote, ...] = ()


def to_failure(error: Exception) -> Failure:
    """Return the record of an exception."""
    if not isinstance(error, EvalguardError):
        text = f"{type(error).__name__}: {error}".rstrip(": ")
        return Failure(
            kind=EvaluationError.__name__,
            message=text,
            hint="",
            where="",
            giving_up="",
            expected=False,
        )
    kind = next(c.__name__ for c in type(error).__mro__ if c.__name__ in _CLASSES)
    return Failure(
        kind=kind,
        message=str(error),
        hint=error.hint,
        where=str(getattr(error, "where", "")),
        giving_up=str(getattr(error, "giving_up", "")),
        expected=True,
        setting=error.setting,
        target=error.target,
        quotes=error.quotes,
    )


def to_exception(failure: Failure, *, model: str, log: str) -> EvalguardError:
    """Return the exception that a record stands for, as the caller in this process sees it."""
    if not failure.expected:
        return EvaluationError(
            f"model '{model}': {failure.message}",
            hint=f"the traceback is in the worker's log, {log}",
        )
    kind = _CLASSES.get(failure.kind)
    if kind is None:
        return EvaluationError(f"{failure.kind}: {failure.message}", hint=failure.hint)
    # The message is complete already; some constructors would put its beginning there again.
    error = kind.__new__(kind)
    EvalguardError.__init__(
        error,
        failure.message,
        hint=failure.hint,
        setting=failure.setting,
        target=failure.target,
        quotes=failure.quotes,
    )
    if isinstance(error, errors.GuardFileError):
        error.where = failure.where
    if isinstance(error, errors.WorkerError):
        error.log = log
        error.cause = ""
    if isinstance(error, errors.FallbackError):
        error.giving_up = failure.giving_up
    return error
