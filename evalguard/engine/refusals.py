"""Why a model gave no answers: what its settings are to blame for, and what stops everything."""

from __future__ import annotations

from evalguard.core.question import Refusal, Untestable
from evalguard.errors import EvalguardError, FallbackError, StoreError, WorkerError

# What torch, its allocators and evalguard itself say where memory ran out; in small letters.
_NO_MEMORY = (
    "memory ran out", "out of memory", "outofmemory", "can't allocate", "cannot allocate memory",
    "memoryerror", "std::bad_alloc", "alloc_failed",
)  # fmt: skip
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
    if _mentions(error, _FULL_DISK):
        raise StoreError(str(error), hint="free some space, and resume") from error
    return Untestable(_refusal_reason(error), kind=_refusal_kind(error, loaded), hint=error.hint)


def _refusal_reason(error: EvalguardError) -> str:
    """The first line."""
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def was_killed(error: EvalguardError) -> bool:
    """Whether somebody else ended its worker at once, as a kernel does that is short of memory."""
    return isinstance(error, WorkerError) and error.cause == "killed"


def ran_out_of_memory(error: EvalguardError) -> bool:
    """Whether there was too little memory, as far as an error tells."""
    return was_killed(error) or _mentions(error, _NO_MEMORY)


def _mentions(error: EvalguardError, words: tuple[str, ...]) -> bool:
    said = " ".join(one.text for one in error.quotes)  # a worker's last words
    text = f"{error} {said} {error.hint}".lower()
    return any(one in text for one in words)


def _refusal_kind(error: EvalguardError, loaded: bool) -> Refusal:
    if isinstance(error, WorkerError) and error.cause == "late":
        return "timed_out"
    if ran_out_of_memory(error):
        return "out_of_memory"
    if isinstance(error, WorkerError):
        return "crashed"
    return "crashed" if loaded and not isinstance(error, FallbackError) else "cannot_build"
