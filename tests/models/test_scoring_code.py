"""evalguard's own code in a score's identity: all that makes scores, and nothing else."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

import pytest

import evalguard
from evalguard.core.settings import digest_of
from evalguard.models.identity import ScoreIdentity
from evalguard.models.runtimes.types import RUNTIME_TYPES
from evalguard.models.scoring_code import (
    LEFT_OUT,
    SCORING,
    digest_scoring_files,
    is_left_out,
    scoring_files,
)

PACKAGE = Path(evalguard.__file__).parent

# Where scoring begins: a worker, a model loaded here, a server, and what a task asks.
ROOTS = (
    "engine/worker_main.py", "engine/loading/lazy_scorer.py", "engine/loading/scorer_opening.py",
    "engine/loading/serving.py", "harness/scored_answers.py", "harness/requests.py",
    "harness/score_tables.py", "harness/tasks.py", "worker/supervisor.py",
    *(f"models/runtimes/{kind.module}.py" for kind in RUNTIME_TYPES.values()),
)  # fmt: skip


def file_of(module: str) -> Path | None:
    inner = Path(*module.split(".")[1:])
    for file in (inner.with_suffix(".py") if inner.parts else inner, inner / "__init__.py"):
        if (PACKAGE / file).is_file():
            return file
    return None


def imports_of(node: ast.AST) -> Iterator[str]:
    """Modules that run when this is run, lazy imports too; not those of annotations."""
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module is not None:
        yield node.module
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    for inner in ast.iter_child_nodes(node):
        yield from imports_of(inner)


def import_closure() -> set[Path]:
    """All files that scoring imports, as far as none of ``LEFT_OUT`` stands between."""
    found: set[Path] = set()
    left = [Path(root) for root in ROOTS]
    while left:
        file = left.pop()
        if file in found or is_left_out(file):
            continue
        found.add(file)
        for name in set(imports_of(ast.parse((PACKAGE / file).read_text()))):
            parts = name.split(".")
            if parts[0] == "evalguard":
                above = [file_of(".".join(parts[:n])) for n in range(1, len(parts) + 1)]
                left += [one for one in above if one is not None]
    return found


def test_the_digest_covers_what_scoring_imports_and_nothing_else() -> None:
    closure, covered = import_closure(), set(scoring_files())
    assert closure - covered == set(), "name them in SCORING, or break the import"
    assert covered - closure == set(), "nothing that scores imports them: LEFT_OUT says why"


def test_every_entry_of_both_lists_is_there() -> None:
    for place in (*SCORING, *LEFT_OUT):
        assert (PACKAGE / place).exists(), place


# Runs in a process of its own; prints the files whose functions ran while a model answered.
WATCH = """
import json, sys
from pathlib import Path

folder, kind, package = sys.argv[1], sys.argv[2], sys.argv[3]
ran = set()

def watch(frame, event, _):
    code = frame.f_code
    if event == "call" and code.co_name != "<module>" and code.co_filename.startswith(package):
        if "__module__" not in code.co_names or "__qualname__" not in code.co_names:
            ran.add(code.co_filename[len(package) + 1 :])  # a class's body is not a call

from evalguard.core.scorer import Request, ScoringPolicy
from evalguard.core.settings import Variant
from evalguard.engine.loading.load_scorer import load_scorer
from evalguard.engine.loading.runtime_in_worker import load_runtime_scorer

sys.setprofile(watch)
variant = Variant(name="m", model=kind, model_args={"pretrained": folder, "dtype": "float32"})
policy = ScoringPolicy(device="cpu", threads=1, token_budget=512)
if kind == "transformers":
    scorer = load_runtime_scorer(variant, policy)
else:
    scorer = load_scorer(variant, policy, cache_dir=Path(folder).parent / "cache")
