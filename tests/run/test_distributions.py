"""Distributions of two models are compared while they are scored, once, and kept."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scored_models
from scored_models import Score, source, values
from tiny_models import save_t5

from evalguard.config.guard import GuardSet
from evalguard.config.options import CompareOptions
from evalguard.core.settings import Setting, Target
from evalguard.distributions.task_distributions import GENERATION_ONLY
from evalguard.engine import memory
from evalguard.engine.choices import resolve_choices
from evalguard.engine.executor import Evaluation
from evalguard.engine.score_models import score_models
from evalguard.errors import EvaluationError, Interrupted, UsageError
from evalguard.models import lm_scorer


@dataclass
class Forward:
    """Counts sequences that go through any model."""

    sequences: int = 0


@pytest.fixture
def forward(monkeypatch: pytest.MonkeyPatch) -> Forward:
    from lm_eval.models.huggingface import HFLM

    count, original = Forward(), HFLM._model_call

    def counted(self: Any, inputs: Any, *more: Any, **options: Any) -> Any:
        count.sequences += len(inputs)
        return original(self, inputs, *more, **options)

    monkeypatch.setattr(HFLM, "_model_call", counted)
    return count


@pytest.fixture(scope="module")
def models(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {**models, "t5": save_t5(tmp_path_factory.mktemp("t5"))}


@pytest.fixture
def score(score: Score) -> Score:
    return functools.partial(score, tasks=("sw_long",))


def kl(evaluations: Sequence[Evaluation], task: str = "sw_long") -> np.ndarray:
    return scored_models.kl(evaluations, task)


@pytest.mark.parametrize("mode", ["lockstep", "reference"])
def test_scores_do_not_notice_that_distributions_are_compared(score: Score, mode: str) -> None:
    tasks = ("sw_long", "sw_text", "sw_choice")
    measured = score("llama", "other", tasks=tasks, distributions=mode, use_cache=False)
    plain = score("llama", "other", tasks=tasks, distributions="off", use_cache=False)
    assert values(measured) == values(plain)
    assert set(measured[1].divergences) == set(tasks)
    assert plain[1].divergences == measured[0].divergences == {}
    assert kl(measured, "sw_choice").size > 0


def test_every_document_and_request_has_its_place(score: Score) -> None:
    evaluations = score("llama", "other", tasks=("sw_choice",))
    found = evaluations[1].divergences["sw_choice"]
    assert [document.doc_id for document in found.documents] == list(range(24))
    assert {len(document.requests) for document in found.documents} == {4}


def test_no_forward_pass_is_done_twice_and_none_where_all_is_kept(
    score: Score, forward: Forward
) -> None:
    plain = score("llama", "other", distributions="off", use_cache=False)
    once, forward.sequences = forward.sequences, 0
    first = score("llama", "other")
    assert forward.sequences == once
    probes = _probes(score, forward)
    second = score("llama", "other")
    assert forward.sequences == probes
    assert kl(first).tobytes() == kl(second).tobytes()
    assert values(first) == values(second) == values(plain)


def _probes(score: Score, forward: Forward) -> int:
    """Sequences that loading two models costs; leaves the count at 0."""
    score("llama", "other", distributions="off")
    loading, forward.sequences = forward.sequences, 0
    score("llama", "other", distributions="off")
    loading, forward.sequences = forward.sequences, 0
    return loading


def test_scores_kept_from_a_run_without_distributions_are_the_same(score: Score) -> None:
    plain = score("llama", "other", distributions="off")
    assert values(score("llama", "other", distributions="lockstep")) == values(plain)


@pytest.mark.parametrize("mode", ["lockstep", "reference"])
def test_an_interrupted_run_goes_on_from_its_finished_blocks(
    score: Score, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = score("llama", "other", distributions=mode, use_cache=False)
    original, calls = lm_scorer.LMScorer.rows, []

    def stopped(self: Any, requests: Any, pieces: Any) -> Any:
        calls.append(len({request.doc_id for request in requests}))
        if len(calls) == 5:
            raise KeyboardInterrupt
        return original(self, requests, pieces)

    monkeypatch.setattr(lm_scorer.LMScorer, "rows", stopped)
    with pytest.raises(Interrupted, match="on sw_long") as raised:
        score("llama", "other", distributions=mode)
    assert "goes on from there" in raised.value.hint
    before = len(calls)
    again = score("llama", "other", distributions=mode)
    assert len(calls) - before == 32 - 4  # of the passes through blocks, four were finished
    assert kl(again).tobytes() == kl(whole).tobytes()
    assert values(again) == values(whole)


def test_a_damaged_block_of_divergences_is_measured_again(score: Score, tmp_path: Path) -> None:
    first = score("llama", "other")
    (path, *_) = sorted((tmp_path / "divergences").rglob("*.parquet"))
    path.write_bytes(path.read_bytes()[:-9])
    again = score("llama", "other")
    assert any("kept divergences" in note for note in again[1].notes)
    assert kl(again).tobytes() == kl(first).tobytes()


def test_a_reference_brackets_what_lock_step_finds(score: Score) -> None:
    exact = score("llama", "other", distributions="lockstep")
    kept = score("llama", "other", distributions="reference")
    found = kept[1].divergences["sw_long"].documents
    low = np.concatenate([d.kl_low for document in found for d in document.requests])
    high = np.concatenate([d.kl_high for document in found for d in document.requests])
    assert (low <= kl(exact)).all()
    assert (kl(exact) <= high).all()
    assert (high - low).max() > 0
    whole = score("llama", "other", distributions="reference", reference_top_k=10_000)
    np.testing.assert_allclose(kl(whole), kl(exact), atol=1e-9)


def test_what_generates_has_no_positions_and_says_so(
    models: Any, score: Score, monkeypatch: pytest.MonkeyPatch
) -> None:
    (models["tasks"] / "sw_gen.yaml").write_text(
        (models["tasks"] / "sw_word.yaml")
        .read_text()
        .replace("sw_word", "sw_gen")
        .replace("output_type: loglikelihood", "output_type: generate_until")
        .partition("metric_list")[0]
        + "generation_kwargs: {until: ['.'], max_gen_toks: 3}\nmetric_list: [{metric: exact_match}]"
        + "\nmetadata: {version: 1.0}\n"
    )
    evaluations = score("llama", "other", tasks=("sw_gen", "sw_word"))
    assert evaluations[1].divergences["sw_gen"].reason == GENERATION_ONLY
    assert kl(evaluations, "sw_word").size >= 24
    assert evaluations[0].notes == (f"distributions of sw_gen are not compared: {GENERATION_ONLY}",)
    # Nor would a reference measure them, of models that do not fit in beside each other.
    monkeypatch.setattr(memory, "fits_in_memory", lambda weights, device: False)
    evaluations = score("llama", "other", tasks=("sw_gen",))
    assert evaluations[1].findings == ()
    assert f"distributions of sw_gen are not compared: {GENERATION_ONLY}" in evaluations[1].notes


def test_a_model_of_nan_is_compared_position_by_position(score: Score) -> None:
    evaluations = score("llama", "nan")
    assert np.isnan(kl(evaluations)).all()


def test_models_without_distributions_are_scored_and_it_is_said(score: Score) -> None:
    arguments = {"tasks": ("sw_word",), "allow_differing": frozenset({"tokens"})}
    evaluations = score("llama", "t5", **arguments)
    assert evaluations[1].divergences == {}
    (found,) = [one for one in evaluations[1].findings if one.kind == "distributions_unknown"]
    assert found.text == (
        "distributions are not compared: t5, of type hf, shows none; causal models of type hf do"
    )
    with pytest.raises(UsageError, match="side by side: t5, of type hf, shows none"):
        score("llama", "t5", **arguments, distributions="lockstep")


def test_what_does_not_fit_beside_the_base_is_compared_by_reference(
    score: Score, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "fits_in_memory", lambda weights, device: False)
    evaluations = score("llama", "other", tasks=("sw_word",))
    assert evaluations[1].divergences
    assert evaluations[1].findings == ()
    assert "by reference: other does not fit on cpu beside llama" in evaluations[0].notes[-1]
    assert score("llama", "other", tasks=("sw_word",), distributions="lockstep")[1].divergences
    assert score("llama", "other", tasks=("sw_word",), distributions="reference")[1].divergences


def test_a_reference_that_cannot_be_kept_costs_the_distributions_only(
    score: Score, monkeypatch: pytest.MonkeyPatch
) -> None:
    from evalguard.errors import StoreError
    from evalguard.store.block_cache import ReferenceCache

    def put(*_: object) -> None:
        raise StoreError("the disk is full")

    plain = score("llama", "other", distributions="off")
    monkeypatch.setattr(ReferenceCache, "put", put)
    evaluations = score("llama", "other", distributions="reference")
    assert values(evaluations) == values(plain)
    assert evaluations[1].divergences["sw_long"].documents == ()
    assert any("could be kept in the cache" in one.text for one in evaluations[0].findings)


@pytest.mark.parametrize("mode", ["lockstep", "reference"])
def test_nothing_is_kept_of_models_that_nothing_could_recognise(
    score: Score, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from evalguard.engine.loading import known_models as load_plan
    from evalguard.engine.loading import known_models as loading_facts

    for module in (load_plan, loading_facts):
        monkeypatch.setattr(module, "digest_weights", lambda *_, **__: None)
    first = score("llama", "other", distributions=mode)
    assert kl(first).size >= 300
    assert not list(tmp_path.rglob("*.parquet"))
    assert not kl(score("other", "other", distributions=mode)).any()


def test_where_memory_runs_out_one_model_at_a_time_is_the_hint(
    score: Score, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Any, *_: Any) -> Any:
        raise RuntimeError("CUDA out of memory")
        yield

    monkeypatch.setattr("evalguard.models.hf.model.GuardedHFLM.scored_parts", full)
    with pytest.raises(EvaluationError, match="out of memory") as raised:
        score("llama", "other", tasks=("sw_word",))
    assert raised.value.hint == (
        "try a smaller --batch_size; --distributions reference (or off) loads one model at a time"
    )


def test_a_failing_candidate_keeps_what_the_base_left(
    score: Score, monkeypatch: pytest.MonkeyPatch, forward: Forward
) -> None:
    original = lm_scorer.LMScorer.score_against

    def failing(self: Any, *_: Any) -> Any:
        raise EvaluationError("out of memory")

    monkeypatch.setattr(lm_scorer.LMScorer, "score_against", failing)
    with pytest.raises(EvaluationError, match="out of memory"):
        score("llama", "other", distributions="reference")
    monkeypatch.setattr(lm_scorer.LMScorer, "score_against", original)

    def unneeded(self: Any, *_: Any, **__: Any) -> Any:
        raise AssertionError("the base was finished")

    monkeypatch.setattr(lm_scorer.LMScorer, "score_reference", unneeded)
    assert kl(score("llama", "other", distributions="reference")).size >= 300


@pytest.mark.slow
@pytest.mark.parametrize("side", ["base", "candidate"])
def test_a_model_in_a_worker_process_leaves_the_same(
    models: dict[str, Path], tmp_path: Path, side: str
) -> None:
    flag = Setting(
        name="flag", reference="0", candidate="1", target=Target.parse("env.SMALL_WORLD_FLAG")
    )
    options = CompareOptions(
        tasks=("sw_text",),
        include_path=(models["tasks"],),
        quiet=True,
        use_cache=False,
        cache_dir=tmp_path,
        distributions="reference",
    )

    def evaluated(**changes: Any) -> list[Evaluation]:
        sources = [
            source(models, "llama", **(changes if side == "base" else {})),
            source(models, "other", **(changes if side == "candidate" else {})),
        ]
        choices = resolve_choices(sources[0], sources[1], GuardSet(guards=()), options)
        return score_models(sources, choices, options)

    apart = evaluated(settings=(flag,), assignment={"flag": "1"})
    here = evaluated()
    assert kl(apart, "sw_text").tobytes() == kl(here, "sw_text").tobytes()
    assert values(apart) == values(here)
