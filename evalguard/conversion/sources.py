"""The source files that a user's Python file is made of: itself and what it imports beside it."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from evalguard.conversion.digests import digest_path


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


def source_digest(file: Path, sources: Mapping[str, Path]) -> str:
    """Digest of a file and of the local modules it is made of.

    Raises:
        FileNotFoundError: there is no such file.
    """
    whole = hashlib.sha256(digest_path(file).encode())
    for name, source in sorted(sources.items()):
        whole.update(f"\n{name}\0{digest_path(source)}".encode())
    return whole.hexdigest()


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
