"""Size of the package, and how much of it one comparison passes through.

    python -m benchmarks.structure

Counts files, lines, words of the docs, load-time imports and files with one importer; then runs one
comparison of the demo's models on few documents and counts the files and functions of the package
that were called, and the kinds of records (dataclasses) that were made.
"""

from __future__ import annotations

import ast
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import evalguard

PACKAGE = Path(evalguard.__file__).parent


def imported(tree: ast.Module, names: set[str]) -> Iterator[str]:
    """Yield the modules of the package that a module imports, wherever in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in names else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def measure_files() -> dict[str, Any]:
    """Lines of each file, and who imports it."""
    trees, lines = {}, {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        if parts[-1] == "__init__":
            continue
        text = path.read_text(encoding="utf-8")
        name = ".".join(parts)
        trees[name], lines[name] = ast.parse(text), text.count("\n")
    importers: Counter[str] = Counter()
    for name, tree in trees.items():
        importers.update(set(imported(tree, set(trees))) & trees.keys() - {name})
    largest = max(lines, key=lambda name: lines[name])
    return {
        "files (without __init__)": len(lines),
        "lines": sum(lines.values()),
        "lines of tests": count_lines("tests/**/*.py"),
        "lines of JSON": count_lines("evalguard/**/*.json"),
        "words of docs and README": count_words(),
        "largest": f"{largest}, {lines[largest]} lines",
        "median lines": statistics.median(lines.values()),
        "files with one importer": sum(1 for count in importers.values() if count == 1),
    }


def count_lines(pattern: str) -> int:
    """Lines of the checkout's files that match a pattern."""
    files = PACKAGE.parent.glob(pattern)
    return sum(path.read_text(encoding="utf-8").count("\n") for path in files)


def count_words() -> int:
    """Words of the README and of what stands in docs, made pages of the reference excepted."""
    pages = [PACKAGE.parent / "README.md", *(PACKAGE.parent / "docs").rglob("*.md")]
    written = [page for page in pages if page.parent.name != "reference"]
    return sum(len(page.read_text(encoding="utf-8").split()) for page in written)


def trace_comparison() -> dict[str, Any]:
    """One comparison of the demo's models, and the code of ours that it calls."""
    called: set[tuple[str, str, int]] = set()
    records: set[type] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call":
            return
        if code.co_filename.startswith(str(PACKAGE)):
            called.add((code.co_filename, code.co_qualname, code.co_firstlineno))
        elif code.co_name == "__init__" and code.co_filename == "<string>":
            made = type(frame.f_locals[code.co_varnames[0]])  # a dataclass, as Python made it
            if made.__module__.startswith("evalguard."):
                records.add(made)

    from evalguard.cli.main import main
    from evalguard.comparison.listing import find_demo_guard

    with tempfile.TemporaryDirectory() as folder:
        words = [
            "compare",
            "--config",
            str(find_demo_guard()),
            "--base",
            "orig",
            "--cand",
            "fla-port",
        ]
        words += ["--limit", "64", "--no-cache", "--bisect", "never", "--output-path", folder]
        sys.setprofile(note)
        try:
            main(words)
        except SystemExit:
            pass
        finally:
            sys.setprofile(None)
    functions = {one for one in called if one[1] != "<module>"}
    return {
        "files of ours with a function called": len({file for file, _, _ in functions}),
        "functions of ours called": len(functions),
        "kinds of records made": len(records),
        "modules of ours imported": sum(name.startswith("evalguard.") for name in sys.modules),
    }


def count_imports(statement: str) -> int:
    """Modules of the package that are loaded by a statement in a fresh interpreter."""
    code = f"import sys\n{statement}\nprint(sum(m.startswith('evalguard.') for m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return int(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    rows = measure_files()
    rows["modules of ours for import evalguard"] = count_imports("import evalguard")
    rows |= trace_comparison()
    print()
    for what, value in rows.items():
        print(f"{what:45s} {value}")
