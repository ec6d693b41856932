"""What docstrings and CONTRIBUTING point at is there, and their examples come out as they say."""

from __future__ import annotations

import ast
import doctest
import importlib
import re
from collections.abc import Iterator
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


def docstrings() -> Iterator[tuple[Path, str, str]]:
    """Every docstring of the package, with its file and the name that it stands under."""
    for path in SOURCES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                text = ast.get_docstring(node)
                if text:
                    yield path, getattr(node, "name", "module"), text


def resolves(name: str) -> bool:
    """Whether a dotted name is a module, or something in one."""
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:cut]))
        except ImportError:
            continue
        for part in parts[cut:]:
            fields = getattr(found, "__dataclass_fields__", {})
            if not hasattr(found, part) and part not in fields:
                return False
            found = getattr(found, part, None)
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
