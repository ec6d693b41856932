"""Distributions of real (tiny) models: from the rows to the report and the gate."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_world import SmallWorld, make_world

import evalguard
from evalguard.comparison.result import CompareResult
from evalguard.core.distribution_comparison import DistributionComparison
from evalguard.core.divergence import DocumentDivergence, divergence
from evalguard.distributions.task_distributions import (
    GENERATION_ONLY,
    TaskDivergences,
    compare_task_distributions,
)
from evalguard.errors import UsageError
from evalguard.planning.plan_run import plan

Compare = Callable[..., CompareResult]


@pytest.fixture(scope="module")
def world(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> SmallWorld:
    return make_world(tmp_path_factory.mktemp("distributions"), tiny_llama)


@pytest.fixture
def compared(world: SmallWorld, tmp_path: Path) -> Compare:
    def compare(base: str, candidate: str, **options: Any) -> CompareResult:
        places = {"output_path": tmp_path / "out", "cache_dir": tmp_path / "cache"}
        given = {"config": world.guard, "quiet": True, "tasks": ["sw_word"], **places, **options}
        return evalguard.compare(base, candidate, **given)

    return compare


def only(result: CompareResult) -> DistributionComparison:
    (found,) = result.distributions
    return found


def by_hand(world: SmallWorld) -> list[float]:
    """KL of `orig` and `other` at every scored token of sw_word, from transformers and torch."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from evalguard.harness.task_options import TaskOptions
    from evalguard.harness.tasks import load_tasks

    tokenizer = AutoTokenizer.from_pretrained(world.models["llama"])
    models = [
        AutoModelForCausalLM.from_pretrained(world.models[name], dtype=torch.float32)
        for name in ("llama", "other")
    ]
    tasks = load_tasks(["sw_word"], options=TaskOptions(include_paths=(world.tasks,)))
    found = []
    for request in tasks.requests("sw_word").requests:
        context, continuation = map(str, request.arguments)
        whole = tokenizer(context + continuation).input_ids
        start = len(tokenizer(context).input_ids)
        with torch.no_grad():
            rows = [
                torch.log_softmax(model(torch.tensor([whole])).logits[0].double(), dim=-1)
                for model in models
            ]
        base, candidate = (row[start - 1 : len(whole) - 1] for row in rows)
        kl = torch.nn.functional.kl_div(candidate, base, reduction="none", log_target=True)
        found += kl.sum(dim=-1).tolist()
    return found


def test_the_kl_of_two_models_is_torchs_own(world: SmallWorld, compared: Compare) -> None:
    expected = by_hand(world)
    found = only(compared("orig", "other"))
    assert found.exact
    assert found.positions == len(expected)
    assert found.kl.value == pytest.approx(np.mean(expected), rel=1e-4)
    assert found.kl_at(100.0).value == pytest.approx(max(expected), rel=1e-4)
    assert found.kl.stderr is not None
    assert found.kl.stderr > 0.0


def test_a_reference_bounds_what_lock_step_finds(compared: Compare) -> None:
    exact = only(compared("orig", "other", distributions="lockstep"))
    kept = only(compared("orig", "other", distributions="reference", reference_top_k=16))
    assert not kept.exact
    assert kept.kl.bounds is not None
    assert exact.kl.value is not None
    assert kept.kl.bounds[0] <= exact.kl.value <= kept.kl.bounds[1]
    assert kept.same_top1.value == exact.same_top1.value
    assert kept.dp_rms.value == pytest.approx(exact.dp_rms.value, abs=1e-9)


def test_a_model_beside_itself_is_bit_identical(compared: Compare) -> None:
    found = only(compared("orig", "same", distributions="lockstep"))
    assert found.bit_identical
    assert found.kl.value == 0.0
    assert not found.moved


def test_terminal_json_and_python_have_the_same_numbers(compared: Compare) -> None:
    result = compared("orig", "other", gate_limits={"kl_mean": 1e9, "same_top1": 0.0})
    found = only(result)
    written = result.to_dict()["distributions"][0]
    assert written["kl"]["value"] == found.kl.value
    assert result.distributions_to_pandas()["kl"].tolist() == [found.kl.value]
    limit = result.to_dict()["gate"]["limits"][0]
    assert (limit["value"], limit["state"]) == (found.kl.value, "passed")
    assert f"{found.positions}  " in result.render(verbose=True)


@pytest.mark.parametrize(
    ("limits", "code"), [({"kl_mean": 1e9}, 0), ({"kl_mean": 0.0}, 1), ({"kl_max": 0.0}, 1)]
)
def test_a_limit_alone_decides(compared: Compare, limits: dict[str, float], code: int) -> None:
    """The margin is far out of reach: only the limit can fail."""
    result = compared("orig", "other", margin=1e6, gate_limits=limits)
    assert result.exit_code == code
    assert [verdict.task for verdict in result.gate.limits] == ["sw_word"]


def test_nan_logits_are_a_failure_and_never_a_kept_limit(compared: Compare) -> None:
    result = compared("orig", "not-a-number", gate_limits={"kl_mean": 1e9})
    assert result.exit_code == 1  # its documents are broken, and the base's are not
    states = {verdict.metric: verdict.state for verdict in result.gate.limits}
    assert states == {"kl_mean": "failed", "broken_documents": "regressed"}


def test_limits_on_what_is_switched_off_are_refused_at_once(compared: Compare) -> None:
    with pytest.raises(UsageError, match="limits on kl_mean, and distributions are off"):
        compared("orig", "other", distributions="off", gate_limits={"kl_mean": 0.1})
    assert compared("orig", "other", distributions="off").distributions == ()


def test_a_plan_does_not_mind_limits(world: SmallWorld, tmp_path: Path) -> None:
    """It measures no distributions of its own accord."""
    limited = tmp_path / "limited.yaml"
    limited.write_text(world.guard.read_text() + "gate: {metrics: {kl_mean: 0.01}}\n")
    planned = plan("orig", "sharp", config=limited, quiet=True, pilot=6, cache_dir=tmp_path)
    assert planned.metrics


def task_divergences(reason: str = "", documents: int = 6) -> TaskDivergences:
    rows = np.log(np.full((2, 4), 0.25, dtype=np.float32))
    one = divergence(rows, rows, np.zeros(2, dtype=np.int64))
    found = tuple(DocumentDivergence(doc_id=i, requests=(one,)) for i in range(documents))
    return TaskDivergences(task="t", documents=() if reason else found, reason=reason)


def test_a_task_that_was_not_measured_is_a_failure_and_one_that_generates_is_left_out() -> None:
    found = compare_task_distributions(
        [task_divergences("other tokens"), task_divergences(GENERATION_ONLY)], (), confidence=0.95
    )
    assert [one.failure for one in found] == ["other tokens"]


def test_declared_clusters_count(compared: Compare) -> None:
    found = only(compared("orig", "other", cluster="gold"))
    assert found.cluster_field == "gold"
    assert found.clusters is not None
    assert 1 < found.clusters < found.n
