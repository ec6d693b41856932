"""The last layer works at the scored positions only where it can, and scores stay as they are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from architectures import save_architecture
from lm_requests import pair_requests, rolling_requests
from opened_models import POLICY, open_hf
from strange_models import AddsTheMean, LateInLast, MixingLast, open_strange

from evalguard.errors import FallbackError
from evalguard.models.lm_scorer import LMScorer

HARNESS = replace(POLICY, scorer="harness")
PLAIN = replace(POLICY, share_prefixes=False)


def narrowed(scorer: LMScorer) -> list[str]:
    """Names of the modules that are given the scored positions only."""
    model = scorer.lm.model
    names = {module: name for name, module in model.named_modules()}
    hooked: set[str] = set()

    def note(module: torch.nn.Module, given: tuple[Any, ...], _: Any) -> None:
        hooked.update({names[module]} if module._forward_pre_hooks else ())

    handle = torch.nn.modules.module.register_module_forward_hook(note)
    try:
        scorer.score(pair_requests()[:1])
    finally:
        handle.remove()
    return sorted(hooked - {names[model.get_output_embeddings()]})


def given(module: torch.nn.Module) -> list[int]:
    """Numbers of positions that a module is given from now on."""
    seen: list[int] = []
    original = module.forward

    def forward(hidden: torch.Tensor) -> torch.Tensor:
        seen.append(hidden.shape[0] * hidden.shape[1])
        made: torch.Tensor = original(hidden)
        return made

    module.forward = forward
    return seen


def assert_scores_of_lm_eval(model: LMScorer, expected: LMScorer) -> None:
    for requests in (pair_requests(), rolling_requests()):
        found, other = model.score(requests), expected.score(requests)
        assert [a.loglikelihood for a in found] == pytest.approx(
            [a.loglikelihood for a in other], abs=1e-4
        )
        assert [a.is_greedy for a in found] == [a.is_greedy for a in other]


@pytest.mark.parametrize(
    ("architecture", "expected"),
    [
        (None, ["mlp", "self_attn.o_proj", "self_attn.q_proj"]),
        ("gpt2: learned positions", ["attn.c_proj", "mlp"]),
        ("mixtral: experts", ["mlp", "self_attn.o_proj", "self_attn.q_proj"]),
        ("mamba: a state", ["mixer.out_proj"]),
        (
            "rwkv: a state without a mask",
            ["feed_forward.key", "feed_forward.receptance", "feed_forward.value"],
        ),
    ],
)
def test_of_the_last_layer_what_works_position_by_position_sees_the_scored_ones(
    architecture: str | None, expected: list[str], tiny_llama: Path, tmp_path: Path
) -> None:
    folder = tiny_llama if architecture is None else save_architecture(tmp_path, architecture)
    model = open_hf(folder, PLAIN)
    found = narrowed(model)
    assert [name.partition(".1.")[2] for name in found] == expected
    assert_scores_of_lm_eval(model, open_hf(folder, HARNESS))


def test_keys_and_values_are_made_of_all_positions(tiny_llama: Path) -> None:
    model = open_hf(tiny_llama, PLAIN)
    model.score(pair_requests())  # the longest is held against all positions, too
    layer = model.lm.model.model.layers[-1]
    keys, rest = given(layer.self_attn.k_proj), given(layer.mlp)
    requests = pair_requests()
    pieces = {piece for of in model.pieces(requests) for piece in of}
    model.score(requests)
    assert sum(rest) == sum(piece.n_scored for piece in pieces)
    assert sum(keys) >= sum(len(piece.ids) - 1 for piece in pieces)


def test_what_looks_at_other_positions_is_given_all_of_them(tmp_path: Path) -> None:
    model = open_strange(MixingLast, tmp_path, PLAIN)
    assert isinstance(model.lm.model.model.layers[-1].mlp, AddsTheMean)
    assert narrowed(model) == [
        "model.layers.1.mlp.down_proj",
        "model.layers.1.mlp.gate_proj",
        "model.layers.1.mlp.up_proj",
    ]
    assert_scores_of_lm_eval(model, open_strange(MixingLast, tmp_path, HARNESS))


def test_modules_with_hooks_of_others_are_left_alone(tiny_llama: Path) -> None:
    model = open_hf(tiny_llama, PLAIN)
    seen: list[int] = []
    model.lm.model.model.layers[-1].mlp.down_proj.register_forward_hook(
        lambda _, __, made: seen.append(made.shape[0] * made.shape[1])
    )
    model.lm.unsettle()
    model.score(pair_requests())
    seen.clear()
    requests = pair_requests()
    model.score(requests)
    pieces = {piece for of in model.pieces(requests) for piece in of}
    assert sum(seen) >= sum(len(piece.ids) - 1 for piece in pieces)


def test_a_last_layer_that_computes_otherwise_on_long_texts_is_found_before_any_answer(
    tmp_path: Path,
) -> None:
    model = open_strange(LateInLast, tmp_path, PLAIN)
    with pytest.raises(FallbackError, match="of 48 tokens, its logits differ by") as raised:
        model.score(pair_requests())
    assert raised.value.giving_up == "scorer"
    # also where the longest are read at all positions, and others, as long, at the last ones
    with pytest.raises(FallbackError, match="its logits differ by"):
        open_strange(LateInLast, tmp_path, PLAIN).score(rolling_requests()[-1:])
    plain = open_strange(LateInLast, tmp_path, replace(PLAIN, scorer="full logits"))
    assert_scores_of_lm_eval(plain, open_strange(LateInLast, tmp_path, HARNESS))


def test_where_layers_choose_what_they_see_all_positions_are_computed(tmp_path: Path) -> None:
    """An indexer's weights change nothing where a text is no longer than what it may choose."""
    folder = save_architecture(tmp_path, "deepseek_v32: an indexer")
    model = open_hf(folder, PLAIN)
    assert narrowed(model) == []
    assert model.describe().computation["scorer"] == "fast"
    assert_scores_of_lm_eval(model, open_hf(folder, replace(HARNESS, batch_size=1)))
