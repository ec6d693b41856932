"""lm-eval on the real model: its own evaluation and files, as its command line makes them."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

BATCH_SIZE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRun:
    """A finished lm-eval run: its folder, and what it held in memory.

    ``results`` is task -> "metric,filter" -> value; ``samples`` is task -> lm-eval's records in
    ascending doc_id.
    """

    folder: Path
    results: Mapping[str, Mapping[str, Any]]
    samples: Mapping[str, Sequence[Mapping[str, Any]]]


def evaluate(
    model: Path,
    tasks: Sequence[str],
    *,
    task_folder: Path,
    output: Path,
    limit: int | None = None,
    bootstrap_iterations: int = 100,
) -> FinishedRun:
    """Run lm-eval's own HFLM with a float32 softmax, and save as ``--log_samples`` does."""
    from lm_eval import evaluator
    from lm_eval.loggers import EvaluationTracker
    from lm_eval.tasks import TaskManager

    tracker = EvaluationTracker(output_path=str(output))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DISABLE_MULTIPROC", "1")  # of the bootstrap
        # It lists every package of the machine, which takes seconds.
        patch.setattr(
            evaluator,
            "add_env_info",
            lambda results: results.update(lm_eval_version=metadata.version("lm_eval")),
        )
        results: Any = evaluator.simple_evaluate(
            model="hf",
            model_args={
                "pretrained": str(model), "dtype": "float32", "softmax_dtype": "float32",
            },
            device="cpu",
            batch_size=BATCH_SIZE,
            tasks=list(tasks),
            task_manager=TaskManager(include_path=str(task_folder), include_defaults=False),
            limit=limit,
            bootstrap_iters=bootstrap_iterations,
            evaluation_tracker=tracker,
        )  # fmt: skip
    samples = results.pop("samples")
    kept = copy.deepcopy(samples)  # saving turns numbers into text, in place
    tracker.save_results_aggregated(results=results, samples=samples)
    for task in tasks:
        tracker.save_results_samples(task_name=task, samples=samples[task])
    return FinishedRun(
        folder=output,
        results=results["results"],
        samples={
            task: sorted(records, key=lambda record: record["doc_id"])
            for task, records in kept.items()
        },
    )


def hflm(model: Path, **model_args: Any) -> Any:
    """Load lm-eval's own HFLM with a float32 softmax."""
    from lm_eval.models.huggingface import HFLM

    arguments = {"dtype": "float32", "softmax_dtype": "float32", **model_args}
    return HFLM(pretrained=str(model), device="cpu", batch_size=BATCH_SIZE, **arguments)
