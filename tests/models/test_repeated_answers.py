"""A server that answers a prompt otherwise when it is asked again is refused, or said to vary."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from served_stubs import CachingStub, serving

from evalguard.core.findings import Finding
from evalguard.core.scorer import Request, ScoringPolicy
from evalguard.errors import EvaluationError
from evalguard.models.lm_scorer import LMScorer
from evalguard.models.loading import load_lm
from evalguard.models.served.repeated_answers import (
    LARGEST,
    WINDOW,
    allowed_change,
    fit_length,
    make_prompts,
    measure_distance,
)

TEXTS = [
    "mara carried the lantern down to harbour because",
    "fog had come in early nobody saw mara",
    "the fog had come down to harbour early",
]


def requests_of(kind: str) -> list[Request]:
    greedy = {"until": ["."], "max_gen_toks": 4, "temperature": 0}
    more: dict[str, tuple[Any, ...]] = {"loglikelihood": (" fog",), "generate_until": (greedy,)}
    return [
        Request(task="t", doc_id=n, index=0, kind=kind, arguments=(text, *more[kind]))  # type: ignore[arg-type]
        for n, text in enumerate(TEXTS)
    ]


Probe = Callable[..., tuple[Finding, ...]]


@pytest.fixture
def probe(tiny_llama: Path) -> Iterator[Probe]:
    """Probe a stub; what is found of it."""
    with ExitStack() as stack:

        def probed(
            kind: str = "loglikelihood",
            *,
            batch_size: int = 1,
            arguments: dict[str, Any] | None = None,
            stub: CachingStub | None = None,
            **faults: Any,
        ) -> tuple[Finding, ...]:
            made = stub or CachingStub(tokenizer=tiny_llama, **faults)
            given = {
                "base_url": stack.enter_context(serving(made)),
                "model": "served",
                "tokenizer": str(tiny_llama),
                "tokenizer_backend": "huggingface",
                "max_retries": 1,
                **(arguments or {}),
            }
            kinds = {"sglang": "sglang-generate"}
            model_type = kinds.get(made.shape, "local-completions")
            policy = ScoringPolicy(batch_size=batch_size)
            lm = load_lm(model_type, given, {}, policy, trust_remote_code=False, allow_pickle=False)
            scorer = LMScorer(lm, policy, model_type=model_type, model_args=given)
            scorer.probe(requests_of(kind))
            return scorer.describe().findings

        yield probed


def sound(ids: list[int], end: int) -> object:
    return tuple(ids[:end])


def by_first_block(ids: list[int], end: int) -> object:
    return (end, tuple(ids[:16]))


def by_own_block(ids: list[int], end: int) -> object:
    return tuple(ids[end - 16 : end])


def by_length(ids: list[int], end: int) -> object:
    return (end, len(ids))


def by_place(_ids: list[int], end: int) -> object:
    return end


def by_first_and_length(ids: list[int], end: int) -> object:
    return (end, ids[0], len(ids))


def by_last_token_of_blocks(ids: list[int], end: int) -> object:
    return tuple(ids[15:end:16])


def by_set_of_tokens(ids: list[int], end: int) -> object:
    return (end, frozenset(ids))


def in_turn(shift: int) -> Callable[[Any], Any]:
    return lambda kept: np.roll(kept, shift, axis=0)


def uninitialised(kept: Any) -> Any:
    return np.zeros_like(kept) - 3.0


STALE: dict[str, dict[str, Any]] = {
    **{
        f"{keeps} kept {name.__name__.replace('_', ' ')}": {"key": name, "keeps": keeps}
        for keeps in ("values", "logprobs")
        for name in (
            by_first_block, by_length, by_place, by_first_and_length,
            by_last_token_of_blocks, by_set_of_tokens,
        )
    },
    "log-probabilities kept by own block": {"key": by_own_block, "keeps": "logprobs"},
    "cached log-probabilities shifted by one": {
        "key": sound, "keeps": "logprobs", "on_hit": in_turn(1)
    },
    "cached log-probabilities shifted the other way": {
        "key": sound, "keeps": "logprobs", "on_hit": in_turn(-1)
    },
    "cached values shifted by one": {"key": sound, "on_hit": in_turn(1)},
    "cached log-probabilities that nobody has written": {
        "key": sound, "keeps": "logprobs", "on_hit": uninitialised
    },
    "cached values that nobody has written": {"key": sound, "on_hit": uninitialised},
    "cached values of half the size": {"key": sound, "on_hit": lambda kept: kept * 0.5},
    "blocks of 64 kept by their place": {"key": by_place, "block": 64},
    "blocks of 256 kept by their place": {"key": by_place, "block": 256},
    "blocks of 256, log-probabilities kept by length": {
        "key": by_length, "block": 256, "keeps": "logprobs"
    },
    "blocks kept by their place, of a server that reads 48 tokens": {
        "key": by_place, "arguments": {"max_length": 48}
    },
    "noise of half a nat": {"wavering": 0.5},
}  # fmt: skip


@pytest.mark.parametrize("name", STALE)
def test_a_cache_that_gives_a_prompt_anothers_numbers_is_refused(name: str, probe: Probe) -> None:
    with pytest.raises(
        EvaluationError, match=r"cache|at random|shifted|another last token"
    ) as error:
        probe(**STALE[name])
    assert error.value.hint


HARMLESS: dict[str, dict[str, Any]] = {
    "no cache": {},
    **{
        f"a sound cache of {keeps}, blocks of {block}": {
            "key": sound, "keeps": keeps, "block": block
        }
        for keeps in ("values", "logprobs")
        for block in (1, 16, 128, 256)
    },
    "batches": {"key": sound, "batch_size": 3},
    "several at the same time": {"key": sound, "arguments": {"num_concurrent": 4}},
    "SGLang": {"key": sound, "shape": "sglang"},
    "vLLM": {"key": sound, "shape": "vllm"},
    "it reads 100 tokens": {"key": sound, "arguments": {"max_length": 100}},
    "it reads 12 tokens": {"key": sound, "arguments": {"max_length": 12}},
}  # fmt: skip


@pytest.mark.parametrize("name", HARMLESS)
def test_a_sound_cache_is_nothing_to_speak_of(name: str, probe: Probe) -> None:
    assert probe(**HARMLESS[name]) == ()


@pytest.mark.parametrize("nats", [0.002, 0.02, 0.05])
def test_noise_within_the_bound_is_said_with_its_size(nats: float, probe: Probe) -> None:
    (found,) = probe(wavering=nats)
    assert found.kind == "server_varies"
    size = found.values["nats_per_token"]
    assert isinstance(size, float)
    # the difference of two draws, in the mean of its size, in the worst of some 600 windows
    assert nats < size < 3.0 * nats
    assert f"{size:.2g} nats a token" in found.text


def test_rounding_of_a_cache_is_within_the_bound(probe: Probe) -> None:
    draws = np.random.default_rng(3)
    cold_and_warm = {"on_hit": lambda kept: kept + 0.003 * draws.standard_normal(kept.shape)}
    (found,) = probe(key=sound, keeps="logprobs", **cold_and_warm)
    assert 0.002 < float(str(found.values["nats_per_token"])) < 0.02


def test_a_model_that_looks_back_one_token_is_sound(probe: Probe, tiny_llama: Path) -> None:
    class Bigrams(CachingStub):
        def _values(self, ids: Any) -> Any:
            return np.zeros((len(ids), 3))

    assert probe(stub=Bigrams(tokenizer=tiny_llama, key=sound)) == ()


def test_a_server_that_reads_less_than_the_probe_is_asked_for_less(
    probe: Probe, tiny_llama: Path
) -> None:
    class Short(CachingStub):
        def answer(self, asked: Any) -> Any:
            if max(map(len, asked["prompt"])) > 64:
                return {"error": {"message": "this model reads 64 tokens"}}
            return super().answer(asked)

    assert probe(stub=Short(tokenizer=tiny_llama)) == ()
    with pytest.raises(EvaluationError, match="reads 64 tokens"):
        probe(stub=Short(tokenizer=tiny_llama), arguments={"max_length": 512})


def sampling(draws: np.random.Generator) -> Callable[[Any], int]:
    def choose(row: Any) -> int:
        chances = np.exp(row)
        return int(draws.choice(len(row), p=chances / chances.sum()))

    return choose


STALE_TEXTS: dict[str, dict[str, Any]] = {
    **{
        f"kept {name.__name__.replace('_', ' ')}": {"key": name}
        for name in (by_length, by_place, by_first_block, by_set_of_tokens)
    },
    "cached values that nobody has written": {"key": sound, "on_hit": uninitialised},
    **{
        f"kept {name.__name__.replace('_', ' ')}, prompts' numbers computed anew": {
            "key": name, "deep": True, "echoes_anew": True
        }
        for name in (
            by_own_block, by_first_block, by_length, by_place, by_first_and_length,
        )
    },
    "it samples at temperature 0": {"chooses": sampling(np.random.default_rng(1))},
    "it samples, and shows no log-probabilities": {
        "chooses": sampling(np.random.default_rng(2)), "shape": "tgi"
    },
    "noise of a nat": {"wavering": 1.0},
}  # fmt: skip


@pytest.mark.parametrize("name", STALE_TEXTS)
def test_a_greedy_text_that_is_another_one_when_asked_again_is_refused(
    name: str, probe: Probe
) -> None:
    with pytest.raises(EvaluationError, match=r"cache|at random|samples"):
        probe("generate_until", **STALE_TEXTS[name])


@pytest.mark.parametrize(
    "stub",
    [
        {"key": sound},
        {"key": sound, "block": 256},
        {"key": sound, "deep": True, "echoes_anew": True},
        {"key": sound, "batch_size": 4},
        {"key": sound, "shape": "tgi"},
        {"key": sound, "arguments": {"num_concurrent": 4}},
        {"key": sound, "generates": 1},
        {"key": sound, "generates": 0},
    ],
)
def test_a_greedy_text_that_stays_what_it_is_is_nothing_to_speak_of(
    stub: dict[str, Any], probe: Probe
) -> None:
    assert probe("generate_until", **stub) == ()


@pytest.mark.parametrize("shape", ["openai", "tgi"])
def test_a_batch_of_texts_that_are_exchanged_is_refused(
    shape: str, probe: Probe, tiny_llama: Path
) -> None:
    class Exchanging(CachingStub):
        def answer(self, asked: Any) -> Any:
            answer = super().answer(asked)
            if len(asked["prompt"]) > 1:
                for choice in answer["choices"]:
                    choice["index"] = len(asked["prompt"]) - 1 - choice["index"]
            return answer

    stub = Exchanging(tokenizer=tiny_llama, shape=shape, generates=16)
    with pytest.raises(EvaluationError, match=r"the answer to another|in one batch"):
        probe("generate_until", batch_size=4, stub=stub)


def test_noise_of_a_text_is_said_with_its_size(probe: Probe) -> None:
    found = probe("generate_until", wavering=0.01)
    assert {one.kind for one in found} == {"server_varies"}
    assert "nats a token" in found[0].text


def test_texts_that_change_places_without_numbers_are_said(probe: Probe) -> None:
    turns = iter(range(10**6))

    def choose(row: Any) -> int:
        first, second = np.argsort(-row)[:2]
        return int(second if next(turns) % 3 == 1 else first)

    (found,) = probe("generate_until", shape="tgi", generates=1, chooses=choose)
    assert "more than one greedy text" in found.text


@given(st.integers(8, 700), st.lists(st.integers(0, 50), min_size=2, max_size=40))
def test_altered_prompts_differ_where_they_say(length: int, units: list[int]) -> None:
    prompts = make_prompts(units, length)
    if len(set(units)) < 2:
        assert prompts is None
        return
    assert prompts is not None
    for other in prompts.others:
        differing = {n for n, (a, b) in enumerate(zip(prompts.first, other.units)) if a != b}  # noqa: B905
        assert len(other.units) == len(prompts.first) == length
        assert differing == set(range(other.start, other.end))


@given(st.integers(1, 100), st.integers(0, 99), st.floats(0.001, 5.0))
def test_one_wrong_token_counts_by_its_share_of_a_window(
    length: int, place: int, size: float
) -> None:
    one = np.linspace(-3.0, -1.0, length)
    other = one.copy()
    other[place % length] += size
    found = measure_distance(one, other)
    assert found.mean == pytest.approx(size / min(WINDOW, length))
    assert found.largest == pytest.approx(size)
    assert found.start <= place % length < found.end


@given(st.integers(1, 5000))
def test_a_part_of_a_block_is_left_over(room: int) -> None:
    length = fit_length(room)
    assert length <= min(room, 647)
    if room >= 23:
        assert length % 16 == 7
        assert length > room - 16 or length == 647


def test_minus_infinity_equals_itself() -> None:
    one = np.array([-1.0, -np.inf, -2.0])
    assert measure_distance(one, one).mean == 0.0
    assert measure_distance(one, np.array([-1.0, -5.0, -2.0])).mean > LARGEST


def test_what_is_allowed_grows_with_the_noise_up_to_the_bound() -> None:
    assert allowed_change(0.0) == 0.05
    assert allowed_change(0.01) == pytest.approx(0.15)
    assert allowed_change(0.2) == LARGEST
