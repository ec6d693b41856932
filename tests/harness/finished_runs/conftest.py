"""Real lm-eval runs with a made-up model, saved by lm-eval's own EvaluationTracker."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"
os.environ["DISABLE_MULTIPROC"] = "1"  # of lm-eval's bootstrap
sys.path.insert(0, str(Path(__file__).parents[1] / "harness"))

from local_tasks import fake_lm, write_tasks

TASKS = ("eg_lastword", "eg_rolling", "eg_choice", "eg_generate", "eg_custom")


@pytest.fixture(scope="session")
def run_tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tasks(tmp_path_factory.mktemp("run-tasks"))


Evaluate = Callable[..., Path]


@pytest.fixture(scope="session")
def evaluate(run_tasks: Path) -> Evaluate:
    """Run lm-eval and save as its command line does; return the folder or file of the results."""

    def run(
        output: Path, tasks: Sequence[str] = TASKS, *, model: str = "m", **options: Any
    ) -> Path:
        from lm_eval import evaluator
        from lm_eval.loggers import EvaluationTracker
        from lm_eval.tasks import TaskManager

        tracker = EvaluationTracker(output_path=str(output))
        with pytest.MonkeyPatch.context() as patch:
            # It lists every package of the machine, which takes seconds.
            patch.setattr(evaluator, "add_env_info", _add_env_info)
            results: Any = evaluator.simple_evaluate(
                model=fake_lm(model=model),
                model_args={"pretrained": f"org/{model}", "dtype": "float32"},
                tasks=list(tasks),
                task_manager=TaskManager(include_path=str(run_tasks), include_defaults=False),
                evaluation_tracker=tracker,
                bootstrap_iters=2,
                batch_size=4,
                **options,
            )
        samples = results.pop("samples")
        tracker.save_results_aggregated(results=results, samples=samples)
        for task in results["configs"]:
            tracker.save_results_samples(task_name=task, samples=samples[task])
        found = sorted(path for path in output.parent.rglob("*_20*.json") if path.is_file())
        return found[-1] if output.suffix == ".json" else output

    return run


def _add_env_info(results: dict[str, Any]) -> None:
    results["lm_eval_version"] = "0.4.13"


@pytest.fixture(scope="session")
def finished(evaluate: Evaluate, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of all tasks; read only."""
    return evaluate(tmp_path_factory.mktemp("finished") / "out")


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    """A copy of the finished run's model folder, to be damaged."""
    source = next(path for path in finished.iterdir() if path.is_dir())
    folder = tmp_path / "run"
    folder.mkdir()
    for path in source.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


Rewrite = Callable[[Path, Callable[[list[dict[str, Any]]], list[dict[str, Any]]]], None]


@pytest.fixture
def rewrite() -> Rewrite:
    """Change the rows of a samples file."""

    def change(path: Path, edit: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> None:
        rows = [json.loads(line) for line in path.read_text().split("\n") if line]
        path.write_text("".join(json.dumps(row) + "\n" for row in edit(rows)))

    return change
