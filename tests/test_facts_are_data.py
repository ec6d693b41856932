"""Nothing is decided by reading a sentence: what differs in kind has a kind."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import evalguard

ROOT = Path(evalguard.__file__).parent
ROOMS = (
    "answers", "bisect", "comparison", "config", "core", "distributions", "engine", "floors",
    "nights", "page", "planning", "publish", "report", "several", "stats", "tensors", "tracing",
)  # fmt: skip
CUTS = {
    "startswith", "endswith", "removeprefix", "removesuffix", "partition", "rpartition", "split",
    "rsplit", "index", "find", "replace",
}  # fmt: skip
MATCHES = {"search", "match", "fullmatch", "sub", "findall", "finditer"}
PLAIN = {"lower", "casefold", "strip", "lstrip", "rstrip"}
# What a value is called that holds a sentence, or an error.
SENTENCES = re.compile(
    "(^|_)(reason|message|note|caveat|remark|sentence|hint|operation|difference|failure|said|lead|"
    "headline|verdict|finding|legend|influence|where|why|cause|description|answer|error)$"
)
PROSE = re.compile(r"[A-Za-z]{2,} [A-Za-z]|[a-z]: |^ [a-z]{3,}|[a-z]{3,} $")

NULL_OF_0_1 = "(?P<name>.*) (?P<said>), so it is null here"

# Why a text may be searched for words: whose it is.
ALLOWED = {
    ("config/guard_document.py", r"'\t' that cannot start"): "the YAML reader's",
    ("tensors/damaged_rows.py", "rows "): "a name of a fault",
    ("tensors/damaged_rows.py", "blocks "): "a name of a fault",
    ("tensors/damaged_rows.py", "heads "): "a name of a fault",
    ("tensors/damaged_rows.py", "zero points "): "a name of a fault",
    ("nights/history/database.py", "not a database"): "SQLite's",
    ("nights/history/database.py", "unable to open"): "SQLite's",
    ("nights/history/database.py", "disk I/O"): "SQLite's",
    ("publish/__main__.py", " Consider increasing the init_timeout"): "wandb's",
    ("report/record_documents.py", NULL_OF_0_1): "documents before non_finite",
    ("report/record_schema.py", " No part of a report's equality."): "a docstring",
}


# The same of searches in what has the name of a sentence, by file and source.
SEARCHED = {
    (
        "config/guard_document.py",
        ast.unparse(ast.parse(r"""'\'\\t\' that cannot start' in message""")),
    ): ("the YAML reader's"),
    ("nights/history/database.py", "'full' in message"): "SQLite's",
    ("nights/history/database.py", "'not a database' in message"): "SQLite's",
    ("nights/history/database.py", "'malformed' in message"): "SQLite's",
    ("nights/history/database.py", "'readonly' in message"): "SQLite's",
    ("nights/history/database.py", "'unable to open' in message"): "SQLite's",
    ("nights/history/database.py", "'disk I/O' in message"): "SQLite's",
    ("nights/history/database.py", "word in str(error)"): "SQLite's",
    ("engine/error_places.py", "str(error).startswith(text)"): "one place twice, from a worker too",
    ("publish/forges.py", "message.split('\\n', 1)"): "the first line of any error",
}


def text_matches(tree: ast.AST, known: dict[str, str]) -> Iterator[tuple[int, str]]:
    """Yield line and text of whatever looks for words in a text."""
    for node in ast.walk(tree):
        sought: list[ast.expr] = []
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            of_re = isinstance(node.func.value, ast.Name) and node.func.value.id == "re"
            sought = node.args[:1] if of_re or node.func.attr in CUTS else []
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
            among = isinstance(node.comparators[0], ast.Tuple | ast.List | ast.Set)
            sought = [] if among else [node.left]
        for one in sought:
            for text in texts_of(one, known):
                if PROSE.search(text):
                    yield node.lineno, text


def texts_of(node: ast.expr, known: dict[str, str]) -> Iterator[str]:
    """Yield the texts that an expression is made of, module constants among them."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.Name) and node.id in known:
        yield known[node.id]
    elif isinstance(node, ast.Tuple):
        for one in node.elts:
            yield from texts_of(one, known)
    elif isinstance(node, ast.JoinedStr):
        yield "".join(
            str(one.value) if isinstance(one, ast.Constant) else "" for one in node.values
        )


