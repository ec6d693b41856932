"""Shared prefixes are read once where that changes no score, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from architectures import save_architecture
from lm_requests import lm_eval_answers
from opened_models import POLICY, OpenedScorer, load_hf, open_hf
from tiny_models import save_gemma2, save_llama

from evalguard.core.scorer import Request, ScoringPolicy
from evalguard.errors import FallbackError
from evalguard.models.hf.prefix_tree import TreeBatch
from evalguard.models.lm_scorer import LMScorer

WORDS = ("lantern", "harbour", "keeper", "boat", "bells", "crates", "fog", "dawn", "pier", "light")


def choices(documents: int, words: int, *, examples: int = 0) -> list[Request]:
    """Multiple choice: every document has a context of its own after the examples of all."""
    random = np.random.default_rng(documents + words)
    shots = " ".join(random.choice(WORDS, examples))
    contexts = [" ".join(random.choice(WORDS, words + n)) for n in range(documents)]
    return [
        Request(
            task="choice", doc_id=doc, index=index, kind="loglikelihood",
            arguments=(f"{shots} {context}".strip(), ending),
        )
        for doc, context in enumerate(contexts)
        for index, ending in enumerate((" the old boat", " a light failed", " harbour", "x"))
    ]  # fmt: skip


def tokens_read(scorer: OpenedScorer, requests: list[Request]) -> int:
    read: list[int] = []
    hook = scorer.lm.model.register_forward_pre_hook(
        lambda _, args, named: read.append((*args, named.get("input_ids"))[0].numel()),
        with_kwargs=True,
    )
    scorer.score(requests)
    hook.remove()
    return sum(read)


def trees_of(scorer: OpenedScorer, requests: list[Request]) -> list[Any]:
    pieces = [piece for of in scorer.pieces(requests) for piece in of]
    return [batch for batch in scorer.lm.batches(pieces) if isinstance(batch, TreeBatch)]


def assert_as_in_lm_eval(scorer: OpenedScorer, folder: Path, requests: list[Request]) -> None:
    found = scorer.score(requests)
    expected = lm_eval_answers(folder, requests, batch_size=1, logits_cache=False)
    assert [a.loglikelihood for a in found] == pytest.approx([e[0] for e in expected], abs=1e-4)
    assert [a.is_greedy for a in found] == [e[1] for e in expected]


def breaking(model: torch.nn.Module, change: Callable[[dict[str, Any]], None]) -> None:
    """Let a model ignore something of what it is handed."""
    forward = model.forward

    def broken(*args: Any, **named: Any) -> Any:
        change(named)
        return forward(*args, **named)

    model.forward = broken  # type: ignore[method-assign]


SHARING = (
    "gpt2: learned positions", "opt: positions from the mask", "gpt_neox: partial rotary",
    "mistral: sliding window", "gemma3: two kinds of rotary", "qwen3: wide heads",
    "mixtral: experts", "phi3: longrope",
)  # fmt: skip


@pytest.mark.parametrize("name", SHARING)
@pytest.mark.parametrize("attention", [pytest.param("eager", marks=pytest.mark.slow), "sdpa"])
def test_trees_score_as_in_lm_eval(tmp_path: Path, name: str, attention: str) -> None:
    folder = save_architecture(tmp_path, name)
    scorer = open_hf(folder, attn_implementation=attention)
    assert scorer.describe().computation["shares_prefixes"] is True
    assert_as_in_lm_eval(scorer, folder, choices(6, 9))


@pytest.mark.parametrize(
    "name", ["llama4: chunks", "gpt_oss: sinks, every other layer with a window"]
)
def test_layers_of_several_kinds_score_as_in_lm_eval(tmp_path: Path, name: str) -> None:
    folder = save_architecture(tmp_path, name)
    scorer = open_hf(folder)
    assert scorer.describe().computation["shares_prefixes"] is True
    assert_as_in_lm_eval(scorer, folder, choices(20, 8, examples=60))


@pytest.mark.parametrize("layers", [["sliding_attention", "full_attention"], None])
def test_windows_of_some_layers_or_of_all_score_as_in_lm_eval(
    tmp_path: Path, layers: list[str] | None
) -> None:
    folder = save_gemma2(tmp_path, max_length=192, layer_types=layers)
    assert_as_in_lm_eval(open_hf(folder), folder, choices(4, 20, examples=70))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("mamba: a state", "layers of kind linear_attention"),
        ("rwkv: a state without a mask", "scores differ from those of plain batches"),
        ("qwen3_5: gated delta rule", "layers of kind linear_attention"),
        ("bloom: distances instead of positions", "a tree of prefixes cannot be read: ValueError"),
        ("gpt_neo: windows of its own", "scores differ from those of plain batches"),
    ],
)
def test_a_model_that_cannot_read_trees_is_scored_in_plain_batches_and_says_so(
    tmp_path: Path, name: str, reason: str
) -> None:
    described = open_hf(save_architecture(tmp_path, name)).describe()
    assert described.computation["shares_prefixes"] is False
    assert described.identity is None or described.identity["policy"]["shares_prefixes"] is False
    assert any("shared prefixes" in caveat and reason in caveat for caveat in described.caveats)


def test_prefixes_are_shared_only_if_asked_and_no_caveat_says_they_are_not(tmp_path: Path) -> None:
    folder = save_llama(tmp_path)
    policy = ScoringPolicy(batch_size=4, device="cpu", share_prefixes=False)
    described = open_hf(folder, policy).describe()
    assert described.computation["shares_prefixes"] is False
    assert described.caveats == ()


def test_what_continuations_share_is_read_once(tmp_path: Path) -> None:
    folder = save_llama(tmp_path, max_length=128)
    plain = open_hf(folder, ScoringPolicy(batch_size=1, device="cpu", share_prefixes=False))
    trees = open_hf(folder, ScoringPolicy(batch_size=1, device="cpu"))
    requests = choices(4, 30)
    trees.score(requests)  # the first trees are scored in plain batches, too
    assert tokens_read(trees, requests) < 0.4 * tokens_read(plain, requests)


def test_examples_before_all_documents_are_read_once(tmp_path: Path) -> None:
    folder = save_llama(tmp_path, max_length=400)
    requests = choices(12, 8, examples=100)
    scorer = open_hf(folder)
    assert_as_in_lm_eval(scorer, folder, requests)
    longest = max(len(ids) for ids in scorer.encode(requests))
    assert tokens_read(scorer, requests) < 4 * longest


@pytest.mark.parametrize("name", ["mistral: sliding window", "gemma3: two kinds of rotary"])
def test_examples_stand_before_windows_as_in_lm_eval(tmp_path: Path, name: str) -> None:
    folder = save_architecture(tmp_path, name, max_position_embeddings=400, sliding_window=90)
    requests = choices(40, 8, examples=70)
    scorer = open_hf(folder)
    assert any(batch.trunk for batch in trees_of(scorer, requests))
    assert_as_in_lm_eval(scorer, folder, requests)


def test_lengths_at_which_rotary_frequencies_switch_share_no_trunk(tmp_path: Path) -> None:
    rope = {
        "rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 120,
        "short_factor": [1.0] * 4, "long_factor": [1.0, 2.0, 4.0, 8.0], "factor": 4.0,
    }  # fmt: skip
    folder = save_architecture(
        tmp_path, "phi3: longrope", max_position_embeddings=400, rope_parameters=rope,
        original_max_position_embeddings=120,
    )  # fmt: skip
    requests = [*choices(5, 12, examples=50), *choices(5, 3, examples=34)]
    assert_as_in_lm_eval(open_hf(folder), folder, requests)


def test_documents_that_share_nothing_are_read_in_plain_batches(tmp_path: Path) -> None:
    scorer = open_hf(save_llama(tmp_path, max_length=128))
    requests = choices(8, 30)[::4]
    assert not trees_of(scorer, requests)


def test_a_model_that_ignores_positions_is_scored_in_plain_batches(tmp_path: Path) -> None:
    folder = save_llama(tmp_path)
    lm = load_hf(folder)
    breaking(lm.model, lambda named: named.pop("position_ids", None))
    described = LMScorer(lm, POLICY, model_type="hf").describe()
    assert described.computation["shares_prefixes"] is False
    assert any("shared prefixes" in caveat for caveat in described.caveats)


def test_activations_quantised_together_are_scored_in_plain_batches(tmp_path: Path) -> None:
    """Dynamic int8: a scale for the whole pass, so that other passes give other scores."""
    folder = save_llama(tmp_path)
    lm = load_hf(folder)

    def rounded(_: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        scale = inputs[0].abs().amax() / 127
        return ((inputs[0] / scale).round() * scale, *inputs[1:])

    for module in lm.model.modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_pre_hook(rounded)
    described = LMScorer(lm, POLICY, model_type="hf").describe()
    assert described.computation["shares_prefixes"] is False
    assert any("shared prefixes" in caveat for caveat in described.caveats)


def test_a_fault_that_only_long_trees_show_is_found_before_anything_is_answered(
    tmp_path: Path,
) -> None:
    def forget_mask(named: dict[str, Any]) -> None:
        mask = named.get("attention_mask")
        if mask is not None and mask.shape[-1] > 40:
            named["attention_mask"] = torch.ones_like(mask).tril()

    scorer = open_hf(save_llama(tmp_path, max_length=128))
    breaking(scorer.lm.model, forget_mask)
    scorer.score(choices(3, 5))
    with pytest.raises(FallbackError, match="differ from those of plain batches") as caught:
        scorer.score(choices(3, 30))
    assert caught.value.giving_up == "share_prefixes"


def test_a_model_without_room_for_a_row_as_wide_as_a_tree_falls_back(tmp_path: Path) -> None:
    """As BigBird, whose token types are a row of as many as it has positions."""
    scorer = open_hf(save_llama(tmp_path, max_length=128))
    requests = choices(3, 12)
    longest = max(len(ids) for ids in scorer.encode(requests))

    def refuse_wide_rows(named: dict[str, Any]) -> None:
        if "input_ids" in named and named["input_ids"].shape[1] > longest:
            raise IndexError("a row of more tokens than the longest piece has")

    breaking(scorer.lm.model, refuse_wide_rows)
    with pytest.raises(FallbackError, match="cannot be read: IndexError: a row of") as caught:
        scorer.score(requests)
    assert caught.value.giving_up == "share_prefixes"
    assert scorer.gave_up is not None


def test_in_bfloat16_trees_are_no_farther_from_float32_than_plain_batches(tmp_path: Path) -> None:
    folder = save_llama(tmp_path, max_length=128)
    requests = choices(24, 12)
    truth = [a.loglikelihood for a in open_hf(folder).score(requests)]

    def error(policy: ScoringPolicy) -> float:
        found = open_hf(folder, policy, dtype="bfloat16").score(requests)
        apart = np.array([a.loglikelihood for a in found]) - truth
        return float(np.sqrt(np.mean(apart**2)))

    plain = ScoringPolicy(batch_size=4, device="cpu", share_prefixes=False)
    assert error(POLICY) < 1.2 * error(plain)
