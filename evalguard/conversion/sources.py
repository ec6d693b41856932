"""What a user's Python file is made of: the modules it imports, the variables it reads."""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from evalguard.conversion.digests import digest_path

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
            packages[top] = _version(top)
        elif found.is_file() and found.suffix != ".py":  # compiled
            yield found, found.parent
        else:
            yield from ((source, found.parent) for _, source in _files_of(name, found.parent))


@functools.cache
def _version(module: str) -> str:
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
