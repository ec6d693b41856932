"""The real model, real text, one score cache, and lm-eval's own runs of both.

Session fixtures: the base is scored once, lm-eval runs once per model and size.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"
sys.path.insert(0, str(Path(__file__).parent))

if TYPE_CHECKING:
    from lm_eval_itself import FinishedRun

    from evalguard import CompareResult

Compare = Callable[..., "CompareResult"]

QUICK, FULL = 64, 1500


@pytest.fixture(scope="session")
def stories(shared_data: Path) -> Path:
    """The folder of the trained 260K-parameter Llama."""
    return shared_data / "stories260K" / "hf"


@pytest.fixture(scope="session")
def real_tasks(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tasks over the shared data."""
    from real_tasks import write_tasks

    return write_tasks(tmp_path_factory.mktemp("real-tasks"), shared_data)


@pytest.fixture(scope="session")
def guard(stories: Path, real_tasks: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A guard file with `orig` and its conversions."""
    from real_models import write_guard

    return write_guard(tmp_path_factory.mktemp("real-guard"), stories, real_tasks)


@pytest.fixture(scope="session")
def compare(guard: Path, real_tasks: Path, tmp_path_factory: pytest.TempPathFactory) -> Compare:
    """``evalguard.compare`` with the guard file, a cache of this session and one thread."""
    import evalguard

    cache_dir = tmp_path_factory.mktemp("real-cache")

    def run(base: str | Path, candidate: str | Path, **given: Any) -> CompareResult:
        options: dict[str, Any] = {
            "config": guard, "include_path": real_tasks, "device": "cpu", "threads": 1,
            "write": False, "quiet": True, "cache_dir": cache_dir, "bisect": "never",
        }  # fmt: skip
        return evalguard.compare(base, candidate, **{**options, **given})

    return run


@pytest.fixture(
    scope="session",
    params=[QUICK, pytest.param(FULL, marks=pytest.mark.nightly)],
    ids=["quick", "full"],
)
def limit(request: pytest.FixtureRequest) -> int:
    """Documents of each task: a quick number, or many."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(scope="session")
def lm_eval_run(
    guard: Path, stories: Path, real_tasks: Path, limit: int, tmp_path_factory: Any
) -> Callable[[str], FinishedRun]:
    """Finished lm-eval runs of `orig` and `int5-folder` on every task, each made once."""
    from lm_eval_itself import evaluate
    from real_tasks import LIKELIHOOD, ROLLING

    folders = {"orig": stories, "int5-folder": guard.parent / "int5"}
    made: dict[str, FinishedRun] = {}

    def run(name: str) -> FinishedRun:
        if name not in made:
            made[name] = evaluate(
                folders[name], (*LIKELIHOOD, ROLLING), task_folder=real_tasks,
                output=tmp_path_factory.mktemp(f"lm-eval-{name}"), limit=limit,
            )  # fmt: skip
        return made[name]

    return run


@pytest.fixture(scope="session")
def both_models(compare: Compare, limit: int, tmp_path_factory: Any) -> CompareResult:
    """`orig` against `int5-folder` through evalguard on every task, with its run folder."""
    from real_tasks import LIKELIHOOD, ROLLING

    return compare(
        "orig", "int5-folder", tasks=(*LIKELIHOOD, ROLLING), limit=limit,
        write=True, output_path=tmp_path_factory.mktemp("real-reports"),
    )  # fmt: skip
