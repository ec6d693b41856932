"""An oracle over a real model: assignments in, the scores of a comparison out."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oracle_world import KEY, SETTINGS, InProcess, Port, compared, here, write_guard

from evalguard.bisect.oracle.model_oracle import ModelOracle
from evalguard.bisect.oracle.settings_oracle import SearchedLimit
from evalguard.bisect.scales import LimitScale
from evalguard.bisect.search.find_culprits import find_culprits
from evalguard.comparison.table_comparisons import compare_tables
from evalguard.core.limits import Limit
from evalguard.core.question import BlockOracle, ParallelOracle, Untestable, ValueOracle
from evalguard.errors import EvaluationError, UsageError

World = Callable[..., Port]


@pytest.fixture(scope="module")
def world(tiny_llama: Path, task_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> World:
    def made(settings: dict[str, str] | None = None, cons: str = "[]", **given: Any) -> Port:
        folder = tmp_path_factory.mktemp("port")
        guard = write_guard(folder, tiny_llama, task_folder, settings or SETTINGS, cons)
        return compared(guard, folder / "cache", **given)

    return made


@pytest.fixture(scope="module")
def port(world: World) -> Port:
    return world()


def everything(oracle: ModelOracle) -> Any:
    return np.arange(oracle.n_documents)


def search(oracle: ModelOracle, **given: Any) -> Any:
    margin = given.pop("margin", oracle.scale.margin(1.0))
    return find_culprits(
        oracle,
        oracle.settings,
        margin=margin,
        yardstick=oracle.scale.yardstick,
        seed=3,
        unit=oracle.scale.sigma,
        **given,
    )


def test_the_ends_are_the_scores_of_the_comparison(port: Port) -> None:
    comparison = next(
        one
        for one in compare_tables(
            port.scored[0].tables, port.scored[1].tables, gate=port.choices.gate
        )
        if one.metric == "perplexity"
    )
    model = InProcess(port.options, port.choices)
    with port.oracle(runner=here(port.options, port.choices, model)) as oracle:
        assert isinstance(oracle, BlockOracle)
        assert isinstance(oracle, ParallelOracle)
        assert isinstance(oracle, ValueOracle)
        assert oracle.settings == tuple(SETTINGS)
        candidate = oracle.measure(frozenset(SETTINGS), everything(oracle))
        reference = oracle.measure(frozenset(), everything(oracle))
        base, other = (
            next(table for table in side.tables if table.key == KEY) for side in port.scored
        )
        assert np.array_equal(candidate, oracle.scale.values(other))
        assert np.array_equal(reference, oracle.scale.values(base))
        drift = float(np.mean(reference) - np.mean(candidate)) / oracle.scale.yardstick
        assert oracle.scale.sigma(drift) == pytest.approx(comparison.sigma, rel=1e-10)
        assert len({name for name, _ in model.asked}) <= 1  # the reference, never the candidate


def test_blocks_hold_every_document_once(port: Port) -> None:
    with port.oracle() as oracle:
        held = np.concatenate(list(oracle.blocks))
        assert np.array_equal(np.sort(held), everything(oracle))
        assert len(oracle.blocks) > 1


def test_a_search_over_a_real_model_names_the_planted_setting_and_no_other(world: World) -> None:
    port = world()
    model = InProcess(port.options, port.choices)
    runner = here(port.options, port.choices, model)
    with port.oracle(runner=runner) as oracle:
        found = search(oracle)
        assert found.status == "minimal"
        assert [culprit.name for culprit in found.culprits] == ["gain"]
        assert oracle.seconds_per_evaluation > 0.0
    asked = list(model.asked)
    assert len(asked) == len(set(asked))

    again = InProcess(port.options, port.choices)
    with port.oracle(runner=here(port.options, port.choices, again)) as oracle:
        assert search(oracle) == found
    assert (again.loaded, again.asked) == ([], [])  # nothing is repeated


def test_a_search_for_a_limit_on_distributions_repeats_nothing_either(world: World) -> None:
    port = world()
    told = port.scored[1].divergences[KEY[0]].documents
    scale = LimitScale.of(Limit(metric="kl_mean", value=1e-3), KEY[0], told)
    held_to = SearchedLimit(scale=scale, base=port.sources[0])
    found = []
    for number in range(2):
        model = InProcess(port.options, port.choices)
        runner = here(port.options, port.choices, model)
        with port.oracle(runner=runner, key=scale.key, held_to=held_to) as oracle:
            found.append(search(oracle, margin=scale.margin(scale.limit.value)))
        assert bool(model.loaded) == (number == 0)
    first, again = found
    assert first == again
    assert [culprit.name for culprit in first.culprits] == ["gain"]


def test_why_an_assignment_cannot_run_is_remembered(world: World) -> None:
    port = world()
    refusals = []
    for _ in range(2):
        model = InProcess(port.options, port.choices)
        with port.oracle(runner=here(port.options, port.choices, model)) as oracle:
            with pytest.raises(Untestable) as refused:
                oracle.measure_values({"norm_dtype": "float99"}, everything(oracle))
            refusals.append((refused.value.reason, refused.value.kind, refused.value.hint))
            assert bool(model.loaded) == (len(refusals) == 1)
    assert refusals[0] == refusals[1]


@pytest.mark.slow
def test_without_a_cache_the_run_folder_keeps_what_is_finished(
    world: World, tmp_path: Path
) -> None:
    port = world(use_cache=False)
    answers = []
    for number in range(2):
        model = InProcess(port.options, port.choices)
        runner = here(port.options, port.choices, model)
        with port.oracle(runner=runner, kept=tmp_path / "kept") as oracle:
            answers.append(oracle.measure(frozenset({"gain"}), everything(oracle)))
            assert len(model.asked) == (0 if number else len(oracle.blocks))
    assert np.array_equal(*answers)


def test_some_blocks_are_answered_as_among_all(port: Port) -> None:
    with port.oracle() as oracle:
        block = oracle.blocks[-1]
        some = oracle.measure(frozenset({"gain"}), block)
        assert np.array_equal(some, oracle.measure(frozenset({"gain"}), everything(oracle))[block])


def test_several_questions_have_the_answers_that_each_has_alone(port: Port) -> None:
    with port.oracle() as oracle:
        questions = [
            (frozenset({"eps"}), oracle.blocks[0]),
            (frozenset({"gain", "eps"}), everything(oracle)),
            (frozenset({"eps"}), oracle.blocks[-1]),
        ]
        together = oracle.measure_all(questions)
        for answer, (names, documents) in zip(together, questions, strict=True):
            assert np.array_equal(answer, oracle.measure(names, documents))  # type: ignore[arg-type]


def test_a_setting_may_have_a_third_value(port: Port) -> None:
    with port.oracle() as oracle:
        whole = frozenset(SETTINGS)
        good, bad = (
            oracle.measure(names, everything(oracle)).mean() for names in (whole - {"gain"}, whole)
        )
        between = oracle.measure_values({"gain": 1.1}, everything(oracle)).mean()
        assert bad < between < good
        same = oracle.measure_values({"gain": 1.3}, everything(oracle))
        assert np.array_equal(same, oracle.measure(frozenset(SETTINGS), everything(oracle)))
        with pytest.raises(UsageError, match="not searched for setting 'gian'"):
            oracle.measure_values({"gian": 1.1}, everything(oracle))


@pytest.mark.slow
def test_what_cannot_be_built_takes_only_itself(world: World) -> None:
    broken = '{reference: silu, candidate: no-such, target: "config.hidden_act"}'
    port = world()
    guard = port.options.config
    assert guard is not None
    guard.write_text(guard.read_text().replace("      gain:", f"      act: {broken}\n      gain:"))
    sources, choices = _prepared(port)
    port = replace(port, sources=sources, choices=choices)
    with port.oracle() as oracle:
        answers = oracle.measure_all(
            [
                (frozenset({"act"}), oracle.blocks[0]),
                (frozenset({"eps"}), oracle.blocks[0]),
            ]
        )
        assert isinstance(answers[0], Untestable)
        assert answers[0].kind == "cannot_build"
        assert "no-such" in answers[0].reason
        assert isinstance(answers[1], np.ndarray)


def _prepared(port: Port) -> Any:
    from evalguard.comparison.compare import resolve_request

    return resolve_request("orig", "port", port.options)


@pytest.mark.slow
def test_what_a_constraint_excludes_is_untestable(world: World) -> None:
    port = world(None, "[{if: {eps: 1.0e-5}, then: {gain: 1.3}}]")
    with port.oracle() as oracle:
        with pytest.raises(Untestable, match="a constraint excludes") as refused:
            oracle.measure(frozenset({"eps"}), everything(oracle))
        assert refused.value.kind == "cannot_build"
        assert oracle.measure(frozenset({"gain", "eps"}), oracle.blocks[0]).size


@pytest.mark.slow
def test_settings_that_are_one_value_are_not_searched(world: World) -> None:
    more = {
        "equal": '{reference: 48, candidate: 48, target: "model_args.max_length"}',
        "rounded": "{reference: 1.0, candidate: 1.00000000001, "
        'target: "attr:model.layers.0.input_layernorm.weight"}',
    }
    with world({**SETTINGS, **more}).oracle() as oracle:
        assert oracle.settings == tuple(SETTINGS)
        assert oracle.inert_by_readback == ("rounded",)


@pytest.mark.slow
def test_a_base_that_is_the_candidate_with_other_values_is_not_measured(world: World) -> None:
    port = world()
    options = replace(port.options, base_set=dict.fromkeys(SETTINGS, "reference"))
    from evalguard.comparison.compare import resolve_request
    from evalguard.engine.score_models import score_sides

    sources, choices = resolve_request("port", "port", options)
    scored = score_sides(sources, choices, options)
    port = replace(port, sources=sources, choices=choices, scored=scored, options=options)
    model = InProcess(options, choices)
    with port.oracle(runner=here(options, choices, model)) as oracle:
        assert oracle.reference_is_base
        oracle.measure(frozenset(), everything(oracle))
    assert model.asked == []


@pytest.mark.slow
def test_a_base_without_a_description_is_no_end_of_the_search(world: World) -> None:
    """A finished lm-eval run, or one that another process has scored."""
    port = world()
    port = replace(port, scored=(replace(port.scored[0], description=None), port.scored[1]))
    with port.oracle() as oracle:
        assert not oracle.reference_is_base
        measured = oracle.measure(frozenset(), everything(oracle))
        base = next(table for table in port.scored[0].tables if table.key == KEY)
        assert np.array_equal(measured, oracle.scale.values(base))


@pytest.mark.slow
def test_every_model_may_have_a_chat_template_of_its_own(
    tiny_llama: Path, task_folder: Path, tmp_path: Path
) -> None:
    import shutil

    llama = tmp_path / "chatty"
    shutil.copytree(tiny_llama, llama)
    config = json.loads((llama / "tokenizer_config.json").read_text())
    config["chat_template"] = "{% for m in messages %}{{ m['content'] }} {% endfor %}"
    (llama / "tokenizer_config.json").write_text(json.dumps(config))
    guard = write_guard(tmp_path, llama, task_folder, SETTINGS)
    port = compared(guard, tmp_path / "cache", apply_chat_template=True)
    with port.oracle() as oracle:
        reference = oracle.measure(frozenset(), everything(oracle))
        base = next(table for table in port.scored[0].tables if table.key == KEY)
        assert np.array_equal(reference, oracle.scale.values(base))
        assert search(oracle).culprits[0].name == "gain"


@pytest.mark.slow
@pytest.mark.parametrize(("gated", "early"), [(("perplexity",), True), ((), False)])
def test_a_run_that_stopped_early_is_searched_on_the_documents_it_asked(
    world: World, gated: tuple[str, ...], early: bool
) -> None:
    from evalguard.comparison.compare import resolve_request
    from evalguard.comparison.looks import score_in_looks

    port = world()
    options = replace(port.options, sequential=True)
    sources, choices = resolve_request("orig", "port", options)
    # a regression of log-likelihoods is confirmed on all documents, so that only a pass is early
    margin = 1e6 if early else choices.gate.margin
    choices = replace(choices, gate=replace(choices.gate, gate_metrics=gated, margin=margin))
    scored, stops = score_in_looks(sources, choices, options)
    port = replace(port, sources=sources, choices=choices, scored=scored, options=options)
    model = InProcess(options, choices)
    with port.oracle(runner=here(options, choices, model)) as oracle:
        table = next(table for table in scored[0].tables if table.key == KEY)
        assert oracle.n_documents == table.n
        assert (table.n < 300) == early
        whole = everything(oracle)
        reference, candidate = (
            oracle.measure(names, whole) for names in (frozenset[str](), frozenset(SETTINGS))
        )
        drift = float(np.mean(reference - candidate)) / oracle.scale.yardstick
        # the candidate was scored in these blocks: it is not asked again
        assert not any("'eps': 1e-05, 'gain': 1.3" in name for name, _ in model.asked)
        found = stops.findings.get(KEY)
        sigma = oracle.scale.sigma(drift)
        if early:
            assert found is not None
            assert sigma == pytest.approx(found.sigma, rel=1e-6)


@pytest.mark.slow
def test_a_reference_that_cannot_be_loaded_is_an_error(world: World) -> None:
    port = world()
    variant = port.sources[1].variant
    eps = replace(variant.settings[0], reference="nonsense")
    broken = replace(variant, settings=(eps, *variant.settings[1:]))
    port = replace(port, sources=(port.sources[0], replace(port.sources[1], variant=broken)))
    with pytest.raises(EvaluationError, match="there is nothing to start from"), port.oracle():
        pass


def test_a_metric_without_scores_of_documents_is_refused(port: Port) -> None:
    with (
        pytest.raises(UsageError, match="has no scores of sw_long"),
        port.oracle(key=("sw_long", "none", "bleu")),
    ):
        pass


@pytest.mark.slow
def test_scores_that_are_no_numbers_are_left_to_the_search(world: World) -> None:
    with world().oracle() as oracle:
        answer = oracle.measure_values({"gain": 1e38}, oracle.blocks[0])
        assert np.isnan(answer).all()
