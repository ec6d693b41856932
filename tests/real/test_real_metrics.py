"""Metrics and standard errors of a real model against lm-eval's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from lm_eval_itself import evaluate
from real_tasks import LAMBADA, LAST_WORD, LIKELIHOOD, ROLLING

from evalguard.core.comparison import Comparison

if TYPE_CHECKING:
    from lm_eval_itself import FinishedRun

    from evalguard import CompareResult

pytestmark = [pytest.mark.data, pytest.mark.slow]


def find(result: CompareResult, task: str, metric: str) -> Comparison:
    (found,) = [c for c in result.comparisons if (c.task, c.metric) == (task, metric)]
    return found


@pytest.mark.parametrize("task", LIKELIHOOD)
def test_accuracies_and_their_standard_errors_are_lm_evals(
    task: str, both_models: CompareResult, lm_eval_run: Callable[[str], FinishedRun]
) -> None:
    metrics = [
        name for name in ("acc", "acc_norm") if f"{name},none" in lm_eval_run("orig").results[task]
    ]
    assert metrics
    for metric in metrics:
        found = find(both_models, task, metric)
        for name, value, stderr in (
            ("orig", found.base, found.base_stderr),
            ("int5-folder", found.candidate, found.candidate_stderr),
        ):
            results = lm_eval_run(name).results[task]
            assert value == pytest.approx(results[f"{metric},none"], abs=1e-12)
            assert stderr == pytest.approx(results[f"{metric}_stderr,none"], abs=1e-9)


@pytest.mark.parametrize("task", [LAST_WORD, LAMBADA])
def test_perplexities_are_lm_evals(
    task: str, both_models: CompareResult, lm_eval_run: Callable[[str], FinishedRun]
) -> None:
    found = find(both_models, task, "perplexity")
    for name, value in (("orig", found.base), ("int5-folder", found.candidate)):
        assert value == pytest.approx(lm_eval_run(name).results[task]["perplexity,none"], rel=1e-6)


@pytest.mark.slow
def test_closed_form_standard_error_of_a_perplexity_is_lm_evals_bootstrap(
    compare: Callable[..., CompareResult], stories: Path, real_tasks: Path, tmp_path: Path
) -> None:
    # 4,000 iterations, seeded by lm-eval: 1.1% of noise in the bootstrap itself
    run = evaluate(
        stories, [LAST_WORD], task_folder=real_tasks, output=tmp_path, limit=512,
        bootstrap_iterations=4000,
    )  # fmt: skip
    found = find(compare("orig", "orig", limit=512), LAST_WORD, "perplexity")
    assert found.n == 512
    bootstrap = run.results[LAST_WORD]["perplexity_stderr,none"]
    assert found.base_stderr == pytest.approx(bootstrap, rel=0.03)


def test_rolling_metrics_have_no_standard_error_in_lm_eval_and_one_here(
    both_models: CompareResult, lm_eval_run: Callable[[str], FinishedRun]
) -> None:
    for metric in ("word_perplexity", "byte_perplexity", "bits_per_byte"):
        assert lm_eval_run("orig").results[ROLLING][f"{metric}_stderr,none"] == "N/A"
        found = find(both_models, ROLLING, metric)
        assert found.base_stderr
        assert any("ratio estimator" in text for text in found.provenance)
