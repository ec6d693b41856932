"""Patches: functions of the libraries that compute a model, and that others have put there."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from pathlib import Path

import evalguard
from evalguard.conversion.code import is_installed
from evalguard.conversion.digests import digest_path
from evalguard.run.loading.task_code import reaching_task_code

_PATCHED = ("torch", "torch.nn.functional", "torch._tensor", "torch.nn.init")
_PATCHED_ROOMS = ("transformers.", "torch.nn.modules.", "lm_eval.models.", "lm_eval.api.")
_OWN = str(Path(evalguard.__file__).parent)


def list_patches() -> dict[str, str]:
    """Files whose code stands in for a library's own in this process -> their digests.

    Found are functions in the modules and classes of torch, transformers and lm-eval. (What Python
    imports at its start counts whole, see start_up.py.)
    """
    files: dict[str, None] = {}
    for name, module in list(sys.modules.items()):
        if name in _PATCHED or name.startswith(_PATCHED_ROOMS):
            files |= dict.fromkeys(_foreign_files(name, module))
    return {file: _digest(file) for file in sorted(files)}


def runs_other_code() -> str:
    """Code in this process that a checkpoint, a hook or a task has brought, "" if there is none.

    Of tasks, code that can reach models.
    """
    brought = ("transformers_modules.", "evalguard_user_")
    found = next((name for name in list(sys.modules) if name.startswith(brought)), "")
    return found or reaching_task_code()


def _foreign_files(name: str, module: object) -> Iterator[str]:
    if not isinstance(module, types.ModuleType):
        return
    for value in list(vars(module).values()):
        kind = type(value)
        if kind is types.FunctionType:
            if value.__code__.co_filename not in _known:
                yield from _unless_known(value.__code__.co_filename)
        elif isinstance(value, type) and value.__module__ == name:
            yield from _foreign_methods(value)


def _foreign_methods(owner: type) -> Iterator[str]:
    for value in list(vars(owner).values()):
        kind = type(value)
        if kind is staticmethod or kind is classmethod:
            value = value.__func__
        elif kind is property:
            value = value.fget
        if type(value) is types.FunctionType and value.__code__.co_filename not in _known:
            yield from _unless_known(value.__code__.co_filename)


_known: set[str] = set()


def _unless_known(file: str) -> Iterator[str]:
    """A file, unless it is Python's, an installed package's or evalguard's."""
    if file.startswith(("<", _OWN)) or is_installed(Path(file)):
        _known.add(file)
    else:
        yield file


def _digest(file: str) -> str:
    try:
        return digest_path(Path(file))
    except OSError:
        return ""
