"""Where in a guard file the cause of an error stands."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from evalguard.core.settings import Variant
from evalguard.engine.sources import ModelSource, join_hints
from evalguard.errors import BuildError, EvalguardError, GuardFileError, SettingError, UsageError

# What a guard file says can be the cause of these.
_LOCATED_ERRORS = (BuildError, SettingError, UsageError)


@contextmanager
def with_location(source: ModelSource) -> Iterator[None]:
    """Put ``FILE:LINE`` before an error about a model or a setting that a guard file declares.

    A model that the command line names gets the names of the guard file as a further hint where
    it may be a misspelt one.
    """
    try:
        yield
    except GuardFileError:
        raise
    except EvalguardError as error:
        if source.guard is not None and isinstance(error, _LOCATED_ERRORS):
            setting = _setting_at_fault(error, source.variant)
            where = source.guard.place(source.variant.name, setting)
            _prepend_text(error, f"{where}: ")
        error.hint = join_hints(source.misspelt, error.hint)  # a right name is the best of them
        raise


def _prepend_text(error: EvalguardError, text: str) -> None:
    if not str(error).startswith(text):
        error.args = (f"{text}{error}",)


def _setting_at_fault(error: EvalguardError, variant: Variant) -> str:
    """Return the name of the one setting that an error is about; "" if there is none."""
    names = [
        setting.name
        for setting in variant.settings
        if error.setting == setting.name or error.target == str(setting.target)
    ]
    return names[0] if len(names) == 1 else ""
