"""Finished runs of lm-eval's own Hugging Face model, saved as its command line saves them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest


def run_lm_eval(
    output: Path,
    model: Path,
    tasks: Path,
    names: Sequence[str],
    model_args: Mapping[str, Any] | None = None,
    **options: Any,
) -> Path:
    """Let lm-eval 0.4.13 score a model with logged samples; return the output folder."""
    from lm_eval import evaluator
    from lm_eval.loggers import EvaluationTracker
    from lm_eval.tasks import TaskManager

    arguments = {"pretrained": str(model), "dtype": "float32", **(model_args or {})}
    tracker = EvaluationTracker(output_path=str(output))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DISABLE_MULTIPROC", "1")  # of the bootstrap
        # It lists every package of the machine, which takes seconds.
        patch.setattr(evaluator, "add_env_info", lambda results: results.update(_versions()))
        results: Any = evaluator.simple_evaluate(
            model="hf",
            model_args=arguments,
            tasks=list(names),
            task_manager=TaskManager(include_path=str(tasks), include_defaults=False),
            evaluation_tracker=tracker,
            bootstrap_iters=2,
            batch_size=16,
            device="cpu",
            **options,
        )
    samples = results.pop("samples")
    tracker.save_results_aggregated(results=results, samples=samples)
    for task in results["configs"]:
        tracker.save_results_samples(task_name=task, samples=samples[task])
    return output


def _versions() -> dict[str, str]:
    return {f"{name}_version": metadata.version(name) for name in ("lm_eval", "transformers")}
