"""What can change a score is part of its key: each case with real files, changed for real."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from small_world import write_tasks
from tiny_models import save_llama

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Case:
    """One model with something that changes.

    Attributes:
        hook: the text of hook.py beside the guard file.
        files: others, by their path below the test's folder.
        change: what is done between two runs; returns further environment variables.
        kept: whether the scores are kept at all.
    """

    hook: str
    files: dict[str, str]
    change: Callable[[Path], dict[str, str]]
    variables: tuple[str, ...] = ()
    kept: bool = True


def rewrite(path: str, text: str) -> Callable[[Path], dict[str, str]]:
    def change(folder: Path) -> dict[str, str]:
        (folder / path).write_text(text)
        return {}

    return change


def hook(head: str, factor: str) -> str:
    return (
        f"{head}\n\n\ndef edit(model, value):\n"
        "    import torch\n\n"
        "    with torch.no_grad():\n"
        f"        model.model.norm.weight.mul_({factor} * value)\n"
    )


CASES = {
    "a module that a module on PYTHONPATH imports": Case(
        hook("from eg_pack import FACTOR", "FACTOR"),
        {
            "outside/eg_pack/__init__.py": "from eg_pack.inner import FACTOR\n",
            "outside/eg_pack/inner.py": "FACTOR = 1.5\n",
        },
        rewrite("outside/eg_pack/inner.py", "FACTOR = 2.5\n"),
        variables=("PYTHONPATH",),
    ),
    "a file that the hook reads": Case(
        hook(
            "from pathlib import Path\n\n"
            "FACTOR = float(Path(__file__).with_name('factor.txt').read_text())",
            "FACTOR",
        ),
        {"factor.txt": "1.5"},
        rewrite("factor.txt", "2.5"),
        kept=False,
    ),
}


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_llama(tmp_path_factory.mktemp("stale") / "llama")


def scored_again(folder: Path, more: dict[str, str], words: tuple[str, ...] = ()) -> int:
    """Run the comparison; return how many documents the candidate answered anew."""
    done = subprocess.run(
        [sys.executable, "-m", "evalguard", "compare", "--config", "guard.yaml", "--base", "base",
         "--cand", "cand", "--json", "--bisect", "never", "--track", "none", *words],
        cwd=folder,
        env={**os.environ, "EVALGUARD_CACHE_DIR": str(folder / "cache"), "HF_HUB_OFFLINE": "1",
             "PYTHONPATH": os.pathsep.join([str(folder / "outside"), *filter(None, sys.path)]),
             **more},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stdout + done.stderr
    answers = json.loads(done.stdout)["resources"]["answers"]
    (candidate,) = (one for one in answers if one["model"] == "cand")
    return int(candidate["documents"]) - int(candidate["kept"])


@pytest.mark.parametrize("name", CASES)
def test_a_change_is_scored_anew_and_nothing_else_is(
    name: str, llama: Path, tmp_path: Path
) -> None:
    case = CASES[name]
    write_tasks(tmp_path / "tasks")
    (tmp_path / "hook.py").write_text(case.hook)
    (tmp_path / "outside").mkdir()
    for path, text in case.files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    setting = {"reference": 1.0, "candidate": 1.1, "target": "call:hook.py:edit"}
    guard = {
        "models": {
            "base": {"model_args": {"pretrained": str(llama), "dtype": "float32"}},
            "cand": {"extends": "base", "settings": {"edit": setting}},
        },
        "tasks": ["sw_word"],
        "include_path": "tasks",
    }
    (tmp_path / "guard.yaml").write_text(json.dumps(guard))
    assert scored_again(tmp_path, {}) > 0
    assert (scored_again(tmp_path, {}) == 0) == case.kept
    assert scored_again(tmp_path, case.change(tmp_path)) > 0