texts = [("Mara carried the", " lantern"), ("Nobody", " at the pier")]
for kind, arguments in [
    ("loglikelihood", texts),
    ("loglikelihood_rolling", [("Mara carried the lantern down",)]),
    ("generate_until", [("Mara", {"until": ["."], "max_gen_toks": 3})]),
]:
    asked = [
        Request(task="t", doc_id=i, index=0, kind=kind, arguments=one)
        for i, one in enumerate(arguments)
    ]
    told = scorer.score(asked)
    assert len(told) == len(asked)
    if kind == "loglikelihood":
        _, kept = scorer.score_reference(asked, top_k=4, samples=1)
        scorer.score_against(asked, kept)
    scorer.encode(asked)
assert scorer.describe().identity
scorer.close()
sys.setprofile(None)
print(json.dumps(sorted(ran)))
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["hf", pytest.param("transformers", marks=pytest.mark.nightly)])
def test_all_that_runs_while_a_model_answers_is_in_the_digest(tiny_llama: Path, kind: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WATCH, str(tiny_llama), kind, str(PACKAGE)],
        capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    ran = {Path(name) for name in json.loads(done.stdout.splitlines()[-1])}
    assert len(ran) > 20
    # how files are opened, how kept ones are written, and records that a description is made of
    known = ("store", "regular_file.py")
    elsewhere = {file for file in ran - set(scoring_files()) if file.parts[0] not in known}
    assert elsewhere == set()


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("copied") / "evalguard"
    shutil.copytree(PACKAGE, place, ignore=shutil.ignore_patterns("__pycache__"))
    return place


def test_an_edit_of_any_file_that_scoring_imports_changes_the_digest(copy: Path) -> None:
    before = digest_scoring_files(copy)
    assert before == digest_scoring_files(PACKAGE)
    unseen = []
    for file in sorted(import_closure()):
        text = (copy / file).read_bytes()
        (copy / file).write_bytes(text + b"# edited\n")
        if digest_scoring_files(copy) == before:
            unseen.append(file)
        (copy / file).write_bytes(text)
    assert unseen == []
    assert digest_scoring_files(copy) == before


@pytest.mark.parametrize("file", [
    "__init__.py", "bisect/search/culprit_search.py", "bisect/attach_bisection.py",
    "cli/compare_command.py", "comparison/compare.py", "comparison/judge.py",
    "config/guard_shape.py", "core/compare_report.py", "core/comparison.py", "core/findings.py",
    "core/gate.py", "engine/executor.py", "harness/finished_runs/lmeval_run.py",
    "nights/history/database.py", "nights/night.py", "publish/tracking.py",
    "publish/wandb_tracker.py", "pytest_plugin.py", "recipes/gguf.py", "report/compare_html.py",
    "report/compare_terminal.py", "report/meaning.py", "report/record_schema.py",
    "stats/drift.py", "tools.py", "tracing/measure/forced_trace.py",
])  # fmt: skip
def test_an_edit_of_what_makes_no_score_leaves_the_digest(copy: Path, file: str) -> None:
    before, text = digest_scoring_files(copy), (copy / file).read_bytes()
    (copy / file).write_bytes(text + b"\n")
    try:
        assert digest_scoring_files(copy) == before
    finally:
        (copy / file).write_bytes(text)


def test_a_release_that_changes_no_scoring_code_leaves_the_digest(copy: Path) -> None:
    init = copy / "__init__.py"
    text, before = init.read_text(), digest_scoring_files(copy)
    assert evalguard.__version__ in text
    init.write_text(text.replace(evalguard.__version__, "99.0"))
    try:
        assert digest_scoring_files(copy) == before
    finally:
        init.write_text(text)


WHOLE = ScoreIdentity(model="hf", model_args={}, scoring="s", start_up="")


@pytest.mark.parametrize("part", [one.name for one in fields(ScoreIdentity)])
def test_every_part_of_an_identity_changes_its_digest(part: str) -> None:
    other = replace(WHOLE, **{part: {"other": 1}})
    assert digest_of(other.as_values()) != digest_of(WHOLE.as_values())
