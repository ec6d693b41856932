"""vLLM's workers reduce distributions to what the Hugging Face path makes of them, or say why not.

Here a stand-in has vLLM's interfaces; ``tests/systems/test_vllm_engine.py`` asks vLLM.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lm_requests import pair_requests, rolling_requests
from vllm_stand_in import BLOCK, LLM, Faults, install

from evalguard.core.divergence import Reference
from evalguard.core.scorer import (
    DistributionScorer,
    ModelDescription,
    Request,
    ScoringPolicy,
    count_cached_tokens,
)
from evalguard.errors import EvaluationError, UsageError
from evalguard.models.argument_checks import check_argument
from evalguard.models.position_reduction import (
    CompareReferences,
    KeepReference,
    PositionReduction,
    Wanted,
)
from evalguard.models.runtimes import vllm_worker
from evalguard.models.runtimes.engine import EngineScorer
from evalguard.models.runtimes.runtime import RuntimeArguments
from evalguard.models.runtimes.runtime_scorer import RuntimeScorer
from evalguard.models.runtimes.types import load_runtime

TASKS = {"choice": pair_requests, "text": rolling_requests}
DESCRIPTION = ModelDescription(model_type="vllm")
EXACT = 1e-4  # nats, float32 on a CPU

Open = Callable[..., EngineScorer]


@pytest.fixture
def open_vllm(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> Open:
    """Start the stand-in in vLLM's place."""

    def start(
        faults: Faults | None = None, *, second_runner: bool = False, folder: Path = tiny_llama,
        **given: Any,
    ) -> EngineScorer:  # fmt: skip
        install(monkeypatch, faults, second_runner=second_runner)
        told = {"pretrained": str(folder), "dtype": "float32", **given}
        runtime = load_runtime("vllm", RuntimeArguments(model_type="vllm", given=told))
        return EngineScorer(runtime, ScoringPolicy(), DESCRIPTION)  # type: ignore[arg-type]

    return start


def hugging_face(folder: Path) -> RuntimeScorer:
    given = {"pretrained": str(folder), "dtype": "float32", "attn_implementation": "eager"}
    arguments = RuntimeArguments(model_type="hf", given=given)
    return RuntimeScorer(load_runtime("transformers", arguments), ScoringPolicy(), DESCRIPTION)


@pytest.fixture(autouse=True)
def own_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """What loading sets is not left to other tests."""
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")


@pytest.fixture(scope="module")
def base(tiny_llama: Path) -> RuntimeScorer:
    return hugging_face(tiny_llama)


@pytest.fixture(scope="module")
def other(tiny_gemma2: Path) -> RuntimeScorer:
    """Another model of the same tokenizer."""
    return hugging_face(tiny_gemma2)


SHAPES: dict[str, dict[str, Any]] = {
    "one part": {},
    "chunked prefill": {"max_num_batched_tokens": 7},
    "prefix caching": {"enable_prefix_caching": True},
    "tensor parallel": {"tensor_parallel_size": 3, "max_num_batched_tokens": 20},
    "padding": {"faults": Faults(padding=5)},
    "preempted": {"faults": Faults(preempted=True), "max_num_batched_tokens": 9},
    "second runner": {"second_runner": True, "max_num_batched_tokens": 11},
    "second runner, preempted": {
        "second_runner": True, "faults": Faults(preempted=True), "tensor_parallel_size": 2
    },
}  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("task", TASKS)
def test_scores_references_and_divergences_are_those_of_the_hugging_face_path(
    task: str, shape: str, open_vllm: Open, base: RuntimeScorer, other: RuntimeScorer
) -> None:
    requests = TASKS[task]()
    engine: DistributionScorer = open_vllm(**SHAPES[shape])
    for own, theirs in zip(engine.score(requests), base.score(requests), strict=True):
        assert (own.token_hash, own.is_greedy) == (theirs.token_hash, theirs.is_greedy)
        assert_near(own.token_logprobs, theirs.token_logprobs)
    for top_k in (16, 10_000):
        _, kept = engine.score_reference(requests, top_k=top_k, samples=8)
        _, wanted = base.score_reference(requests, top_k=top_k, samples=8)
        for one, two in zip(kept, wanted, strict=True):
            assert_same_reference(one, two)
        _, references = other.score_reference(requests, top_k=top_k, samples=8)
        _, found = engine.score_against(requests, references)
        _, expected = base.score_against(requests, references)
        assert found.reason == expected.reason == ""
        for mine, exact in zip(found.divergences, expected.divergences, strict=True):
            if mine is None or exact is None:
                assert mine is exact
                continue
            assert (mine.kl_low is None) == (exact.kl_low is None) == (top_k > 16)
            for name in ("kl", "base_logprobs", "candidate_logprobs"):
                assert_near(getattr(mine, name), getattr(exact, name))
            np.testing.assert_array_equal(mine.candidate_top, exact.candidate_top)