def sought_in(node: ast.expr) -> str:
    """Return the name of what is searched: of ``one.reason``, ``reasons[0]``, ``str(error)``."""
    if isinstance(node, ast.Call):
        of = node.func
        if isinstance(of, ast.Name) and of.id in ("str", "printable") and node.args:
            return sought_in(node.args[0])
        return sought_in(of.value) if isinstance(of, ast.Attribute) and of.attr in PLAIN else ""
    if isinstance(node, ast.Subscript):
        return sought_in(node.value)
    return getattr(node, "id", "") or getattr(node, "attr", "")


def sentence_matches(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and source of whatever searches a value with the name of a sentence."""
    for node in ast.walk(tree):
        inside: ast.expr | None = None
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in CUTS - {"replace"} and node.args:
                inside = node.func.value
            elif node.func.attr in MATCHES and node.args:
                inside = node.args[-1]
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
            inside = node.comparators[0]
        if inside is not None and SENTENCES.search(sought_in(inside)):
            yield node.lineno, ast.unparse(node)


def constants(trees: dict[Path, ast.Module]) -> dict[str, str]:
    """Return the texts that modules have names for; names are looked up in all of them."""
    return {
        target.id: node.value.value
        for tree in trees.values()
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def test_no_text_of_this_package_is_searched_for_words() -> None:
    trees = {
        file: ast.parse(file.read_text(encoding="utf-8"))
        for room in ROOMS
        for file in sorted((ROOT / room).rglob("*.py"))
    }
    known = constants(trees)
    found = {
        (file.relative_to(ROOT).as_posix(), text): line
        for file, tree in trees.items()
        for line, text in text_matches(tree, known)
    }
    new = sorted(found.keys() - ALLOWED.keys())
    assert [f"{file}:{found[file, text]}: {text!r}" for file, text in new] == []
    assert ALLOWED.keys() - found.keys() == set(), "allowed, and no longer there"


def test_nothing_that_has_the_name_of_a_sentence_is_searched() -> None:
    found = {
        (file.relative_to(ROOT).as_posix(), source): line
        for room in ROOMS
        for file in sorted((ROOT / room).rglob("*.py"))
        for line, source in sentence_matches(ast.parse(file.read_text(encoding="utf-8")))
    }
    new = sorted(found.keys() - SEARCHED.keys())
    assert [f"{file}:{found[file, source]}: {source}" for file, source in new] == []
    assert SEARCHED.keys() - found.keys() == set(), "allowed, and no longer there"


def test_the_search_sees_what_it_is_for() -> None:
    caught = [
        'note.startswith("this run is not in")',
        '"interrupted while" in reason',
        're.search(r"so it is null", caveat)',
        'text.removesuffix(" sigma")',
        'reason.removeprefix("not known: ")',
        "note.startswith(SAID)",
        'message.removeprefix(f"{task} gives no number: ")',
    ]
    free = ['name.startswith("layers.")', '"," in text', 'kind in ("stored run", "model")']
    known = {"SAID": "shared prefixes are read again"}
    assert [one for one in caught if not list(text_matches(ast.parse(one), known))] == []
    assert [one for one in free if list(text_matches(ast.parse(one), known))] == []


def test_the_search_of_sentences_sees_what_it_is_for() -> None:
    caught = [
        'reason.startswith("interrupted")',
        '"memory" in str(error).lower()',
        'str(error).partition("\\n")[0]',
        "view.influence.endswith(metric.text)",
        '_CLASS.sub("", one.operation)',
        'one.where.split(", ")',
        "limit.found not in view.verdict",
    ]
    free = ['name.startswith("layers")', "one.kind in kinds", "note in candidate.notes"]
    assert [one for one in caught if not list(sentence_matches(ast.parse(one)))] == []
    assert [one for one in free if list(sentence_matches(ast.parse(one)))] == []
