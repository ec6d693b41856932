"""What docstrings and CONTRIBUTING point at is there, and their examples come out as they say."""

from __future__ import annotations

import ast
import doctest
import importlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "evalguard").rglob("*.py"))
FILES = {
    path.relative_to(ROOT).as_posix()
    for top in ("evalguard", "benchmarks", "tests", "demo", "docs")
    for path in (ROOT / top).rglob("*")
    if path.is_file() and "__pycache__" not in path.parts
}
# Files of users, of other packages and of models, that examples speak of.
OF_OTHERS = re.compile(
    r"^(FILE|train|build|convert|setup|sitecustomize|conf|hooks?|modeling\w*|my\w*|sets|custom\w*"
    r"|configuration\w*|generate|tokenization\w*|__init__|__main__|script|port|task|eval|run_\w+"
    r"|path/to/file|lm_eval/.*|tokenizer/rwkv_tokenizer)\.py$"
)
# A file of users, and what the fixture ``evalguard`` of pytest has.
NO_MODULES = {"evalguard.yaml", "evalguard.result"}


@cache
def docstrings() -> tuple[tuple[Path, str, str], ...]:
    """Every docstring of the package, with its file and the name that it stands under."""
    return tuple(read_docstrings())


def read_docstrings() -> Iterator[tuple[Path, str, str]]:
    for path in SOURCES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                text = ast.get_docstring(node)
                if text:
                    yield path, getattr(node, "name", "module"), text


@cache
def names_in(file: Path) -> dict[str, ast.AST]:
    """What a module's file, read and not imported, has under which names."""
    return names_of(ast.parse(file.read_text(encoding="utf-8")))


def names_of(node: ast.AST) -> dict[str, ast.AST]:
    """Names that a module or a class gives to something, nested statements included."""
    found: dict[str, ast.AST] = {}
    waiting = list(ast.iter_child_nodes(node))
    while waiting:
        one = waiting.pop()
        if isinstance(one, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            found[one.name] = one
            if one.name == "__init__":
                found |= {
                    part.attr: part
                    for part in ast.walk(one)
                    if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store)
                }
            continue
        if isinstance(one, (ast.Import, ast.ImportFrom)):
            found |= {(alias.asname or alias.name): one for alias in one.names}
        if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store):
            found[one.id] = one
        waiting += ast.iter_child_nodes(one)
    return found


def resolves(name: str) -> bool:
    """Whether a dotted name is a module, or something in one; nothing is imported for that."""
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        path = ROOT.joinpath(*parts[:cut])
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if not file.is_file():
            continue
        names: dict[str, ast.AST] = names_in(file)
        for part in parts[cut:]:
            if part not in names:
                return False
            names = names_of(names[part])
        return True
    return False


def is_there(mentioned: str) -> bool:
    return any(file == mentioned or file.endswith(f"/{mentioned}") for file in FILES)


def test_a_file_that_a_docstring_names_exists() -> None:
    missing = [
        f"{path.relative_to(ROOT)} {name}: {mentioned}"
        for path, name, text in docstrings()
        for mentioned in re.findall(r"(?<![\w./-])[\w][\w/]*\.py\b", text)
        if not OF_OTHERS.match(mentioned) and not is_there(mentioned)
    ]
    assert missing == []


def test_a_dotted_name_of_the_package_in_a_docstring_exists() -> None:
    missing = [
        f"{path.relative_to(ROOT)} {name}: {mentioned}"
        for path, name, text in docstrings()
        for mentioned in re.findall(r"``(evalguard(?:\.\w+)+)``|`~?(evalguard(?:\.\w+)+)`", text)
        if "".join(mentioned) not in NO_MODULES and not resolves("".join(mentioned))
    ]
    assert missing == []


def test_what_contributing_names_exists() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    paths = re.findall(r"`((?:evalguard|tests|benchmarks|docs|demo)/[\w./-]+)`", text)
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_what_contributing_says_is_in_a_file_is_there() -> None:
    """`room/file.py: name, other_name` of CONTRIBUTING, and `room/file.py` alone."""
    text = re.sub(r"```.*?```", "", (ROOT / "CONTRIBUTING.md").read_text("utf-8"), flags=re.S)
    missing = []
    told = re.findall(r"`((?:tests/)?\w[\w/]*\.(?:py|md))(?:: ([\w., ]+))?`", text)
    assert len(told) > 50
    for place, names in told:
        file = next((at for at in (ROOT / "evalguard" / place, ROOT / place) if at.is_file()), None)
        if file is None:
            missing += [] if "/" not in place and is_there(place) else [place]
            continue
        for name in filter(None, names.split(", ")):
            found: dict[str, ast.AST] = names_in(file)
            for part in name.split("."):
                missing += [] if part in found else [f"{place}: {name}"]
                found = names_of(found[part]) if part in found else {}
    assert missing == []


def test_a_table_or_formula_in_a_docstring_keeps_its_lines() -> None:
    """A reflow once turned tables into prose: three formulas in a row are one that lost its lines.

    An indented block is none of running text.
    """
    lost = [
        f"{path.relative_to(ROOT)}: {paragraph[:80]}"
        for path, _, text in docstrings()
        for paragraph in text.split("\n\n")
        if not re.search(r"^( {4}|- )", paragraph, re.M)
        and len(re.findall(r"\S = \S", paragraph)) >= 3
    ]
    assert lost == []


EXAMPLES = [path for path in SOURCES if ">>> " in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_an_example_of_a_docstring_comes_out_as_it_says(path: Path) -> None:
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    failed, tried = doctest.testmod(importlib.import_module(name))
    assert tried > 0
    assert failed == 0