def assert_near(one: Any, two: Any) -> None:
    np.testing.assert_allclose(one, two, atol=EXACT)


def assert_same_reference(one: Reference | None, two: Reference | None) -> None:
    if one is None or two is None:
        assert one is two
        return
    np.testing.assert_array_equal(one.top_ids, two.top_ids)
    np.testing.assert_array_equal(one.sample_ids, two.sample_ids)
    assert_near(one.top_logprobs, two.top_logprobs)
    assert_near(one.tail_mass, two.tail_mass)


def test_logits_are_computed_a_few_rows_at_a_time_and_only_where_something_is_scored(
    open_vllm: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = open_vllm()
    monkeypatch.setattr(vllm_worker, "ROOM", 0)
    (worker,) = LLM.made[-1].workers
    calls = worker.model_runner.model.calls
    calls.clear()
    request = next(one for one in pair_requests() if str(one.arguments[1]) == " the keeper laughed")
    engine.score([request])
    (piece,) = engine.pieces([request])[0]
    assert calls == [1] * piece.n_scored
    assert piece.n_scored < len(piece.ids) - 1


def test_every_scored_prompt_is_sent_so_that_it_does_not_read_the_prefix_cache(
    open_vllm: Open,
) -> None:
    open_vllm(enable_prefix_caching=True).score(pair_requests())
    assert all(
        one.skip_reading_prefix_cache or one.prompt_logprobs is not None
        for one in LLM.made[-1].seen
    )


FOUND_AT_ONCE = {
    "shift by one": (Faults(shift=1), "chooses a token .* those of another position"),
    "shift back": (Faults(shift=-1), "chooses a token .* those of another position"),
    "shift of all but the last": (Faults(inner=1), "differs by .* from the log-probabilities"),
    "a cut vocabulary": (Faults(cut=3), "logits a position, and the model's vocabulary has"),
    "a missing prompt token": (Faults(lost=True), "reads another prompt than it was given"),
    "prompts that are exchanged": (Faults(exchanged=True), "reads another prompt"),
    "positions from a prefix cache": (Faults(cached=True), "positions 0 to 15 of .* prefix cache"),
    "tokens that are drawn": (Faults(sampled=True), "a logits processor changes it"),
    "prompts beside each other": (Faults(beside=True), "chooses a token|differs? by"),
    "no parameter for the cache": (Faults(old=True), "this version of vLLM lacks"),
    "no method for log-probabilities": (Faults(no_method=True), "this version of vLLM lacks"),
}


@pytest.mark.parametrize("second_runner", [False, True])
@pytest.mark.parametrize("fault", FOUND_AT_ONCE)
def test_what_an_engine_does_wrong_is_found_before_the_first_document(
    fault: str, second_runner: bool, open_vllm: Open
) -> None:
    faults, said = FOUND_AT_ONCE[fault]
    if faults.no_method and second_runner:
        pytest.skip("it has the method")
    with pytest.raises(EvaluationError, match=said) as raised:
        open_vllm(faults, second_runner=second_runner)
    assert raised.value.hint


@pytest.mark.parametrize(
    "faults", [Faults(cut=3), Faults(lost=True), Faults(cached=True), Faults(sampled=True)]
)
def test_what_it_does_wrong_later_is_an_error_of_the_block_that_meets_it(
    faults: Faults, open_vllm: Open
) -> None:
    engine = open_vllm()
    sound = engine.score(pair_requests())
    llm = LLM.made[-1]
    llm.faults = faults
    llm.workers[0].model_runner.model._faults = faults
    with pytest.raises(EvaluationError):
        engine.score(pair_requests())
    llm.faults = llm.workers[0].model_runner.model._faults = Faults()
    again = engine.score(pair_requests())
    assert [one.loglikelihood for one in again] == [one.loglikelihood for one in sound]


def test_a_worker_that_dies_midway_is_an_error_in_its_own_words(open_vllm: Open) -> None:
    engine = open_vllm(max_num_batched_tokens=30)
    llm = LLM.made[-1]
    llm.faults = Faults(dies=llm.steps + 2)
    with pytest.raises(EvaluationError, match=r"vLLM fails: RuntimeError\nEngineDeadError"):
        engine.score(pair_requests())


def test_a_worker_process_that_is_killed_is_named_where_vllm_says_cancelled(
    open_vllm: Open,
) -> None:
    engine = open_vllm(max_num_batched_tokens=30)
    llm = LLM.made[-1]
    llm.faults = Faults(dies=llm.steps + 2)
    llm.llm_engine.engine_core = SimpleNamespace(  # as its executor in this process tells it
        engine_core=SimpleNamespace(model_executor=SimpleNamespace(is_failed=True))
    )
    with pytest.raises(EvaluationError, match="a worker process of vLLM's ended") as told:
        engine.score(pair_requests())
    assert "goes on from what is answered" in str(told.value.hint)


def test_references_of_another_vocabulary_or_tokenizer_are_told_apart(
    open_vllm: Open, base: RuntimeScorer
) -> None:
    requests = pair_requests()
    engine = open_vllm()
    _, references = base.score_reference(requests, top_k=16, samples=8)
    wider = [one and changed(one, vocabulary_size=one.vocabulary_size + 8) for one in references]
    answers, found = engine.score_against(requests, wider)
    assert found.reason == ("the base gives 392 probabilities at every position, the candidate 384")
    assert answers[0].loglikelihood == engine.score(requests)[0].loglikelihood
    moved = [one and changed(one, token_ids=one.token_ids + 1) for one in references]
    _, found = engine.score_against(requests, moved)
    assert found.reason
    assert not found.divergences


def changed(one: Reference, **values: Any) -> Reference:
    return Reference(**{**{n.name: getattr(one, n.name) for n in fields(one)}, **values})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"kv_cache_dtyp": "fp8"}, "takes no argument 'kv_cache_dtyp'.*kv_cache_dtype"),
        ({"logits_processors": ["x"]}, "logits_processors cannot be given"),
        ({"worker_extension_cls": "x.Y"}, "worker_extension_cls cannot be given"),
        ({"tokenizer": "nowhere"}, "no tokenizer folder at nowhere"),
        ({"lora_local_path": "adapter"}, "takes no lora_local_path here: an adapter is not put"),
        ({"data_parallel_size": 2}, "takes no data_parallel_size here: one engine is in this"),
    ],
)
def test_arguments_that_vllm_does_not_know_or_evalguard_gives_are_refused(
    given: dict[str, Any], said: str, open_vllm: Open
) -> None:
    with pytest.raises(UsageError, match=said):
        open_vllm(**given)


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ({"disable_log_stat": True}, "takes no argument 'disable_log_stat'.*disable_log_stats"),
        ({"tokens_ahead": "many"}, "model_args.tokens_ahead: 'many' is not a number"),
        ({"kind": "fast"}, "model_args.kind: 'fast' is not one of quick, slow"),
        ({"tokens_ahead": 2}, ""),
        ({"kind": "quick"}, ""),
        ({"kind": None}, ""),
    ],
)
def test_check_holds_engine_arguments_to_the_vllm_that_is_here(
    argument: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch)
    ((name, value),) = argument.items()
    ends = pytest.raises(UsageError, match=said) if said else contextlib.nullcontext()
    with ends:
        told = check_argument("vllm", name, value, folder=None, code_allowed=False, runs_here=True)
        assert told == ""


