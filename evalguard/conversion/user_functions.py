"""Code of the user's: functions in files, and what it is declared to read.

It runs in a process of its own, so that what it imports is what lies there now.
"""

from __future__ import annotations

import csv
import functools
import hashlib
import importlib
import importlib.util
import inspect
import os
import sys
import sysconfig
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType

from evalguard.conversion.observed_reads import digest_content
from evalguard.core.settings import Variant
from evalguard.errors import SettingError, UsageError, nearest
from evalguard.start_up import list_start_up_files


def load_function(where: str, *, folder: str, allowed: bool) -> Callable[..., object]:
    """Import the module or file and return its function.

    The folder that holds a file is searched after everything that is installed, and so is the guard
    file's for a module. The current folder is searched where Python itself does so only.

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
            target=f"call:{where}",
        )
    # Python takes a compiled file for current if whole seconds and size are equal: none is left
    # behind for a later run, also of modules that the function imports when it is called.
    sys.dont_write_bytecode = True
    path, _, name = where.rpartition(":")
    load = _from_file if path.endswith(".py") else _from_name
    module = load(path, folder, where)
    function = getattr(module, name, None)
    if not callable(function):
        functions = [n for n, value in vars(module).items() if inspect.isfunction(value)]
        raise SettingError(
            f"'{where}': {path} has no function '{name}'{nearest(name, functions)}",
            hint=f"it defines: {', '.join(functions) or 'no functions'}",
            target=f"call:{where}",
        )
    return function  # type: ignore[no-any-return]


def is_installed(file: Path) -> bool:
    """Whether a file is of Python's library or of an installed package, editable ones not.

    ``pip install --target``, layers of cloud functions and zipped environments put packages into
    folders of any name; there a package is what the RECORD of its ``.dist-info`` lists.
    """
    path = str(file)
    if path.startswith(_INSTALLED) or any(part in path for part in _SITE_PARTS):
        return True
    for entry in filter(None, sys.path):
        folder = os.path.join(os.path.abspath(entry), "")
        if path.startswith(folder):
            top = path[len(folder) :].partition(os.sep)[0]
            if top in _recorded_names(folder):
                return True
    return False


_SITE_PARTS = ("/site-packages/", "/dist-packages/")
_INSTALLED = tuple(
    root + os.sep
    for name in ("stdlib", "platstdlib", "purelib", "platlib")
    for path in [sysconfig.get_path(name)]
    for root in {path, os.path.realpath(path)}
)


@functools.lru_cache(maxsize=256)
def _recorded_names(folder: str) -> frozenset[str]:
    """Names in a folder that belong to packages which an installer put there."""
    names: set[str] = set()
    try:
        inside = [name for name in os.listdir(folder) if name.endswith(".dist-info")]
    except OSError:
        return frozenset()
    for name in inside:
        try:
            with open(os.path.join(folder, name, "RECORD"), encoding="utf-8", newline="") as file:
                rows = [row[0] for row in csv.reader(file) if row]
        except (OSError, ValueError, csv.Error):
            continue
        names.update(row.partition("/")[0] for row in rows if not os.path.isabs(row))
    return frozenset(names - {"..", "", "__pycache__"})


def code_places(where: str, folder: str) -> list[Path]:
    """Folders and files that a function's code lies in, as ``load_function`` finds it."""
    path = where.rpartition(":")[0]
    if path.endswith(".py"):
        return [Path(folder, path).resolve().parent]
    top = path.partition(".")[0]
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        spec = None
    if spec is not None and spec.submodule_search_locations:
        return [Path(location) for location in spec.submodule_search_locations]
    if spec is not None and spec.origin and Path(spec.origin).is_file():
        file = Path(spec.origin)
        return [file if is_installed(file) else file.parent]
    package = Path(folder, top)
    return [package if package.is_dir() else Path(folder)]


def _from_name(module: str, folder: str, where: str) -> ModuleType:
    path = Path(folder, *module.split("."))
    files = (path / "__init__.py", path.with_name(f"{path.name}.py"))
    if folder and any(file.is_file() for file in files):
        _make_importable(Path(folder).resolve())
    try:
        return importlib.import_module(module)
    except (Exception, SystemExit) as error:
        raise SettingError(
            f"'{where}': cannot import {module}: {type(error).__name__}: {error}",
            hint=_where_it_is_looked_for(folder),
            target=f"call:{where}",
        ) from error


def _where_it_is_looked_for(folder: str) -> str:
    places = "where Python finds what is installed"
    if folder:
        places += f", then beside the guard file, in {folder}"
    return (
        f"a module is looked for {places}; PYTHONPATH=FOLDER adds a folder, and a file is written "
        "with its suffix, from the guard file on: call:path/to/file.py:function"
    )


def _from_file(path: str, folder: str, where: str) -> ModuleType:
    file = Path(folder, path).resolve()
    if not file.is_file():
        raise SettingError(
            f"'{where}': there is no file {file}",
            hint="files are looked up relative to the guard file",
            target=f"call:{where}",
        )
    name = "evalguard_user_" + hashlib.sha256(str(file).encode()).hexdigest()
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise SettingError(
            f"'{where}': {file} cannot be imported as Python", target=f"call:{where}"
        )
    module = importlib.util.module_from_spec(spec)
    _make_importable(file.parent)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise SettingError(
            f"'{where}': {file} fails to import: {type(error).__name__}: {error}",
            target=f"call:{where}",
        ) from error
    return module


def _make_importable(folder: Path) -> None:
    """Let a file import its neighbours, as a script does, but never in place of a library.

    The folder stays on the path: what a hook puts into a model may import when the model runs. A
    model with hooks has a process of its own, which ends with it.
    """
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def digest_inputs(variant: Variant) -> dict[str, str]:
    """Digests of a variant's ``inputs``.

    Raises:
        UsageError: one is not there, or cannot be read.
    """
    digests = {}
    for name, path in (variant.inputs or {}).items():
        try:
            digests[f"input {name}"] = digest_content(Path(path))
        except OSError as error:
            raise UsageError(
                f"'{variant.name}': inputs names {name}, which cannot be read: {path}: "
                f"{error.strerror or 'there is nothing'}",
                hint="inputs are the files and folders that its code reads; a relative path starts "
                "at the guard file",
            ) from error
    return digests


def digest_code_at(places: Iterable[Path]) -> dict[str, str]:
    """Digests of code by its folders, with what Python starts by itself and finds on PYTHONPATH."""
    named = [Path(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    every = dict.fromkeys([*places, *map(Path, list_start_up_files()), *named])
    # Packages count by themselves.
    own = [
        path for path in every if path.is_file() or (path.is_dir() and not is_installed(path / "x"))
    ]
    return {f"code {n} {path.name}": digest_content(path, code=True) for n, path in enumerate(own)}
