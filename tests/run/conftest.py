"""Tasks and models of the small world, scored in this process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from scored_models import Score, source
from small_world import make_world, write_tasks

if TYPE_CHECKING:
    from evalguard.harness.tasks import TaskSet

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"


@pytest.fixture(scope="session")
def task_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tasks(tmp_path_factory.mktemp("pipeline") / "tasks")


@pytest.fixture(scope="module")
def tasks(task_folder: Path) -> TaskSet:
    """A task of 300 documents, and one of 24."""
    from evalguard.harness.task_options import TaskOptions
    from evalguard.harness.tasks import load_tasks

    return load_tasks(["sw_long", "sw_word"], options=TaskOptions(include_paths=(task_folder,)))


@pytest.fixture(scope="module")
def models(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of models by name, and "tasks"."""
    world = make_world(tmp_path_factory.mktemp("world"), tiny_llama)
    return {**world.models, "tasks": world.tasks}


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the models that are loaded, in order."""
    from evalguard.engine import run_context

    names: list[str] = []
    original = run_context.open_scorer

    def noted(variant: Any, *given: Any, **more: Any) -> Any:
        names.append(variant.name)
        return original(variant, *given, **more)

    monkeypatch.setattr(run_context, "open_scorer", noted)
    return names


@pytest.fixture
def score(models: dict[str, Path], tmp_path: Path) -> Score:
    """Score two models by name; the base may be a reference file."""
    from evalguard.comparison.refusals import check_measurable
    from evalguard.config.guard import GuardSet
    from evalguard.config.options import CompareOptions
    from evalguard.engine.choices import resolve_choices
    from evalguard.engine.reference_scorer import read_reference
    from evalguard.engine.score_models import score_models

    def scored(base: str | Path, candidate: str, *, dtype: str = "float32", **given: Any) -> Any:
        fields = {"tasks": ("sw_word",), "include_path": (models["tasks"],), "quiet": True}
        options = CompareOptions(**{**fields, "cache_dir": tmp_path, "device": "cpu", **given})
        second = source(models, candidate, dtype=dtype)
        if isinstance(base, Path):
            kept = read_reference(base)
            choices = resolve_choices(kept, second, GuardSet(guards=()), options)
            check_measurable((kept, second), choices)
            return score_models([second], choices, options, reference=kept)
        first = source(models, base, dtype=dtype)
        choices = resolve_choices(first, second, GuardSet(guards=()), options)
        return score_models([first, second], choices, options)

    return scored
