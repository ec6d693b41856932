"""What ``.importlinter`` cannot say of the layers: libraries, names, and what loads nothing heavy.

The layers themselves are there, and ``lint-imports`` (in ``make lint``) holds the package to them.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from sample_run import SAMPLE

PACKAGE = Path(__file__).parent.parent / "evalguard"

# Rooms that only compute.
PURE = ("core", "stats", "bisect.search", "errors")

# Numbers, and what says of a value whether a schema or a pattern allows it.
CORE_MAY_IMPORT = {
    "numpy",
    "scipy",
    "jsonschema",
    "jsonschema_specifications",
    "referencing",
    "regex",
}
# The core sees no files, no clock, no environment, no processes, no hidden randomness.
CORE_MUST_NOT_IMPORT = {
    "asyncio", "datetime", "glob", "io", "logging", "multiprocessing", "os", "pathlib", "random",
    "shutil", "socket", "subprocess", "sys", "tempfile", "threading", "time",
}  # fmt: skip


@cache
def modules() -> tuple[tuple[str, ast.Module], ...]:
    """Every module with its name, parsed once for all tests."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found.append((name, ast.parse(path.read_text(encoding="utf-8"))))
    return tuple(found)


@cache
def imports_of(tree: ast.Module) -> tuple[str, ...]:
    return tuple(read_imports(tree))


def read_imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the layer"
            assert node.module is not None
            if node.module == "evalguard":
                yield from (f"evalguard.{alias.name}" for alias in node.names)
            else:
                yield node.module


def test_the_core_imports_only_what_computes() -> None:
    for name, tree in modules():
        if not name.startswith(tuple(f"evalguard.{room}" for room in PURE)):
            continue
        for target in imports_of(tree):
            head = target.split(".")[0]
            if head != "evalguard":
                allowed = head in CORE_MAY_IMPORT or head in sys.stdlib_module_names
                assert allowed, f"{name} imports {target}"
                assert head not in CORE_MUST_NOT_IMPORT, f"{name} imports {target}"


def test_a_folder_says_what_it_is_for() -> None:
    for folder in sorted({path.parent for path in PACKAGE.rglob("*.py")}):
        purpose = ast.get_docstring(ast.parse((folder / "__init__.py").read_text()))
        assert purpose, f"{folder.name}/__init__.py says nothing"


def test_no_private_name_crosses_files() -> None:
    for name, tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("evalguard"):
                private = [a.name for a in node.names if re.match(r"_[^_]", a.name)]
                assert not private, f"{name} imports {private} of {node.module}"


def test_no_two_test_files_have_one_name() -> None:
    """pytest imports them by it, so that the second of them could not be collected."""
    names = Counter(file.name for file in Path(__file__).parent.rglob("test_*.py"))
    assert [name for name, files in names.items() if files > 1] == []


def test_a_class_name_has_one_meaning() -> None:
    homes: dict[str, list[str]] = {}
    for name, tree in modules():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(name)
    assert not {name: where for name, where in homes.items() if len(where) > 1}


def test_one_executor_answers_units_and_nothing_fills_its_cache_ahead() -> None:
    gone = {
        "ActorScoring", "BlockScorer", "Evaluator", "FileBase", "LockstepScoring", "ScoredBlocks",
        "ReferenceScoring", "SingleModelScoring", "_FirstModel", "count_ahead", "score_ahead",
        "score_with_fallback",
    }  # fmt: skip
    for name, tree in modules():
        for node in ast.walk(tree):
            used = [getattr(node, what, None) for what in ("name", "id", "attr", "arg")]
            assert gone.isdisjoint(used), f"{name}: {used}"


