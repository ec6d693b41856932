"""A user's function, named in a guard file as ``pkg.mod:function`` or ``FILE.py:function``."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from evalguard.conversion.digests import digest_path
from evalguard.errors import SettingError, UsageError, nearest


def load_function(where: str, *, folder: str, allowed: bool) -> Callable[..., object]:
    """Import the module or file and return its function.

    Args:
        where: ``pkg.mod:function``, or ``path/to/file.py:function`` relative to ``folder``.
        folder: the folder of the guard file; "" where the user named no file.
        allowed: whether the user allowed code from this guard file to run; without it nothing is
            imported.

    Raises:
        UsageError: code is not allowed.
        SettingError: no such file, module or function, or it fails to import.
    """
    if not allowed:
        raise UsageError(
            f"'{where}' is code, and code from this guard file is not allowed to run",
            hint="name the guard file with --config and allow code, if you trust it",
        )
    path, _, name = where.rpartition(":")
    module = _from_file(path, folder, where) if path.endswith(".py") else _from_name(path, where)
    function = getattr(module, name, None)
    if not callable(function):
        functions = [n for n, value in vars(module).items() if inspect.isfunction(value)]
        raise SettingError(
            f"'{where}': {path} has no function '{name}'{nearest(name, functions)}",
            hint=f"it defines: {', '.join(functions) or 'no functions'}",
        )
    return function  # type: ignore[no-any-return]


def code_digest(where: str, *, folder: str) -> str:
    """Digest of the file that holds a function; "" for a module without a source file."""
    path = where.rpartition(":")[0]
    if path.endswith(".py"):
        return digest_path(Path(folder, path))
    try:
        spec = importlib.util.find_spec(path)
    except ImportError:
        spec = None
    if spec is None or not spec.origin or not Path(spec.origin).is_file():
        return ""
    return digest_path(Path(spec.origin))


def _from_name(module: str, where: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except (Exception, SystemExit) as error:
        raise SettingError(
            f"'{where}': cannot import {module}: {type(error).__name__}: {error}",
            hint="a file is written with its suffix: call:path/to/file.py:function",
        ) from error


def _from_file(path: str, folder: str, where: str) -> ModuleType:
    file = Path(folder, path).resolve()
    if not file.is_file():
        raise SettingError(
            f"'{where}': there is no file {file}",
            hint="files are looked up relative to the guard file",
        )
    # One module per path and content: an edited file is imported anew.
    name = "evalguard_user_" + hashlib.sha256(str(file).encode() + file.read_bytes()).hexdigest()
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise SettingError(f"'{where}': {file} cannot be imported as Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise SettingError(
            f"'{where}': {file} fails to import: {type(error).__name__}: {error}"
        ) from error
    return module