def test_a_device_that_this_build_does_not_run_on_is_refused(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch)
    given = {"pretrained": str(tiny_llama)}
    arguments = RuntimeArguments(model_type="vllm", given=given, device="cuda:0")
    with pytest.raises(UsageError, match="'cuda:0' was asked for, and this vLLM runs on 'cpu'"):
        load_runtime("vllm", arguments)


def test_an_engine_in_a_process_of_its_own_is_refused(
    open_vllm: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")
    with pytest.raises(UsageError, match="VLLM_ENABLE_V1_MULTIPROCESSING is 1"):
        open_vllm()


def test_an_engine_whose_share_of_the_memory_is_not_free_says_how_it_takes_less(
    open_vllm: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise ValueError("Free memory on device cuda:0 (9/24 GiB) is less than desired")

    monkeypatch.setattr(LLM, "__init__", refuse)
    with pytest.raises(EvaluationError, match="vLLM does not start: Free memory") as raised:
        open_vllm()
    assert "--cand-model-args gpu_memory_utilization=0.5" in str(raised.value.hint)


def test_a_model_reads_as_many_tokens_as_it_has_positions_and_settings_are_read_back(
    open_vllm: Open,
) -> None:
    open_vllm(kv_cache_dtype="fp8")
    llm = LLM.made[-1]
    assert llm.arguments.max_model_len == 48 + 1  # one that is written, and never read
    told = {"pretrained": llm.arguments.model, "max_model_len": 33, "kv_cache_dtype": "fp8"}
    runtime = load_runtime("vllm", RuntimeArguments(model_type="vllm", given=told))
    assert runtime.max_length == 32
    assert runtime.effective == {"max_model_len": 33, "kv_cache_dtype": "fp8"}


def test_texts_are_those_that_the_model_writes(open_vllm: Open, base: RuntimeScorer) -> None:
    options = {"until": [], "max_gen_toks": 5}
    requests = [
        Request(task="t", doc_id=n, index=0, kind="generate_until", arguments=(text, options))
        for n, text in enumerate(("Mara carried", "the fog", "When the boat came"))
    ]
    for own, theirs in zip(open_vllm().score(requests), base.score(requests), strict=True):
        assert own.generated is not None
        assert theirs.generated is not None
        assert own.generated.ids.tolist() == theirs.generated.ids.tolist()
        assert own.generated.others.tolist() == theirs.generated.others.tolist()
        np.testing.assert_allclose(own.generated.margins, theirs.generated.margins, atol=EXACT)
        assert (own.ended, own.token_hash) == (theirs.ended, theirs.token_hash)


def test_tokens_that_texts_take_from_the_cache_are_counted_and_scores_take_none(
    open_vllm: Open,
) -> None:
    engine = open_vllm(enable_prefix_caching=True, data_parallel_size=1)
    engine.score(pair_requests())
    assert count_cached_tokens(engine) == 0
    options = {"until": [], "max_gen_toks": 2}
    engine.score(
        [Request(task="t", doc_id=0, index=0, kind="generate_until", arguments=("Mara", options))]
    )
    assert count_cached_tokens(engine) == BLOCK


@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=6), seed=st.integers(0, 9))
def test_rows_that_come_in_parts_are_reduced_as_all_at_once(lengths: list[int], seed: int) -> None:
    draws = np.random.default_rng(seed)
    total, size = sum(lengths), 40
    rows = draws.normal(size=(total, size))
    rows = (rows - np.log(np.exp(rows).sum(axis=1, keepdims=True))).astype(np.float32)
    ids = draws.integers(0, size, total)
    keep = KeepReference.for_ids(ids.tolist(), top_k=6, samples=3, seed=seed)

    def reduced(wanted: Wanted, parts: Sequence[int]) -> Any:
        reduction, start = PositionReduction(ids, wanted), 0
        for count in parts:
            reduction.add(rows[start : start + count])
            start += count
        return reduction.finish()

    whole, apart = reduced(keep, [total]).kept, reduced(keep, lengths).kept
    for one in fields(Reference):
        np.testing.assert_array_equal(getattr(whole, one.name), getattr(apart, one.name))
    against = CompareReferences(references=(whole,))
    (one,), (two,) = (reduced(against, parts).divergences for parts in ([total], lengths))
    np.testing.assert_array_equal(one.kl, two.kl)
    np.testing.assert_array_equal(one.shared_top, two.shared_top)


def test_rows_too_few_or_too_many_are_refused() -> None:
    row = np.log(np.full((1, 4), 0.25, dtype=np.float32))
    reduction = PositionReduction(np.array([1, 2]), None)
    reduction.add(row)
    with pytest.raises(ValueError, match="no rows of 1 of 2 positions"):
        reduction.finish()
    with pytest.raises(ValueError, match="2 rows of 4 tokens, where 1"):
        reduction.add(np.repeat(row, 2, axis=0))
    with pytest.raises(ValueError, match="1 rows of 3 tokens"):
        reduction.add(row[:, :3])
