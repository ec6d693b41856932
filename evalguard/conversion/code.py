"""A user's function, named in a guard file as ``pkg.mod:function`` or ``FILE.py:function``."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from types import ModuleType

from evalguard.conversion.digests import digest_path
from evalguard.conversion.sources import Reading, is_installed, local_sources, read_sources
from evalguard.errors import SettingError, UsageError, nearest

# module name -> (source file, its digest when it was imported), of modules beside users' files
_imported: dict[str, tuple[Path, str]] = {}
# searched only because hooks lie there
_user_folders: set[Path] = set()


def load_function(where: str, *, folder: str, allowed: bool) -> Callable[..., object]:
    """Import the module or file and return its function.

    A file is imported anew when it or a module beside it that it imports was edited; the folder
    that holds it is searched after everything that is installed, and so is the guard file's for a
    module. The current folder is searched where Python itself does so only.

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
    # Python takes a compiled file for current if whole seconds and size are equal: an edit right
    # after a run would go unseen while the digest already counts it. So none is left behind, also
    # of modules that the function imports when it is called.
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
        )
    return function  # type: ignore[no-any-return]


def code_digest(where: str, *, folder: str) -> str:
    """Digest of the source behind a function: its file, and what that imports; see ``read_code``.

    An installed package counts by the function's file and the package's version. "" for a module
    without a source file, and for a file that is not there, which is refused when the function is
    called.
    """
    found = read_code(where, folder=folder)
    if found is not None:
        return found.digest
    path = where.rpartition(":")[0]
    file = None if path.endswith(".py") else _module_file(path, folder)
    return "" if file is None else f"{digest_path(file)} {_version(path)}".strip()


def read_code(where: str, *, folder: str) -> Reading | None:
    """Read what a function of a user depends on; None for an installed or a missing one."""
    path = where.rpartition(":")[0]
    if path.endswith(".py"):
        file = Path(folder, path)
        return read_sources(file, file.parent) if file.is_file() else None
    found = _module_file(path, folder)
    if found is None or is_installed(found):
        return None
    depth = len(path.split(".")) - (found.name != "__init__.py")
    return read_sources(found, found.parents[depth])


def _module_file(module: str, folder: str) -> Path | None:
    beside = _file_below(folder, module)
    if beside is not None and not _is_elsewhere(module.partition(".")[0]):
        return beside
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None
    if spec is None or not spec.origin or not Path(spec.origin).is_file():
        return None
    return Path(spec.origin)


def _file_below(folder: str, module: str) -> Path | None:
    """The file of a module below the guard file's folder; nothing is imported to find it."""
    path = Path(folder, *module.split("."))
    files = (path / "__init__.py", path.with_name(f"{path.name}.py"))
    return next((file for file in files if folder and file.is_file()), None)


def _is_elsewhere(top: str) -> bool:
    """Whether Python finds a module of this name by itself, a mere folder not counted."""
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):  # it is being imported, or stands in for one
        return True
    if spec is None or spec.origin is None:
        return False
    return not any(Path(spec.origin).is_relative_to(folder) for folder in _user_folders)


def _module_sources(module: str, file: Path) -> dict[str, Path]:
    depth = len(module.split(".")) - (file.name != "__init__.py")
    return local_sources(file, file.parents[depth])


def _version(module: str) -> str:
    try:
        return metadata.version(module.partition(".")[0])
    except metadata.PackageNotFoundError:
        return ""


def _from_name(module: str, folder: str, where: str) -> ModuleType:
    if _file_below(folder, module) is not None:
        _make_importable(Path(folder).resolve())
    file = _module_file(module, folder) if module in sys.modules else None
    if file is not None and not is_installed(file):
        _forget_edited({module: file, **_module_sources(module, file)}, where)
    try:
        imported = importlib.import_module(module)
    except (Exception, SystemExit) as error:
        raise SettingError(
            f"'{where}': cannot import {module}: {type(error).__name__}: {error}",
            hint=_where_it_is_looked_for(folder),
        ) from error
    file = _module_file(module, folder)
    if file is not None and not is_installed(file):
        _remember({module: file, **_module_sources(module, file)})
    return imported


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
        )
    # One module per path and content: an edited file is imported anew.
    sources = local_sources(file, file.parent)
    content = f"{file}\0{read_sources(file, file.parent).digest}"
    name = "evalguard_user_" + hashlib.sha256(content.encode()).hexdigest()
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise SettingError(f"'{where}': {file} cannot be imported as Python")
    module = importlib.util.module_from_spec(spec)
    _forget_edited(sources, where)
    _make_importable(file.parent)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise SettingError(
            f"'{where}': {file} fails to import: {type(error).__name__}: {error}"
        ) from error
    _remember(sources)
    return module


def _make_importable(folder: Path) -> None:
    """Let a file import its neighbours, as a script does, but never in place of a library.

    The folder stays on the path: what a hook puts into a model may import when the model runs. A
    model with hooks has a process of its own, which ends with it.
    """
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
        _user_folders.add(folder)


def _forget_edited(sources: Mapping[str, Path], where: str) -> None:
    """Drop modules that were imported before one of them was edited, so that the new text runs."""
    known = {name: _imported[name] for name in sources if name in _imported.keys() & sys.modules}
    for name, (file, _) in known.items():
        if file != sources[name].resolve():
            raise SettingError(
                f"'{where}' imports '{name}' from {sources[name]}, but {file} was imported under "
                "that name for another hook",
                hint="rename one of the two files",
            )
    if any(digest != digest_path(file) for file, digest in known.values()):
        for name in known:  # all of them: one may hold what it took from another
            sys.modules.pop(name, None)


def _remember(sources: Mapping[str, Path]) -> None:
    for name, file in sources.items():
        loaded = getattr(sys.modules.get(name), "__file__", None)
        if loaded is None or Path(loaded).resolve() == file.resolve():
            _imported[name] = (file.resolve(), digest_path(file))
