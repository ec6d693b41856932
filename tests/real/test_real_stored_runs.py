"""Finished lm-eval runs of real models give what scoring the models gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from real_tasks import LIKELIHOOD, ROLLING

from evalguard.core.comparison import Comparison

if TYPE_CHECKING:
    from lm_eval_itself import FinishedRun

    from evalguard import CompareResult

pytestmark = [pytest.mark.data, pytest.mark.slow]
Run = Callable[[str], "FinishedRun"]


@pytest.fixture(scope="module")
def both_runs(compare: Callable[..., CompareResult], lm_eval_run: Run) -> CompareResult:
    """Two finished lm-eval runs; no model is loaded."""
    return compare(lm_eval_run("orig").folder, lm_eval_run("int5-folder").folder, tasks=())


@pytest.fixture(scope="module")
def run_and_model(
    compare: Callable[..., CompareResult], lm_eval_run: Run, limit: int
) -> CompareResult:
    """A finished lm-eval run of the base, and a model whose tasks and limit are the run's."""
    return compare(lm_eval_run("orig").folder, "int5-folder", tasks=(*LIKELIHOOD, ROLLING))


def by_key(result: CompareResult, *, rolling: bool) -> dict[tuple[str, str], Comparison]:
    return {(c.task, c.metric): c for c in result.comparisons if (c.task == ROLLING) == rolling}


def assert_same(one: Comparison, other: Comparison) -> None:
    assert (one.n, one.n_used, one.outcome, one.flips) == (
        other.n, other.n_used, other.outcome, other.flips,
    )  # fmt: skip
    assert one.sigma == pytest.approx(other.sigma, abs=1e-3)
    assert one.sigma_interval == pytest.approx(other.sigma_interval, abs=1e-3)
    assert one.base == pytest.approx(other.base, rel=1e-5)
    assert one.candidate == pytest.approx(other.candidate, rel=1e-5)
    assert (one.method, one.significant, one.certain) == (
        other.method, other.significant, other.certain,
    )  # fmt: skip


def test_two_finished_runs_compare_as_their_models_do(
    both_runs: CompareResult, both_models: CompareResult
) -> None:
    stored, scored = by_key(both_runs, rolling=False), by_key(both_models, rolling=False)
    assert set(stored) == set(scored)
    for key, comparison in stored.items():
        assert_same(comparison, scored[key])


def test_a_finished_run_and_a_model_compare_as_two_models_do(
    run_and_model: CompareResult, both_models: CompareResult
) -> None:
    mixed, scored = by_key(run_and_model, rolling=False), by_key(both_models, rolling=False)
    assert set(mixed) == set(scored)
    for key, comparison in mixed.items():
        assert_same(comparison, scored[key])


def test_beside_a_finished_run_rolling_text_is_scored_as_lm_eval_does(
    run_and_model: CompareResult, both_runs: CompareResult
) -> None:
    mixed, stored = by_key(run_and_model, rolling=True), by_key(both_runs, rolling=True)
    assert set(mixed) == set(stored)
    assert len(mixed) == 3
    for key, comparison in mixed.items():
        assert_same(comparison, stored[key])


def test_both_ways_end_with_the_same_answer_of_the_gate(
    both_runs: CompareResult, run_and_model: CompareResult, both_models: CompareResult
) -> None:
    assert both_runs.exit_code == run_and_model.exit_code == both_models.exit_code
    assert both_runs.passed == run_and_model.passed == both_models.passed


def test_what_a_finished_run_does_not_show_is_said(
    both_runs: CompareResult, run_and_model: CompareResult, both_models: CompareResult
) -> None:
    for result, shown in ((both_runs, False), (run_and_model, False), (both_models, True)):
        for comparison in result.comparisons:
            text = " ".join(comparison.caveats)
            assert ("token ids not compared" in text) is not shown
    for comparison in run_and_model.comparisons:
        said = any(c.startswith("candidate: whole texts") for c in comparison.provenance)
        assert said is (comparison.task == ROLLING)
