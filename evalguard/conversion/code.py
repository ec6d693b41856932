"""A user's function, named in a guard file as ``pkg.mod:function`` or ``FILE.py:function``."""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import importlib
import importlib.util
import inspect
import os
import sys
import sysconfig
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from types import ModuleType

from evalguard.conversion.digests import digest_path
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


# What a user's Python file is made of: the modules it imports, the variables it reads.


# Functions that run or import what a text does not name, and those that read files.
_RUNS = frozenset(
    {
        "CDLL", "LoadLibrary", "Popen", "SourceFileLoader", "__import__", "addsitedir",
        "check_call", "check_output", "exec_module", "get_class_from_dynamic_module", "get_kernel",
        "import_module", "load_inline", "load_library", "meta_path", "path_hooks", "popen",
        "run_module", "run_path", "spec_from_file_location",
    }
)  # fmt: skip
_RUNS_BARE = frozenset({"compile", "eval", "exec"})  # as methods they are others: model.eval()
_OF_MODULES = {"sys": {"path"}, "subprocess": {"call", "run"}, "os": {"system"}}
_READS = frozenset(
    {
        "as_file", "fdopen", "from_file", "from_pretrained", "fromfile", "genfromtxt", "get_data",
        "glob", "hf_hub_download", "iterdir", "listdir", "load", "load_dataset", "load_file",
        "load_from_disk", "load_state_dict_from_url", "loadmat", "loadtxt", "memmap", "open",
        "open_binary", "open_text", "rglob", "safe_open", "scandir", "snapshot_download",
        "urlopen", "urlretrieve",
    }
)  # fmt: skip
_ENVIRONMENT = frozenset({"environ", "environb", "getenv", "getenvb"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What the result of running a Python file depends on, as far as texts tell.

    Attributes:
        files: the file, and the sources of every module that it imports and that is not installed,
            directly or through another one: beside it, on PYTHONPATH, of editable installs.
        packages: versions of the installed packages that these import, by module.
        variables: environment variables that these read, each with its default there.
        unknown: what no text tells, each with its place: modules under computed names, variables
            likewise.
        reads: where these read files.
    """

    files: tuple[Path, ...]
    packages: Mapping[str, str]
    variables: Mapping[str, str | None]
    unknown: tuple[str, ...]
    reads: tuple[str, ...]

    @property
    def digest(self) -> str:
        """Digest of the texts, and of the versions of packages."""
        whole = hashlib.sha256()
        for file in self.files:
            whole.update(f"{file.name}\0{digest_path(file)}\n".encode())
        for name, version in sorted(self.packages.items()):
            whole.update(f"{name}=={version}\n".encode())
        return whole.hexdigest()

    @property
    def environment(self) -> str:
        """Digest of the variables' values of now, "" where none is read."""
        values = {name: os.environ.get(name, self.variables[name]) for name in self.variables}
        told = repr(sorted(values.items())).encode()
        return hashlib.sha256(told).hexdigest() if values else ""


@dataclass(slots=True)
class _Found:
    """What one text depends on: see ``Reading``; places are (line, what)."""

    imports: list[str] = field(default_factory=list)
    variables: dict[str, str | None] = field(default_factory=dict)
    written: set[str] = field(default_factory=set)
    unknown: list[tuple[int, str]] = field(default_factory=list)
    reads: list[tuple[int, str]] = field(default_factory=list)


def read_sources(file: Path, root: Path, *, handed: bool = False) -> Reading:
    """Read what a file depends on; nothing is executed.

    Args:
        root: the folder that its imports start at.
        handed: files under names that a function is handed are no reading: its caller digests them.
    """
    files: dict[Path, None] = {}
    packages: dict[str, str] = {}
    variables: dict[str, str | None] = {}
    unknown: dict[str, None] = {}
    reads: dict[str, None] = {}
    waiting = [(file, root)]
    while waiting:
        current, base = waiting.pop()
        place = current.resolve()
        if place in files:
            continue
        files[place] = None
        try:
            tree = ast.parse(current.read_bytes())
        except (OSError, SyntaxError, ValueError):  # whoever imports it will say so
            continue
        found = _depends_on(tree, handed)
        variables |= found.variables
        unknown |= {f"{current.name}:{line} {what}": None for line, what in found.unknown}
        reads |= {f"{current.name}:{line} {what}": None for line, what in found.reads}
        for name in (*_imported_names(current, base), *found.imports):
            local = list(_files_of(name, base))
            waiting += [(source, base) for _, source in local]
            if not local:
                waiting += _elsewhere(name, packages)
    return Reading(
        files=tuple(files),
        packages=packages,
        variables=variables,
        unknown=tuple(unknown),
        reads=tuple(reads),
    )


def is_installed(file: Path) -> bool:
    """Whether a file is of Python's library or of an installed package, editable ones not."""
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    places = [sysconfig.get_path(name) for name in names]
    installed = any(place and file.is_relative_to(place) for place in places)
    return installed or {"site-packages", "dist-packages"} & set(file.parts) != set()


def _elsewhere(name: str, packages: dict[str, str]) -> Iterator[tuple[Path, Path]]:
    """Sources of a module that lies elsewhere, with their root; an installed one is a version."""
    top = name.partition(".")[0]
    if not top or top in sys.stdlib_module_names or top in ("evalguard", "__main__"):
        return
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return
    if spec is None:
        return
    places = [Path(place) for place in spec.submodule_search_locations or ()]
    for found in places or ([Path(spec.origin)] if spec.origin else []):
        if is_installed(found):
            packages[top] = _source_version(top)
        elif found.is_file() and found.suffix != ".py":  # compiled
            yield found, found.parent
        else:
            yield from ((source, found.parent) for _, source in _files_of(name, found.parent))


@functools.cache
def _source_version(module: str) -> str:
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version(module)
    names = metadata.packages_distributions().get(module) or [""]  # reads every package: slow
    with contextlib.suppress(metadata.PackageNotFoundError, ValueError):
        return metadata.version(names[0])
    return ""


def _depends_on(tree: ast.AST, handed: bool) -> _Found:
    """What one text depends on; see ``read_sources``."""
    found = _Found()
    known: set[ast.AST] = set()
    called: set[ast.AST] = set()
    parameters = _parameters(tree) if handed else set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and _name(node.value) == "environ":
            known.add(node.value)
            _variable(node, node.slice, None, found)
        elif isinstance(node, ast.ImportFrom):
            named = {alias.name for alias in node.names}
            aliased = {alias.name for alias in node.names if alias.asname}
            if aliased & (_ENVIRONMENT | _RUNS) or named & _OF_MODULES.get(str(node.module), set()):
                found.unknown.append((node.lineno, _IMPORTS))
            found.reads += [(node.lineno, _reads(name)) for name in aliased if _is_read(name)]
        elif isinstance(node, ast.Call):
            called.add(node.func)
            owner = node.func.value if isinstance(node.func, ast.Attribute) else None
            name, first = _name(node.func), node.args[0] if node.args else None
            if name == "getenv" or (owner is not None and _name(owner) == "environ"):
                known |= {node.func, *([owner] if owner is not None else [])}
                _variable(node, first, node.args[1] if len(node.args) > 1 else None, found)
            elif name in ("import_module", "__import__") and _text(first) and len(node.args) == 1:
                known.add(node.func)
                found.imports.append(_text(first))
            elif _is_read(name) and not _writes(node) and not _is_handed(first, parameters):
                found.reads.append((node.lineno, _reads(name)))
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        name = _name(node) or _text(node)  # a text: getattr(os, "environ")
        if node in known or not name:
            continue
        if node not in called and _is_read(_name(node)):  # map(torch.load, files)
            found.reads.append((line, _reads(name)))
        if name in _ENVIRONMENT:
            found.unknown.append((line, _VARIABLES))
        elif name in _RUNS or name in _dangerous(node):
            found.unknown.append((line, _IMPORTS))
    for name in found.written & found.variables.keys():
        found.unknown.append((0, f"reads the variable {name}, which it sets"))
    return found


def _is_read(name: str) -> bool:
    """Whether a function of this name reads files; pandas alone has some twenty read_...."""
    return name in _READS or name.startswith("read_")


def _reads(name: str) -> str:
    return f"reads a file ({name})"


def _dangerous(node: ast.AST) -> Collection[str]:
    """Names that run or import something where they stand as this node does."""
    if isinstance(node, ast.Attribute):
        return _OF_MODULES.get(_name(node.value), ())
    return _RUNS_BARE if isinstance(node, ast.Name) else ()


_IMPORTS = "runs or imports what its text does not name"
_VARIABLES = "reads environment variables under names that its text does not tell"


def _name(node: ast.AST) -> str:
    """The last part of a dotted name; "" for what is none."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _text(node: ast.AST | None) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _variable(
    node: ast.Subscript | ast.Call, named: ast.AST | None, default: ast.AST | None, found: _Found
) -> None:
    """Note a variable that is read under a name in the text, or one that is only set."""
    name = _text(named)
    if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
        found.written.add(name)
    elif name:
        found.variables[name] = _text(default) or None
    else:
        found.unknown.append((node.lineno, _VARIABLES))


def _parameters(tree: ast.AST) -> set[str]:
    return {one.arg for node in ast.walk(tree) if isinstance(node, ast.arguments)
            for one in (*node.posonlyargs, *node.args, *node.kwonlyargs)}  # fmt: skip


def _is_handed(node: ast.AST | None, parameters: set[str]) -> bool:
    """Whether a file's name is a parameter, or an attribute of one: ``self.vocab_file``."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name) and node.id in parameters


def _writes(node: ast.Call) -> bool:
    """Whether a file is opened to be written."""
    modes = [*node.args[:2], *(k.value for k in node.keywords if k.arg == "mode")]
    return _name(node.func) == "open" and any(_text(m)[:1] in ("w", "a", "x") and len(_text(m)) < 4
                                              for m in modes)  # fmt: skip


def local_sources(file: Path, root: Path) -> dict[str, Path]:
    """Find every module under ``root`` that a file imports, directly or through another one.

    Import statements are read, wherever in the file they stand, and nothing is executed. A module
    that is imported under a name made at run time is not found.

    Returns:
        Dotted module name -> source file, without ``file`` itself.
    """
    found: dict[str, Path] = {}
    waiting = [file]
    seen = {file.resolve()}
    while waiting:
        current = waiting.pop()
        for name in _imported_names(current, root):
            for module, source in _files_of(name, root):
                if source.resolve() not in seen:
                    seen.add(source.resolve())
                    waiting.append(source)
                    found[module] = source
    return found


def _imported_names(file: Path, root: Path) -> Iterator[str]:
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):  # whoever imports it will say so
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = _package(file, root, node)
            if package is not None:
                # what is imported from a package may be a module of it
                yield from (f"{package}.{alias.name}".strip(".") for alias in node.names)


def _package(file: Path, root: Path, node: ast.ImportFrom) -> str | None:
    """Dotted name of what ``from ... import`` names; None if it leaves ``root``."""
    if not node.level:
        return node.module or ""
    folder = file.absolute().parent
    for _ in range(node.level - 1):
        folder = folder.parent
    if not folder.is_relative_to(root.absolute()):
        return None
    parts = folder.relative_to(root.absolute()).parts
    return ".".join([*parts, *((node.module or "").split("."))]).strip(".")


def _files_of(name: str, root: Path) -> Iterator[tuple[str, Path]]:
    """The files that importing a dotted name runs: its packages' and its own."""
    folder, parts = root, name.split(".")
    for depth, part in enumerate(parts, start=1):
        module = ".".join(parts[:depth])
        if (folder / part / "__init__.py").is_file():
            yield module, folder / part / "__init__.py"
        elif (folder / f"{part}.py").is_file():
            yield module, folder / f"{part}.py"
            return
        folder = folder / part
