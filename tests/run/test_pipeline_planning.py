"""Plans from real pilots on tiny models, from a stored run, and from finished lm-eval runs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small_world import N_LONG, SmallWorld, make_world

import evalguard
from evalguard.core.checksum import with_checksum
from evalguard.core.gate import Gate
from evalguard.engine.meter import TaskPace
from evalguard.errors import EvaluationError, StoreError, UsageError
from evalguard.planning.metric_plans import PlanAim
from evalguard.planning.plan_run import expected_cost, plan, plan_from_run

Plan = Callable[..., Any]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, tiny_llama: Path) -> SmallWorld:
    return make_world(tmp_path_factory.mktemp("world"), tiny_llama)


@pytest.fixture
def planned(world: SmallWorld, tmp_path: Path) -> Plan:
    """Plan the long task of the small world, quietly."""

    def call(base: str = "orig", candidate: str = "sharp", **given: Any) -> Any:
        options = {"tasks": "sw_long", "pilot": 48, "cache_dir": tmp_path / "cache", **given}
        return plan(base, candidate, config=world.guard, quiet=True, **options)

    return call


def test_a_pilot_plans_the_whole_task_and_its_cost(planned: Plan, tmp_path: Path) -> None:
    result = planned()
    by_name = {metric.pilot.metric: metric for metric in result.metrics}
    assert set(by_name) == {"perplexity", "acc"}
    perplexity = by_name["perplexity"]
    assert (perplexity.pilot.n, perplexity.n) == (48, N_LONG)
    low, high = perplexity.detectable_sigma_range
    assert 0 < low < perplexity.detectable_sigma < high
    assert [cost.role for cost in result.costs] == ["base", "candidate"]
    for cost in result.costs:
        assert (cost.pilot_documents, cost.n) == (48, N_LONG)
        assert cost.pilot_seconds > 0
        assert cost.tokens.low <= cost.tokens.amount <= cost.tokens.high
        assert cost.seconds.amount == pytest.approx(cost.pilot_seconds * N_LONG / 48)
    assert set(result.report.load_seconds) == {"base", "candidate"}
    assert result.exit_code == 0
    assert not (tmp_path / "cache" / "scores").exists()


def test_the_range_of_tokens_holds_those_of_the_whole_run(planned: Plan) -> None:
    expected = planned().costs[0].tokens
    whole = planned(pilot=N_LONG).costs[0].tokens
    assert whole.low == whole.amount == whole.high
    assert expected.low <= whole.amount <= expected.high


def test_the_same_seed_plans_the_same_and_another_pilot_differs(planned: Plan) -> None:
    one, again, other = planned(pilot=16), planned(pilot=16), planned(pilot=16, seed=5)
    assert [m.pilot.ratio for m in one.metrics] == [m.pilot.ratio for m in again.metrics]
    assert one.metrics[0].pilot.ratio != other.metrics[0].pilot.ratio
    assert other.report.pilot.seed == 5


def test_limit_is_that_of_the_planned_run(planned: Plan) -> None:
    assert {m.n for m in planned(pilot=8, limit=100).metrics} == {100}
    assert {m.n for m in planned(pilot=8, limit=0.5).metrics} == {N_LONG / 2}
    few = planned(pilot=64, limit=10)
    assert {(m.pilot.n, m.n) for m in few.metrics} == {(10, 10)}


def test_a_model_beside_itself_has_no_scatter_to_plan_with(planned: Plan) -> None:
    result = planned("orig", "same", pilot=8)
    problems = {m.pilot.metric: m.pilot.problem for m in result.metrics}
    assert "or not at all" in problems["perplexity"]
    assert result.exit_code == 0


def test_unfair_models_are_refused_as_in_a_comparison(planned: Plan) -> None:
    with pytest.raises(EvaluationError, match="vocabularies"):
        planned("orig", "other-vocabulary", pilot=8)


@pytest.mark.slow
def test_a_worker_is_timed_too(planned: Plan) -> None:
    result = planned(pilot=8, worker="always")
    assert all(cost.pilot_seconds > 0 and cost.pilot_tokens for cost in result.costs)


def test_plan_document_is_strict_json_with_the_same_numbers(planned: Plan) -> None:
    result = planned(pilot=16)
    document = json.loads(result.to_json())
    assert document["schema"] == "evalguard.plan/1"
    assert document["pilot"] == {"kind": "sample", "documents": 16, "seed": 1234, "folder": None}
    assert document["aim"] == pytest.approx(
        {"margin": 1.0, "alpha": 0.025, "power": 0.8, "confidence": 0.95}
    )
    for metric, entry in zip(result.metrics, document["metrics"], strict=True):
        assert entry["detectable_sigma"] == metric.detectable_sigma
        assert entry["needed_to_detect"] == metric.needed_to_detect
        assert entry["pilot_n"] == 16
    cost = document["costs"][0]
    assert cost["tokens_per_second"] == pytest.approx(cost["pilot_tokens"] / cost["pilot_seconds"])


@pytest.mark.parametrize(
    ("given", "said"), [({"pilot": 1}, "pilot of 1"), ({"power": 1.0}, "power lies between")]
)
def test_an_impossible_pilot_or_power_is_refused(
    planned: Plan, given: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        planned(**given)


@pytest.fixture(scope="module")
def stored(world: SmallWorld, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("stored")
    return evalguard.compare(
        "orig", "sharp", config=world.guard, tasks=["sw_long", "sw_text"], quiet=True,
        output_path=folder / "reports", cache_dir=folder / "cache",
    )  # fmt: skip


def test_a_stored_run_plans_as_its_own_scores_do(planned: Plan, stored: Any) -> None:
    result = plan_from_run(stored.run_folder)
    scored = planned(tasks=["sw_long", "sw_text"], pilot=N_LONG)
    assert [m.pilot.metric for m in result.metrics] == [m.pilot.metric for m in scored.metrics]
    taken_together = {c.key for c in stored.report.comparisons if c.clusters is not None}
    for one, other in zip(result.metrics, scored.metrics, strict=True):
        key = (one.pilot.task, one.pilot.filter, one.pilot.metric)
        assert bool(one.pilot.problem) == bool(other.pilot.problem)
        assert one.pilot.base_scatter == pytest.approx(other.pilot.base_scatter, rel=1e-6)
        if key in taken_together:  # 15 clusters count for fewer, and skewed ones ask for more
            assert other.pilot.ratio <= one.pilot.ratio < 10 * other.pilot.ratio
            continue
        assert one.needed_to_detect == other.needed_to_detect
        assert one.pilot.ratio == pytest.approx(other.pilot.ratio, rel=1e-6)
    assert sum(not m.pilot.problem for m in result.metrics) == 3
    assert result.costs == ()
    assert any("not known" in note for note in result.report.notes)


def test_a_stored_run_plans_other_sizes_and_margins(stored: Any) -> None:
    same, tighter = plan_from_run(stored.run_folder), plan_from_run(stored.run_folder, margin=0.5)
    assert tighter.metrics[0].needed_to_detect > same.metrics[0].needed_to_detect
    chosen = plan_from_run(stored.run_folder, tasks="sw_text", limit=5000)
    assert {(m.pilot.task, m.n) for m in chosen.metrics} == {("sw_text", 5000)}


def test_a_plan_takes_margins_of_single_metrics_in_their_units(
    world: SmallWorld, tmp_path: Path
) -> None:
    text = world.guard.read_text("utf-8")
    guard = world.guard.with_name("margins.yaml")
    gate = (
        "gate: {margin: 0.5, metrics: "
        "{sw_text/word_perplexity: {margin: 5%}, perplexity: {margin: 2%}}}"
    )
    guard.write_text(re.sub(r"^gate:.*\n(?:[ ].*\n)*", "", text, flags=re.MULTILINE) + gate + "\n")
    options = {"config": guard, "tasks": ["sw_long", "sw_text"], "quiet": True,
               "cache_dir": tmp_path / "cache"}  # fmt: skip
    result = plan("orig", "sharp", pilot=48, **options)  # type: ignore[arg-type]
    said = {(m.pilot.task, m.pilot.metric): m for m in result.metrics}
    long = said["sw_long", "perplexity"]
    assert long.given is not None
    assert long.given.text == "2%"
    assert long.margin == pytest.approx(0.02 * (long.pilot.base or 0.0) / (long.base_stderr or 0.0))
    shown = result.render(verbose=True)
    for words in ("to see the margin", " 5%: ", " 2%: ", " 0.5 sigma: "):
        assert words in shown
    assert result.to_dict()["aim"]["margin"] == 0.5  # type: ignore[index, call-overload]
    run = evalguard.compare("orig", "sharp", output_path=tmp_path / "reports", **options)  # type: ignore[arg-type]
    again = plan_from_run(run.run_folder or "")
    for one in again.metrics:
        other = said[one.pilot.task, one.pilot.metric]
        assert one.given == other.given
    narrower = plan_from_run(run.run_folder or "", margin="1%")
    assert {m.given.text for m in narrower.metrics if m.given} == {"1%"}


def test_points_of_a_perplexity_are_no_plan_and_exit_code_3(stored: Any) -> None:
    result = plan_from_run(stored.run_folder, margin="1pp")
    assert result.exit_code == 3
    pilot = result.metrics[0].pilot
    assert "between 0 and 1" in pilot.problem
    advisory = PlanAim.of(Gate(margin="1pp", advisory=("perplexity",)), 0.8)
    shown = advisory.plan(replace(pilot, problem=""), 100, metrics=1)
    assert (shown.pilot.problem, shown.margin) == ("", 1.0)


def test_what_is_no_stored_run_is_refused(stored: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"result\.json cannot be read"):
        plan_from_run(tmp_path)
    with pytest.raises(UsageError, match="has no task sw_wrod"):
        plan_from_run(stored.run_folder, tasks="sw_wrod")
    with pytest.raises(UsageError, match="how many documents a task has"):
        plan_from_run(stored.run_folder, limit=0.5)
    (tmp_path / "result.json").write_text('{"schema": "evalguard.plan/1"}')
    with pytest.raises(UsageError, match=r"not an evalguard\.compare/1 document"):
        plan_from_run(tmp_path)
    document = stored.to_dict()
    for damage in ({"comparisons": [{}]}, {"gate": {}}, {"gate": None}, {"base": []}):
        (tmp_path / "result.json").write_text(json.dumps(with_checksum({**document, **damage})))
        with pytest.raises(StoreError, match="damaged"):
            plan_from_run(tmp_path)
    contradicting = {**document, "comparisons": [{**document["comparisons"][0], "n": 10**30}]}
    (tmp_path / "result.json").write_text(json.dumps(with_checksum(contradicting)))
    with pytest.raises(StoreError, match="not a number of documents"):
        plan_from_run(tmp_path)


def test_a_run_costs_what_the_tokens_of_its_pilot_say() -> None:
    pace = TaskPace(seconds=10.0, tokens=dict(enumerate(range(5, 15))), hidden=False)
    cost = expected_cost(pace, "t", "base", 100, confidence=0.95)
    assert (cost.pilot_documents, cost.pilot_tokens) == (10, sum(range(5, 15)))
    assert cost.tokens is not None
    assert cost.tokens.amount == pytest.approx(950)
    assert cost.seconds.amount == pytest.approx(100)


def test_hidden_tokens_leave_the_time() -> None:
    pace = TaskPace(seconds=3.0, tokens={0: 0}, hidden=True)
    cost = expected_cost(pace, "t", "base", 10, confidence=0.95)
    assert (cost.pilot_tokens, cost.tokens, cost.seconds.amount) == (None, None, 30.0)
