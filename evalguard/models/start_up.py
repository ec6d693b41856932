"""Code that Python runs in every process before anything else, which may patch what scores."""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

from evalguard.core.settings import digest_of

_CUSTOM = ("sitecustomize", "usercustomize")


@functools.cache
def start_up_code() -> str:
    """Digest of what the ``site`` module runs: both customize modules, and lines of .pth files.

    With them count the modules that they import by name, but for Python's own; "" where there is
    nothing. What they reach in other ways is not seen.
    """
    lines = sorted(set(_import_lines()))
    found: dict[str, str] = {}
    for name in (*_CUSTOM, *_imported("\n".join(lines))):
        _collect(name, found)
    return digest_of([lines, sorted(found.items())]) if lines or found else ""


def _import_lines() -> Iterator[str]:
    """Lines of path files that are code: those that begin with an import, as ``site`` has it."""
    for place in sys.path:
        for file in sorted(Path(place).glob("*.pth")) if place else ():
            try:
                text = file.read_text(encoding="utf-8-sig", errors="replace")
            except OSError:
                continue
            yield from (one for one in text.splitlines() if one.startswith(("import ", "import\t")))


def _collect(name: str, found: dict[str, str]) -> None:
    """Digest a module, or all of a package, and what it imports in its turn."""
    if name in found or name in sys.stdlib_module_names or name == "evalguard":
        return
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return
    if spec is None or not spec.origin or not spec.origin.endswith(".py"):
        return
    origin = Path(spec.origin)
    folder = origin.parent if spec.submodule_search_locations else None
    try:
        texts = [
            f.read_bytes() for f in ([origin] if folder is None else sorted(folder.rglob("*.py")))
        ]
    except OSError:
        return
    found[name] = hashlib.sha256(b"\0".join(texts)).hexdigest()
    if (
        folder is None or name in _CUSTOM
    ):  # another package is a library, whose version and files stand elsewhere
        for inner in _imported(origin.read_text(encoding="utf-8", errors="replace")):
            _collect(inner, found)


def _imported(text: str) -> list[str]:
    """Names of modules, without what is in them, that a text imports anywhere in it."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return []
    named: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            named |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            named.add(node.module.partition(".")[0])
    return sorted(named)
