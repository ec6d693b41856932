"""What a user's Python file is made of: the modules it imports, the variables it reads."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from evalguard.conversion.digests import digest_path

# Calls that run or import what a text does not name, and calls that read files.
_RUNS = frozenset({"__import__", "eval", "exec", "import_module", "run_module", "run_path"})
_READS = frozenset(
    {
        "from_pretrained", "fromfile", "genfromtxt", "load", "load_dataset", "load_file", "loadtxt",
        "memmap", "open", "read_bytes", "read_csv", "read_parquet", "read_text", "safe_open",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What the result of running a Python file depends on, as far as texts tell.

    Attributes:
        files: the file, and the sources of every module that it imports and that is not installed,
            directly or through another one: beside it, on PYTHONPATH, of editable installs.
        packages: versions of the installed packages that these import, by module.
        variables: names of the environment variables that these read.
        unknown: what no text tells, each with its place: modules under computed names, variables
            likewise, files that are read.
    """

    files: tuple[Path, ...]
    packages: Mapping[str, str]
    variables: tuple[str, ...]
    unknown: tuple[str, ...]

    @property
    def digest(self) -> str:
        """Digest of all that is known, with the variables' values of now."""
        whole = hashlib.sha256()
        for file in self.files:
            whole.update(f"{file.name}\0{digest_path(file)}\n".encode())
        for name, version in sorted(self.packages.items()):
            whole.update(f"{name}=={version}\n".encode())
        for name in self.variables:
            whole.update(f"{name}={os.environ.get(name)!r}\n".encode())
        return whole.hexdigest()


def read_sources(file: Path, root: Path) -> Reading:
    """Read what a file depends on; nothing is executed.

    Args:
        root: the folder that its imports start at.
    """
    files: dict[Path, None] = {}
    packages: dict[str, str] = {}
    variables: dict[str, None] = {}
    unknown: dict[str, None] = {}
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
        names, doubts = _depends_on(tree)
        variables |= dict.fromkeys(names)
        unknown |= {f"{current.name}:{line} {what}": None for line, what in doubts}
        for name in _imported_names(current, base):
            local = list(_files_of(name, base))
            waiting += [(source, base) for _, source in local]
            if not local:
                waiting += _elsewhere(name, packages)
    return Reading(
        files=tuple(files),
        packages=packages,
        variables=tuple(sorted(variables)),
        unknown=tuple(unknown),
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
    places = list(spec.submodule_search_locations or ())
    found = Path(places[0]) if places else Path(spec.origin or "")
    if is_installed(found):
        packages[top] = _version(top)
        return
    if found.exists():
        yield from ((source, found.parent) for _, source in _files_of(name, found.parent))


def _version(module: str) -> str:
    try:
        names = metadata.packages_distributions().get(module) or [module]
        return metadata.version(names[0])
    except metadata.PackageNotFoundError:
        return ""


def _depends_on(tree: ast.AST) -> tuple[list[str], list[tuple[int, str]]]:
    """The variables that a text reads by name, and what it does not tell: (line, what)."""
    variables: list[str] = []
    doubts: list[tuple[int, str]] = []
    known: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and _called(node.value) == "environ":
            known.add(node.value)
            _variable(node.slice, node.lineno, variables, doubts)
        if not isinstance(node, ast.Call):
            continue
        name, first = _called(node.func), node.args[0] if node.args else None
        owner = node.func.value if isinstance(node.func, ast.Attribute) else None
        if name == "getenv" or (owner is not None and _called(owner) == "environ"):
            known |= {node.func, *([owner] if owner is not None else [])}
            _variable(first, node.lineno, variables, doubts)
        elif name in _RUNS:
            doubts.append((node.lineno, "runs or imports what its text does not name"))
        elif name in _READS:
            doubts.append((node.lineno, f"reads a file ({name})"))
    for node in ast.walk(tree):
        if node not in known and _called(node) in ("environ", "getenv"):
            doubts.append((getattr(node, "lineno", 0), "reads environment variables"))
    return variables, doubts


def _called(node: ast.AST) -> str:
    """The last part of a dotted name; "" for what is none."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _variable(
    node: ast.AST | None, line: int, variables: list[str], doubts: list[tuple[int, str]]
) -> None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        variables.append(node.value)
    else:
        doubts.append((line, "reads environment variables"))


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