def test_what_a_command_gives_is_a_result_of_its_report() -> None:
    """Whatever has both a JSON document and a screen."""
    for name, tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and name != "evalguard.core.result":
                says = {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
                of = {ast.unparse(base).partition("[")[0] for base in node.bases}
                assert not {"to_dict", "render"} <= says or "Result" in of, f"{name}.{node.name}"


def test_no_module_is_on_an_import_cycle() -> None:
    graph: dict[str, set[str]] = {}
    names = {name for name, _ in modules()}
    for name, tree in modules():
        edges = {t for t in imports_of(tree) if t in names} - {name}
        graph[name] = edges if name != "evalguard" else set()
    for start in graph:
        seen: set[str] = set()
        stack = list(graph[start])
        while stack:
            node = stack.pop()
            assert node != start, f"{start} is on an import cycle"
            if node not in seen:
                seen.add(node)
                stack.extend(graph.get(node, ()))


RUN = "import evalguard.cli\ntry: evalguard.cli.main([{}])\nexcept SystemExit: pass"
HEAVY = (
    "torch",
    "lm_eval",
    "transformers",
    "pandas",
    "datasets",
    "pyarrow",
    "scipy.stats",
    "scipy.optimize",
    "scipy.sparse",
    "wandb",
    "mlflow",
    "trackio",
)


@pytest.mark.parametrize(
    "statement",
    [
        "import evalguard",
        "import evalguard.comparison.compare",
        RUN.format("'--help'"),
        RUN.format("'compare', '--help'"),
        RUN.format("'plan', '--help'"),
        RUN.format("'schema'"),
        RUN.format("'models'"),
        RUN.format("'tensors', '--tolerances'"),
        RUN.format("'compare', '--base', 'no-such', '--cand', '/no/such/folder'"),
    ],
)
def test_these_load_neither_torch_nor_lm_eval(statement: str) -> None:
    assert_not_loaded(statement, HEAVY)


LIGHT = ("numpy", "pydantic", "evalguard.core.gate", "evalguard.core.compare_report")


@pytest.mark.parametrize("words", ["'--help'", "'no-such-command'"])
def test_no_command_is_imported_that_was_not_asked_for(words: str) -> None:
    commands = [f"evalguard.cli.{file.stem}" for file in (PACKAGE / "cli").glob("*_command*.py")]
    assert_not_loaded(RUN.format(words), (*commands, "evalguard.config.options", *LIGHT))


def test_a_mistyped_option_is_refused_without_numbers_and_without_models() -> None:
    assert_not_loaded(RUN.format("'compare', '--bas', 'a'"), LIGHT)


@pytest.mark.parametrize(
    ("command", "candidates"),
    [
        ("compare", ["./modle"]),
        ("compare", ["modle"]),
        ("compare", ["./modle.gguf"]),
        ("compare", ["vllm:./modle"]),
        ("compare", [str(PACKAGE.parent / "demo" / "model"), "./modle"]),
        ("bisect", ["./modle"]),
        ("trace", ["./modle"]),
    ],
)
def test_a_mistyped_model_is_refused_before_anything_heavy_is_loaded(
    command: str, candidates: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    words = [command, "--base", str(PACKAGE.parent / "demo" / "model")]
    words += [word for one in candidates for word in ("--cand", one)]
    code = f"import evalguard.cli\ntry: evalguard.cli.main({words!r})\nexcept SystemExit as end: "
    assert_not_loaded(f"{code}assert end.code == 2, end", HEAVY)


def test_finished_runs_are_shown_without_what_scores_and_compares() -> None:
    most = (*HEAVY, "scipy", "evalguard.comparison.ending", "evalguard.models.lm_scorer")
    assert_not_loaded(RUN.format(f"'report', {str(SAMPLE)!r}"), (*most, "pydantic"))
    # which guard file names the history is looked up
    assert_not_loaded(RUN.format("'history', 'list', '--history', 'no-such.sqlite'"), most)


def assert_not_loaded(statement: str, modules: tuple[str, ...]) -> None:
    code = (
        f"{statement}\nimport sys\n"
        f"loaded = [m for m in {modules!r} if m in sys.modules]\nassert not loaded, loaded"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
