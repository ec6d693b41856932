"""Why a model gave no answers: what its settings are to blame for, and what stops everything."""

from __future__ import annotations

from evalguard.core.question import Refusal, Untestable
from evalguard.engine.memory import mentions, ran_out_of_memory
from evalguard.errors import EvalguardError, FallbackError, StoreError, WorkerError

_FULL_DISK = ("no space left on device", "the disk is full", "disk quota exceeded")


def refusal_of(error: EvalguardError, *, loaded: bool) -> Untestable:
    """What an error says about the assignment that met it.

    Args:
        loaded: whether the model was loaded, and failed while it answered.

    Raises:
        StoreError: a disk is full: that is not a property of an assignment.
    """
    if isinstance(error, StoreError):
        raise error
    if mentions(error, _FULL_DISK):
        raise StoreError(str(error), hint="free some space, and resume") from error
    return Untestable(_refusal_reason(error), kind=_refusal_kind(error, loaded), hint=error.hint)


def _refusal_reason(error: EvalguardError) -> str:
    """The first line."""
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def _refusal_kind(error: EvalguardError, loaded: bool) -> Refusal:
    if isinstance(error, WorkerError) and error.cause == "late":
        return "timed_out"
    if ran_out_of_memory(error):
        return "out_of_memory"
    if isinstance(error, WorkerError):
        return "crashed"
    return "crashed" if loaded and not isinstance(error, FallbackError) else "cannot_build"
