"""Why a probe gave no scores: what belongs to its assignment, and what must stop everything."""

from __future__ import annotations

from evalguard.bisect.oracle import Refusal, Untestable
from evalguard.errors import EvalguardError, FallbackError, StoreError, WorkerError

# What torch, its allocators and evalguard itself say where memory ran out; in small letters.
_NO_MEMORY = ("memory ran out", "out of memory", "outofmemory", "can't allocate", "memoryerror")
_FULL_DISK = ("no space left on device", "the disk is full", "disk quota exceeded")


def refusal_of(error: EvalguardError, *, loaded: bool) -> Untestable:
    """What an error says about the assignment that met it.

    Args:
        loaded: whether the model was loaded, and failed while it answered.

    Raises:
        StoreError: a disk is full: that is no property of an assignment.
    """
    text = f"{error} {error.hint}".lower()
    if isinstance(error, StoreError):
        raise error
    if any(words in text for words in _FULL_DISK):
        raise StoreError(str(error), hint="free some space, and resume") from error
    reason = next(iter(str(error).splitlines()), "") or type(error).__name__
    return Untestable(reason, kind=_kind(error, text, loaded), hint=error.hint)


def _kind(error: EvalguardError, text: str, loaded: bool) -> Refusal:
    if isinstance(error, WorkerError) and error.cause == "late":
        return "timed_out"
    killed = isinstance(error, WorkerError) and error.cause == "killed"
    if killed or any(words in text for words in _NO_MEMORY):
        return "out_of_memory"
    if isinstance(error, WorkerError):
        return "crashed"
    return "crashed" if loaded and not isinstance(error, FallbackError) else "cannot_build"
