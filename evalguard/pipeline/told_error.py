"""An error in a sentence of a report."""

from __future__ import annotations

from evalguard.errors import EvalguardError, Interrupted


def told(error: BaseException) -> str:
    """An error as a sentence, its hint with it."""
    if isinstance(error, (KeyboardInterrupt, Interrupted)):
        return "it was interrupted"
    if isinstance(error, EvalguardError):
        return f"{error} ({error.hint})" if error.hint else str(error)
    return f"{type(error).__name__}: {error}"
