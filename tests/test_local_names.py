"""A local has the name of what it holds."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "evalguard"
# Words that name nothing.
WORDS = {
    "found", "kept", "more", "one", "ones", "other", "others", "place", "said", "told",
}  # fmt: skip
# File -> words that say there what is meant: a domain's own word, a pair, a key of a document.
MEANT = {
    "answers/figure_tables.py": {"others"},  # the field of that name
    "bisect/settings/quantised_modules.py": {"place"},  # WeightPlace
    "bisect/settings/weight_causes.py": {"place"},
    "bisect/settings/weight_names.py": {"place"},
    "bisect/settings/weight_settings.py": {"place"},
    "planning/repeat_plan.py": {"more"},  # and fewer documents
    "stats/sequential_evidence.py": {"more"},
    "store/answer_table.py": {"others"},  # a column of that name
}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def locals_of(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and name of what functions bind; of parameters those of lambdas only."""
    for function in ast.walk(tree):
        if isinstance(function, ast.Lambda):
            yield from ((parameter.lineno, parameter.arg) for parameter in function.args.args)
        elif isinstance(function, _FUNCTIONS):
            signature = function.args
            every = (*signature.posonlyargs, *signature.args, *signature.kwonlyargs)
            parameters = {parameter.arg for parameter in every}
            yield from (
                (name.lineno, name.id) for name in bound_in(function) if name.id not in parameters
            )


def bound_in(node: ast.AST) -> Iterator[ast.Name]:
    """Names that a function binds itself, and none inside it."""
    for inner in ast.iter_child_nodes(node):
        if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
            yield inner
        if not isinstance(inner, (*_FUNCTIONS, ast.ClassDef)):
            yield from bound_in(inner)


def test_no_local_has_a_name_that_names_nothing() -> None:
    files = {file.relative_to(PACKAGE).as_posix(): file for file in sorted(PACKAGE.rglob("*.py"))}
    unnamed = {
        f"{path}:{line} {name}"
        for path, file in files.items()
        for line, name in locals_of(ast.parse(file.read_text("utf-8")))
        if name in WORDS - MEANT.get(path, set())
    }
    assert not unnamed


def test_every_word_that_is_meant_is_still_there() -> None:
    for file, words in MEANT.items():
        tree = ast.parse((PACKAGE / file).read_text("utf-8"))
        assert words <= {name for _, name in locals_of(tree)}, file
