"""What an unchanged model shows depends on its numerics, and the floor measures that."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import evalguard
from evalguard.core.noise_floor import MetricFloor

if TYPE_CHECKING:
    from evalguard.floors.floor_page import FloorResult

_HOOK = Path(__file__).with_name("int8_hook.py")
_GUARD = """
models:
  float32: {{model_args: {{pretrained: {model}, dtype: float32}}}}
  bfloat16: {{model_args: {{pretrained: {model}, dtype: bfloat16}}}}
  int8:
    extends: float32
    settings:
      bits: {{reference: null, candidate: 8, target: "call:{hook}:quantise_activations"}}
tasks: [sw_long]
include_path: [{tasks}]
"""


@pytest.fixture(scope="module")
def measure(task_folder: Path, tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("measured-floor")
    guard = folder / "guard.yaml"
    guard.write_text(_GUARD.format(model=tiny_llama, hook=_HOOK, tasks=task_folder))

    def measured(model: str, *vary: str, **given: Any) -> FloorResult:
        options: dict[str, Any] = {
            "config": guard, "cache_dir": folder / "cache", "device": "cpu", "threads": 1,
            "limit": 96, "quiet": True, "allow_code": True,
        }  # fmt: skip
        return evalguard.floor(model, vary=vary, **{**options, **given})

    measured.guard = guard  # type: ignore[attr-defined]
    return measured


def perplexity(result: FloorResult) -> MetricFloor:
    return next(floor for floor in result.floors if floor.metric == "perplexity")


def test_batches_move_a_float32_model_by_next_to_nothing(measure: Any) -> None:
    floor = perplexity(measure("float32", "batch_size"))
    assert floor.sigma < 1e-5
    assert floor.sigma_upper < 1e-5
    assert floor.document_sd is not None
    assert floor.document_sd < 1e-4


@pytest.mark.nightly
def test_batches_move_a_model_whose_activations_are_quantised_together(measure: Any) -> None:
    usual, quantised = (
        perplexity(measure(model, "batch_size", base_set=settings))
        for model, settings in (("float32", {}), ("int8", {"bits": "candidate"}))
    )
    assert usual.document_sd is not None
    assert quantised.document_sd is not None
    # whole hundredths of a nat a document, where float32 moves its last bits
    assert quantised.document_sd > 1e-2
    assert quantised.document_sd > 1000 * usual.document_sd
    assert quantised.sigma > 1000 * usual.sigma
    assert quantised.variation.startswith("batch size")


def test_a_softmax_in_bfloat16_moves_a_bfloat16_model(measure: Any) -> None:
    result = measure("bfloat16", "softmax_dtype", "repeat")
    floor = perplexity(result)
    assert floor.variation == "bfloat16 softmax"
    assert not floor.bit_identical
    # log-probabilities between -4 and -16 are rounded to 1/32 and 1/16: a fiftieth of a nat
    assert floor.document_sd is not None
    assert 0.005 < floor.document_sd < 0.1
    again = [shift for shift in result.shifts if shift.variation == "the same again"]
    assert all(shift.bit_identical for shift in again)


def test_the_usual_run_is_the_one_of_a_comparison(measure: Any) -> None:
    """Scores are shared with comparisons through the cache, but the repeated run computes anew."""
    result = measure("float32", "repeat", "threads")
    assert {variation.name for variation in result.report.variations} == {
        "the same again",
        "2 threads",
    }
    assert dict(result.report.computation) == {
        "batch_size": None,
        "token_budget": 1024,
        "scorer": "fast",
        "shares_prefixes": True,
        "threads": 1,
        "device": "cpu",
        "attention": "sdpa",
        "softmax_dtype": "float32",
    }


@pytest.mark.slow
def test_next_token_distributions_move_with_the_scores(measure: Any) -> None:
    usual, narrow = (
        measure(model, "batch_size", "attention", "repeat") for model in ("float32", "bfloat16")
    )
    (little,), (more,) = (r.report.distribution_floors for r in (usual, narrow))
    assert 0.0 <= little.kl < 1e-9
    assert 1e-6 < more.kl < 1e-1
    assert more.kl_upper >= more.kl
    assert more.positions == little.positions > more.n == 96
    again = [s for s in narrow.report.distribution_shifts if s.variation == "the same again"]
    assert [shift.bit_identical for shift in again] == [True]
    names = {shift.variation for shift in narrow.report.distribution_shifts}
    assert names == {variation.name for variation in narrow.report.variations}


def test_the_scores_are_the_same_with_and_without_distributions(measure: Any) -> None:
    with_them = measure("bfloat16", "attention")
    without = measure("bfloat16", "attention", distributions="off", use_cache=False)
    assert without.report.distribution_shifts == ()
    assert without.shifts == with_them.shifts


def test_the_aggregate_of_a_group_has_a_floor_that_later_comparisons_find(
    measure: Any, task_folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "sw_group.yaml").write_text(
        "group: sw_group\ntask: [sw_word, sw_choice]\n"
        "aggregate_metric_list: [{metric: acc, weight_by_size: true}]\n"
    )
    given = {"include_path": (task_folder, tmp_path), "tasks": "sw_group", "limit": None}
    kept = measure("bfloat16", "attention", cache_dir=tmp_path / "cache", **given)
    floors = {floor.key: floor for floor in kept.floors}
    group = floors["sw_group", "none", "acc"]
    assert group.n == 48
    assert group.document_sd is None
    result = evalguard.compare(
        "bfloat16", "float32", config=measure.guard, cache_dir=tmp_path / "cache", device="cpu",
        threads=1, write=False, quiet=True, distributions="off", **given,
    )  # fmt: skip
    found = {(c.task, c.filter, c.metric): c.floor for c in result.comparisons}
    assert found.keys() == floors.keys()
    assert all(found[key] and found[key].sigma == floors[key].sigma for key in floors)


def test_what_cannot_move_a_task_is_not_measured_on_it(measure: Any) -> None:
    result = measure("float32", "batch_size", "repeat", limit=8, batch_size=16)
    (left,) = [u for u in result.report.unmeasured if u.factor == "batch_size"]
    assert left.name == "batch size 32"
    assert left.reason == "with 8 requests at a time, batches are the same"
    names = [variation.name for variation in result.report.variations]
    assert names == ["the same again", "batch size 1"]


def test_answers_are_counted_that_another_asking_gave_otherwise() -> None:
    rows = [
        {"doc_id": 0, "text": ["a"], "loglikelihood": [None]},
        {"doc_id": 1, "text": [None], "loglikelihood": [-1.5]},
        {"doc_id": 2, "text": [None], "loglikelihood": [-2.5]},
    ]
    other = [{**rows[0], "text": ["b"]}, rows[1], {**rows[2], "loglikelihood": [-2.5000001]}]
    from evalguard.floors.floor_run import count_other_answers

    assert count_other_answers(rows, rows) == 0
    assert count_other_answers(rows, other) == 2
    assert count_other_answers(rows, rows[:2]) is None
