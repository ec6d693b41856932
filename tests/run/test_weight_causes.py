"""Weights that differ for one reason are one setting, told by the files alone."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from architectures import save_architecture
from changed_models import at_reference, model, scores
from safetensors.torch import load_file, save_file
from tiny_models import save_llama, save_mamba, save_mamba2
from transformers import (
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
)

from evalguard.bisect.oracle.assigned_candidate import settings_off_reference
from evalguard.bisect.settings.derived_settings import DerivedCandidate, derive_settings
from evalguard.bisect.settings.module_settings import derive_module_settings

Weights = dict[str, torch.Tensor]
Change = Callable[[Weights], None]
_HEAD = 8  # rows


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four layers, whose norm weights are no two alike."""
    folder = save_llama(tmp_path_factory.mktemp("models") / "base")
    config = LlamaConfig.from_pretrained(folder)
    config.num_hidden_layers = 4
    torch.manual_seed(3)
    made = LlamaForCausalLM(config)
    with torch.no_grad():
        for name, weight in made.named_parameters():
            if name.endswith("norm.weight"):
                weight.uniform_(0.5, 1.5)
    made.save_pretrained(folder)
    return folder


def port(base: Path, folder: Path, change: Callable[[Weights], None]) -> Path:
    shutil.copytree(base, folder)
    weights = load_file(folder / "model.safetensors")
    change(weights)
    weights = {name: one.contiguous().clone() for name, one in weights.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def save_neox(folder: Path) -> Path:
    """Two layers with biases, fused queries, keys and values, and norm weights near 1."""
    made = save_llama(folder)  # for its tokenizer
    vocabulary = LlamaConfig.from_pretrained(made).vocab_size
    torch.manual_seed(4)
    neox = GPTNeoXForCausalLM(
        GPTNeoXConfig(
            vocab_size=vocabulary, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
            num_attention_heads=4, max_position_embeddings=64,
        )
    )  # fmt: skip
    with torch.no_grad():
        for weight in neox.parameters():
            if weight.ndim == 1:
                weight += 0.05 * torch.randn_like(weight)
    neox.save_pretrained(folder)
    return folder


def names(found: DerivedCandidate) -> list[str]:
    return [setting.name for setting in found.variant.settings]


def permute_queries(weights: Weights) -> None:
    for name, one in weights.items():
        if name.endswith("q_proj.weight"):
            weights[name] = one.view(4, 8, 32)[[2, 0, 3, 1]].reshape(32, 32)


def shift_norms(weights: Weights) -> None:
    for name, one in weights.items():
        if name.endswith("norm.weight"):
            weights[name] = one + 1.0


def exchange(order: dict[int, int]) -> Callable[[Weights], None]:
    def change(weights: Weights) -> None:
        before = dict(weights)
        for name in before:
            for layer, other in order.items():
                if f".layers.{layer}." in name:
                    weights[name] = before[name.replace(f".{layer}.", f".{other}.")]

    return change


def scale_head(weights: Weights) -> None:
    for name in weights:
        if name.endswith("down_proj.weight"):
            weights[name] = weights[name] * 1.25


def round_all(weights: Weights) -> None:
    for name in weights:
        weights[name] = weights[name].to(torch.bfloat16).to(torch.float32)


def shift_keys(weights: Weights) -> None:
    """Four bits by row, and zero points that are one off."""
    for name, one in weights.items():
        if "k_proj" in name:
            steps = (one.amax(1, keepdim=True) - one.amin(1, keepdim=True)) / 15
            weights[name] = ((one / steps).round() - 1) * steps


def roll_scales(weights: Weights) -> None:
    """Eight bits by row, and the scale of the row before."""
    for name, one in weights.items():
        if "k_proj" in name:
            steps = one.abs().amax(1, keepdim=True) / 127
            weights[name] = (one / steps).round() * steps.roll(1, 0)


def permute_norms(weights: Weights) -> None:
    order = torch.randperm(32, generator=torch.Generator().manual_seed(2))
    for name, one in weights.items():
        if name.endswith("input_layernorm.weight"):
            weights[name] = one[order]


def zero(part: str) -> Callable[[Weights], None]:
    def change(weights: Weights) -> None:
        for name, one in weights.items():
            if part in name:
                weights[name] = torch.zeros_like(one)

    return change


def swap_gate_and_up(weights: Weights) -> None:
    before = dict(weights)
    for name in before:
        if "gate_proj" in name:
            other = name.replace("gate_proj", "up_proj")
            weights[name], weights[other] = before[other], before[name]


def swap_and_round(weights: Weights) -> None:
    exchange({1: 2, 2: 1})(weights)
    for name in weights:
        if ".layers.1." in name or ".layers.2." in name:
            weights[name] = weights[name].to(torch.bfloat16).to(torch.float32)


def merge_adapter(weights: Weights) -> None:
    generator = torch.Generator().manual_seed(7)
    for name, one in weights.items():
        if "q_proj" in name or "v_proj" in name:
            down = torch.randn(4, one.shape[1], generator=generator)
            up = torch.randn(one.shape[0], 4, generator=generator)
            weights[name] = one + 0.1 * one.std() * up @ down


def prune_mlps(weights: Weights) -> None:
    for name, one in weights.items():
        if ".mlp." in name:
            groups = one.abs().reshape(-1, 4)
            weights[name] = one * (groups >= groups.sort(1).values[:, 2:3]).reshape(one.shape)


def lose_norms(weights: Weights) -> None:
    for name, one in weights.items():
        if "norm" in name:
            weights[name] = torch.ones_like(one)


def overflow(weights: Weights) -> None:
    weights["model.layers.1.mlp.down_proj.weight"][3, 5] = torch.inf


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (merge_adapter, "weights.q_proj, v_proj (all 8, low rank, rank 4)"),
        (prune_mlps, "weights.mlp (all 12, pruned, 2:4)"),
        (lose_norms, "weights.norms (all 9, constant, all 1)"),
        (overflow, "weights.model.layers.1.mlp.down_proj (not finite)"),
        (permute_queries, "weights.q_proj (all 4, heads permuted)"),
        (shift_norms, "weights.norms (all 9, plus a constant, +1)"),
        (exchange({1: 2, 2: 1}), "weights.layers.1, layers.2 (swapped)"),
        (exchange({0: 1, 1: 2, 2: 0}), "weights.layers.0, layers.1, layers.2 (in another order)"),
        (swap_gate_and_up, "weights.gate_proj, up_proj (all 8, swapped)"),
        (swap_and_round, "weights.layers.1, layers.2 (swapped)"),
        (exchange({2: 1}), "weights.layers.2 (a copy of other weights)"),
        (scale_head, "weights.down_proj (all 4, scaled, by 1.25)"),
        (shift_keys, "weights.k_proj (all 4, zero points off)"),
        (roll_scales, "weights.k_proj (all 4, scales rolled)"),
        (permute_norms, "weights.input_layernorm (all 4, rows permuted)"),
        (zero("norm"), "weights.norms (all 9, zeroed)"),
        (zero("layers.2."), "weights.layers.2 (zeroed)"),
        (round_all, "weights.tensors (all 39, rounded to bf16)"),
    ],
)
def test_one_mistake_is_one_setting(
    change: Callable[[Weights], None], name: str, base: Path, tmp_path: Path
) -> None:
    candidate = port(base, tmp_path / "port", change)
    found = derive_settings(model(base), model(candidate))
    assert names(found) == [name]
    assert not found.groups
    assert scores(at_reference(found.variant), tmp_path) == scores(model(base), tmp_path)


def test_a_norm_that_seems_scaled_is_counted_among_those_that_are_shifted(
    base: Path, tmp_path: Path
) -> None:
    """Weights of 2 that became 3, beside others that scatter."""
    even = port(base, tmp_path / "even", lambda w: w["model.norm.weight"].fill_(2.0))
    found = derive_settings(model(even), model(port(even, tmp_path / "port", shift_norms)))
    assert names(found) == ["weights.norms (all 9, plus a constant, +1)"]


def test_a_rounding_on_top_hides_no_number(base: Path, tmp_path: Path) -> None:
    def change(weights: Weights) -> None:
        shift_norms(weights)
        scale_head(weights)
        round_all(weights)

    found = derive_settings(model(base), model(port(base, tmp_path / "port", change)))
    assert {
        "weights.norms (all 9, plus a constant, +1)", "weights.down_proj (all 4, scaled, by 1.25)",
    } < set(names(found))  # fmt: skip
    assert len(names(found)) == 3


def test_norm_weights_of_nothing_that_became_one_are_shifted(base: Path, tmp_path: Path) -> None:
    def empty(weights: Weights) -> None:
        for name in weights:
            if name.endswith("norm.weight"):
                weights[name] = torch.full_like(weights[name], 1.0 if "model.norm" in name else 0.0)

    even = port(base, tmp_path / "even", empty)
    found = derive_settings(model(even), model(port(even, tmp_path / "port", shift_norms)))
    assert names(found) == ["weights.norms (all 9, plus a constant, +1)"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda one: one * 0.2, "scaled, by 0.2"),
        (lambda one: one + 1.0, "plus a constant, +1"),
        (lambda one: one.flip(0), "rows permuted"),
        (lambda one: one.roll(1, 0), "shifted"),
        (lambda one: torch.cat([one[:5], one[5:9] * 0.0, one[9:]]), "rows zeroed"),
    ],
)
def test_an_embedding_that_is_the_head_too_is_one_mistake(
    change: Callable[[torch.Tensor], torch.Tensor], words: str, base: Path, tmp_path: Path
) -> None:
    tied = tmp_path / "tied"
    LlamaForCausalLM.from_pretrained(base, tie_word_embeddings=True).save_pretrained(tied)

    def apply(weights: Weights) -> None:
        assert "lm_head.weight" not in weights
        weights["model.embed_tokens.weight"] = change(weights["model.embed_tokens.weight"])

    found = derive_settings(model(tied), model(port(tied, tmp_path / "port", apply)))
    assert names(found) == [f"weights.embed_tokens, lm_head (all 2, {words})"]


def permute_rows(one: torch.Tensor) -> torch.Tensor:
    order = torch.randperm(len(one), generator=torch.Generator().manual_seed(2))
    return one[order]


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda one: one.unflatten(0, (4, -1))[[2, 0, 3, 1]].flatten(0, 1), "heads permuted"),
        (permute_rows, "rows permuted"),
        (lambda one: one.bfloat16().float().unflatten(0, (4, -1)).flip(0).flatten(0, 1),
         "heads permuted"),
    ],
)  # fmt: skip
def test_biases_that_moved_with_the_rows_of_their_weight_are_in_one_mistake_with_it(
    change: Callable[[torch.Tensor], torch.Tensor], name: str, tmp_path: Path
) -> None:
    def apply(weights: Weights) -> None:
        for one in weights:
            if "query_key_value" in one:
                weights[one] = change(weights[one])

    neox = save_neox(tmp_path / "neox")
    found = derive_settings(model(neox), model(port(neox, tmp_path / "port", apply)))
    assert names(found) == [f"weights.query_key_value (all 4, {name})"]


def test_a_bias_of_other_values_is_another_mistake_than_the_order_of_the_rows(
    tmp_path: Path,
) -> None:
    def apply(weights: Weights) -> None:
        for one in weights:
            if one.endswith("query_key_value.weight"):
                weights[one] = permute_rows(weights[one])
            elif one.endswith("query_key_value.bias"):
                weights[one] = permute_rows(weights[one]) * 1.5 + 0.1

    neox = save_neox(tmp_path / "neox")
    found = derive_settings(model(neox), model(port(neox, tmp_path / "port", apply)))
    assert "weights.query_key_value (all 2, rows permuted)" in names(found)
    assert len(names(found)) == 2


def save_mixtral(folder: Path) -> Path:
    """Two layers of four experts, which its files store one by one, and transformers stacks."""
    made = save_llama(folder)  # for its tokenizer
    torch.manual_seed(6)
    MixtralForCausalLM(
        MixtralConfig(
            vocab_size=LlamaConfig.from_pretrained(made).vocab_size, hidden_size=32,
            intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, num_local_experts=4, max_position_embeddings=64,
        )
    ).save_pretrained(folder)  # fmt: skip
    return folder


def swap_experts(weights: Weights) -> None:
    before = dict(weights)
    for name in before:
        if ".w1." in name:
            other = name.replace(".w1.", ".w3.")
            weights[name], weights[other] = before[other], before[name]


def turn_experts(weights: Weights) -> None:
    for name, one in weights.items():
        if ".w2." in name:
            weights[name] = -one


def change_experts(weights: Weights) -> None:
    """Two mistakes in one stack."""
    for name, one in weights.items():
        if ".w1." in name:
            weights[name] = one.flip(0) if ".experts.1." in name else -one


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (swap_experts, "weights.experts.gate_up_proj (all 2, swapped)"),
        (turn_experts, "weights.experts.down_proj (all 2, scaled)"),
        (change_experts, "weights.mlp"),
    ],
)
def test_what_is_wrong_with_all_experts_is_one_setting(
    change: Callable[[Weights], None], name: str, tmp_path: Path
) -> None:
    base = save_mixtral(tmp_path / "mixtral")
    found = derive_settings(model(base), model(port(base, tmp_path / "port", change)))
    assert names(found) == [name]
    assert scores(at_reference(found.variant), tmp_path) == scores(model(base), tmp_path)


def reorder_experts(weights: Weights) -> None:
    """Each layer's experts in an order of its own, and what has a row of each of them."""
    orders = {0: [2, 0, 3, 1], 1: [3, 1, 0, 2]}
    before = dict(weights)
    for name in before:
        if ".mlp." not in name and ".block_sparse_moe." not in name:
            continue
        order = orders[int(name.split(".")[2])]
        if number := re.search(r"experts\.(\d+)\.", name):
            other = f"experts.{order[int(number[1])]}."
            weights[name] = before[name.replace(number[0], other)]
        elif len(before[name]) == len(order):
            weights[name] = before[name][order]


def test_experts_reordered_with_their_router_are_one_setting_of_all_layers(tmp_path: Path) -> None:
    base = save_mixtral(tmp_path / "mixtral")
    candidate = model(port(base, tmp_path / "port", reorder_experts))
    found = derive_settings(model(base), candidate)
    assert names(found) == ["weights.experts, gate (all 6, reordered together)"]
    wanted = scores(model(base), tmp_path)
    assert scores(at_reference(found.variant), tmp_path) == wanted
    assert scores(candidate, tmp_path) == pytest.approx(wanted, abs=1e-4)  # it did no harm
    parts = derive_module_settings(model(base), candidate, "layers").variant.settings
    assert parts[0].name == "experts, gate (all 6, reordered together)"


@pytest.mark.parametrize(
    ("architecture", "named"),
    [
        # stored as stacks, with biases of both
        ("gpt_oss: sinks, every other layer with a window", "experts, router (all 12"),
        # one by one, with a correction bias; in one of two layers
        ("deepseek_v3: latent keys", "experts, gate (all 4"),
    ],
)
def test_experts_are_reordered_with_all_that_has_a_row_of_each_however_they_are_stored(
    architecture: str, named: str, tmp_path: Path
) -> None:
    def fill(weights: Weights) -> None:
        generator = torch.Generator().manual_seed(9)
        for name, one in weights.items():
            if not one.any():
                weights[name] = torch.rand(one.shape, generator=generator)

    base = port(save_architecture(tmp_path / "made", architecture), tmp_path / "base", fill)
    found = derive_settings(model(base), model(port(base, tmp_path / "port", reorder_experts)))
    assert names(found) == [f"weights.{named}, reordered together)"]
    assert scores(at_reference(found.variant), tmp_path) == scores(model(base), tmp_path)


@pytest.mark.parametrize(
    ("part", "how", "name"),
    [
        ("gate.weight", lambda one: disturb(one), "mlp.gate (with experts)"),
        ("gate.weight", lambda one: -one, "mlp.gate (with experts)"),
        ("experts.2.w2", lambda one: one.roll(1, 0), "mlp.experts.down_proj (with gate)"),
        ("experts.0.w1", lambda one: disturb(one), "mlp.experts.gate_up_proj (with gate)"),
        ("experts.3.w3", torch.zeros_like, "mlp.experts.gate_up_proj (with gate)"),
    ],
)
def test_a_mistake_in_reordered_experts_or_their_router_is_one_setting_with_them(
    part: str, how: Callable[[torch.Tensor], torch.Tensor], name: str, tmp_path: Path
) -> None:
    def change(weights: Weights) -> None:
        reorder_experts(weights)
        key = next(one for one in weights if f"layers.1.block_sparse_moe.{part}" in one)
        weights[key] = how(weights[key])

    base = save_mixtral(tmp_path / "mixtral")
    found = derive_settings(model(base), model(port(base, tmp_path / "port", change)))
    assert set(names(found)) == {
        "weights.experts, gate (layer 0, reordered together)", f"weights.model.layers.1.{name}",
    }  # fmt: skip
    assert scores(at_reference(found.variant), tmp_path) == scores(model(base), tmp_path)


@pytest.mark.parametrize("kept", ["gate", "experts"])
def test_experts_or_a_router_that_moved_alone_stay_the_mistake_that_they_are(
    kept: str, tmp_path: Path
) -> None:
    def change(weights: Weights) -> None:
        before = {name: one for name, one in weights.items() if f"moe.{kept}." in name}
        reorder_experts(weights)
        weights.update(before)

    base = save_mixtral(tmp_path / "mixtral")
    found = derive_settings(model(base), model(port(base, tmp_path / "port", change)))
    assert names(found)
    assert all("together" not in one and "with" not in one for one in names(found))


def fold_norms_into_experts(weights: Weights) -> None:
    for name in [one for one in weights if one.endswith("post_attention_layernorm.weight")]:
        block = name.replace("post_attention_layernorm.weight", "block_sparse_moe.")
        for reader in [one for one in weights if one.startswith(block) and ".w2." not in one]:
            weights[reader] = weights[reader] * weights[name]
        weights[name] = torch.ones_like(weights[name])


@pytest.mark.parametrize(
    ("part", "how", "name"),
    [
        ("gate.weight", lambda one: roll(one), "gate (with experts, post_attention_layernorm)"),
        (
            "experts.2.w1",
            lambda one: disturb(one),
            "experts.gate_up_proj (with gate, post_attention_layernorm)",
        ),
        ("experts.2.w2", lambda one: disturb(one), "experts"),
    ],
)
def test_a_norm_folded_into_all_experts_and_their_router_is_one_setting_with_them(
    part: str, how: Callable[[torch.Tensor], torch.Tensor], name: str, tmp_path: Path
) -> None:
    def spread(weights: Weights) -> None:
        generator = torch.Generator().manual_seed(8)
        for one in [one for one in weights if one.endswith("norm.weight")]:
            weights[one] = 0.5 + torch.rand(weights[one].shape, generator=generator)

    def change(weights: Weights) -> None:
        fold_norms_into_experts(weights)
        key = next(one for one in weights if f"layers.1.block_sparse_moe.{part}" in one)
        weights[key] = how(weights[key])

    base = port(save_mixtral(tmp_path / "mixtral"), tmp_path / "base", spread)
    folded = model(port(base, tmp_path / "folded", fold_norms_into_experts))
    whole = names(derive_settings(model(base), folded))
    assert [one.split(" (")[0] for one in whole] == ["weights.norms, mlp"]
    found = derive_settings(model(base), model(port(base, tmp_path / "port", change)))
    assert f"weights.model.layers.1.mlp.{name}" in names(found)
    assert len(names(found)) == 2


def save_phi3(folder: Path) -> Path:
    """Two layers whose gates and ups are one matrix."""
    made = save_llama(folder)  # for its tokenizer
    torch.manual_seed(7)
    Phi3ForCausalLM(
        Phi3Config(
            vocab_size=LlamaConfig.from_pretrained(made).vocab_size, hidden_size=32,
            intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=64, pad_token_id=0,
        )
    ).save_pretrained(folder)  # fmt: skip
    return folder


def exchange_halves(weights: Weights) -> None:
    for name, one in weights.items():
        if "gate_up_proj" in name:
            weights[name] = one.roll(48, 0)


def interleave_exchanged(weights: Weights) -> None:
    for name, one in weights.items():
        if "gate_up_proj" in name:
            weights[name] = one.view(2, 48, 32).flip(0).swapaxes(0, 1).reshape(96, 32)


def store_exponential(weights: Weights) -> None:
    for name, one in weights.items():
        if name.endswith("A_log"):
            weights[name] = -one.exp()


@pytest.mark.parametrize(
    ("save", "change", "name"),
    [
        (save_phi3, exchange_halves, "weights.gate_up_proj (all 2, swapped)"),
        (save_phi3, interleave_exchanged, "weights.gate_up_proj (all 2, swapped)"),
        (save_mamba, store_exponential, "weights.mixer.A_log (all 2, stored as its exponential)"),
        (save_mamba2, store_exponential, "weights.mixer.A_log (all 2, stored as its exponential)"),
    ],
)
def test_what_the_form_of_weights_tells_names_their_setting(
    save: Callable[[Path], Path],
    change: Callable[[Weights], None],
    name: str,
    tmp_path: Path,
) -> None:
    base = save(tmp_path / "base")
    found = derive_settings(model(base), model(port(base, tmp_path / "port", change)))
    assert names(found) == [name]


@pytest.mark.parametrize("norm", ["model.norm", "model.layers.2.input_layernorm"])
def test_one_norm_that_differs_is_named_itself(norm: str, base: Path, tmp_path: Path) -> None:
    def change(weights: Weights) -> None:
        noise = torch.rand(32, generator=torch.Generator().manual_seed(5))
        weights[f"{norm}.weight"] = weights[f"{norm}.weight"] + noise

    found = derive_settings(model(base), model(port(base, tmp_path / "port", change)))
    assert names(found) == [f"weights.{norm}"]


def test_a_norm_that_is_lost_with_its_bias_is_one_mistake_and_zeroed(tmp_path: Path) -> None:
    def change(weights: Weights) -> None:
        for one in weights:
            if "layers.1.input_layernorm" in one:
                weights[one] = torch.zeros_like(weights[one])

    neox = save_neox(tmp_path / "neox")
    found = derive_settings(model(neox), model(port(neox, tmp_path / "port", change)))
    assert names(found) == ["weights.gpt_neox.layers.1.input_layernorm (zeroed)"]


def test_two_mistakes_are_two_settings_and_what_is_like_nothing_known_stays_apart(
    base: Path, tmp_path: Path
) -> None:
    def change(weights: Weights) -> None:
        permute_queries(weights)
        shift_norms(weights)
        one = weights["model.layers.1.mlp.up_proj.weight"]
        one += 0.1 * torch.randn(one.shape, generator=torch.Generator().manual_seed(1))

    found = derive_settings(model(base), model(port(base, tmp_path / "port", change)))
    assert set(names(found)) == {
        "weights.q_proj (all 4, heads permuted)",
        "weights.norms (all 9, plus a constant, +1)",
        "weights.model.layers.1.mlp.up_proj",
    }


def scale(part: str, by: float) -> Callable[[Weights], None]:
    def change(weights: Weights) -> None:
        for name in weights:
            if f"{part}.weight" in name:
                weights[name] = weights[name] * by

    return change


def fold_norms(weights: Weights) -> None:
    for name in [one for one in weights if one.endswith("input_layernorm.weight")]:
        for reader in ("q_proj", "k_proj", "v_proj"):
            weights[name.replace("input_layernorm", f"self_attn.{reader}")] *= weights[name]
        weights[name] = torch.ones_like(weights[name])


def reorder_heads(weights: Weights) -> None:
    for name, one in weights.items():
        if "self_attn" in name:
            axis = int("o_proj" in name)
            heads = one.unflatten(axis, (-1, _HEAD)).flip(axis)
            weights[name] = heads.flatten(axis, axis + 1)


def damage(name: str, how: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Weights], None]:
    def change(weights: Weights) -> None:
        weights[f"model.layers.2.{name}.weight"] = how(weights[f"model.layers.2.{name}.weight"])

    return change


def roll(one: torch.Tensor) -> torch.Tensor:
    return one.roll(1, 0)


def negate(one: torch.Tensor) -> torch.Tensor:
    return torch.cat([-one[:5], one[5:]])


def disturb(one: torch.Tensor) -> torch.Tensor:
    generator = torch.Generator().manual_seed(7)
    return one + 0.5 * one.std() * torch.randn(one.shape, generator=generator)


LAYOUTS: dict[str, tuple[tuple[Callable[[Weights], None], ...], list[str]]] = {
    "values": ((scale("v_proj", 4.0), scale("o_proj", 0.25)), ["v_proj", "o_proj"]),
    "queries": ((scale("q_proj", 0.2), scale("k_proj", 5.0)), ["q_proj", "k_proj"]),
    "inner rows": ((scale("up_proj", 8.0), scale("down_proj", 0.125)), ["up_proj", "down_proj"]),
    "norm": ((fold_norms,), ["q_proj", "k_proj", "v_proj", "input_layernorm"]),
    "heads": ((reorder_heads,), ["q_proj", "k_proj", "v_proj", "o_proj"]),
}


@pytest.mark.parametrize(
    ("layout", "name", "how"),
    [
        ("values", "self_attn.o_proj", roll),
        ("values", "self_attn.v_proj", disturb),
        ("queries", "self_attn.k_proj", roll),
        ("inner rows", "mlp.up_proj", negate),
        ("norm", "self_attn.q_proj", roll),
        ("heads", "self_attn.q_proj", negate),
        ("norm", "self_attn.q_proj", disturb),  # norms grow most where columns are small
    ],
)
def test_a_mistake_inside_weights_that_undo_each_other_is_one_setting_with_them(
    layout: str,
    name: str,
    how: Callable[[torch.Tensor], torch.Tensor],
    base: Path,
    tmp_path: Path,
) -> None:
    changes, parts = LAYOUTS[layout]

    def change(weights: Weights) -> None:
        for one in (*changes, damage(name, how)):
            one(weights)

    found = derive_settings(model(base), model(port(base, tmp_path / "port", change)))
    others = ", ".join(part for part in parts if part not in name)
    wrong = next(one for one in found.variant.settings if "model.layers.2." in one.name)
    assert wrong.name == f"weights.model.layers.2.{name} (with {others})"
    named = {path.rpartition(".")[2] for path in str(wrong.target.path).split(",")}
    assert named in ({*parts}, {"self_attn"})
    without = [one for one in found.variant.settings if one.name != wrong.name]
    assert all("layers.2" not in one.target.path for one in without)
    assert scores(at_reference(found.variant), tmp_path) == scores(model(base), tmp_path)


def test_weights_that_undo_each_other_are_one_setting_of_all_layers(
    base: Path, tmp_path: Path
) -> None:
    changes, _ = LAYOUTS["values"]

    def change(weights: Weights) -> None:
        for one in changes:
            one(weights)

    found = derive_settings(model(base), model(port(base, tmp_path / "port", change)))
    assert names(found) == ["weights.v_proj, o_proj (all 8, scaled against each other)"]


ROTARY_PARTS = ("q_b_proj.weight", "kv_a_proj_with_mqa.weight")


def pair_rotary_rows(weights: Weights, parts: tuple[str, ...] = ROTARY_PARTS) -> None:
    """The last 8 rows of each of the queries' heads, and of the keys', in pairs: 0 4 1 5 2 6 3 7.

    So DeepSeek stores them: ``rope_interleave`` of transformers' DeepseekV3Config.
    """
    for name, one in weights.items():
        if name.endswith(parts):
            width = 16 if "q_b_proj" in name else 20
            heads = one.view(-1, width, one.shape[1])
            pairs = heads[:, -8:].view(len(heads), 2, 4, -1).transpose(1, 2).flatten(1, 2)
            weights[name] = torch.cat([heads[:, :-8], pairs], dim=1).view(one.shape)


def part_rotary_rows(weights: Weights) -> None:
    """The order of the pairs, the other way round."""
    for _ in range(2):  # of order 3
        pair_rotary_rows(weights)


def save_latent(folder: Path, *, pairs: bool, attention_bias: bool = False) -> Path:
    return save_architecture(
        folder, "deepseek_v3: latent keys", num_hidden_layers=3, rope_interleave=pairs,
        attention_bias=attention_bias,
    )  # fmt: skip


def switched(base: Path, folder: Path, *, pairs: bool, changes: tuple[Change, ...]) -> Path:
    """A port with these changes, whose config says that rotary pairs are beside each other."""

    def change(weights: Weights) -> None:
        for one in changes:
            one(weights)

    made = port(base, folder, change)
    config = json.loads((made / "config.json").read_text())
    (made / "config.json").write_text(json.dumps({**config, "rope_interleave": pairs}))
    return made


@pytest.mark.parametrize(("pairs", "change"), [(True, pair_rotary_rows), (False, part_rotary_rows)])
def test_rotary_rows_reordered_with_the_switch_that_says_so_are_one_setting(
    pairs: bool, change: Change, tmp_path: Path
) -> None:
    base = save_latent(tmp_path / "base", pairs=not pairs)
    found = derive_settings(
        model(base), model(switched(base, tmp_path / "port", pairs=pairs, changes=(change,)))
    )
    name = (
        "weights.q_b_proj, kv_a_proj_with_mqa "
        "(all 6, reordered together with config.rope_interleave)"
    )
    switch, weights = found.variant.settings
    assert (switch.name, switch.follows) == ("config.rope_interleave", name)
    assert weights.name == name
    assert [one.name for one in settings_off_reference(found.variant)] == [name]
    back = found.variant.assigned({name: weights.reference})
    assert back.assignment["config.rope_interleave"] is (not pairs)
    assert (
        scores(back, tmp_path) == scores(found.variant, tmp_path) == scores(model(base), tmp_path)
    )
    assert found.complete


def leave_apart(one: torch.Tensor) -> torch.Tensor:
    """Queries whose rows are not put in pairs, and one row that is another."""
    weights = {"q_b_proj.weight": one}
    part_rotary_rows(weights)
    return negate(weights["q_b_proj.weight"])


@pytest.mark.parametrize(
    ("part", "how"),
    [
        ("q_b_proj", roll),
        ("q_b_proj", disturb),
        ("q_b_proj", leave_apart),
        ("kv_a_proj_with_mqa", negate),
    ],
)
def test_a_mistake_inside_reordered_rotary_rows_is_one_setting_with_them_and_named(
    part: str, how: Callable[[torch.Tensor], torch.Tensor], tmp_path: Path
) -> None:
    base = save_latent(tmp_path / "base", pairs=False)
    changes = (pair_rotary_rows, damage(f"self_attn.{part}", how))
    made = switched(base, tmp_path / "port", pairs=True, changes=changes)
    found = derive_settings(model(base), model(made))
    (other,) = {"q_b_proj", "kv_a_proj_with_mqa"} - {part}
    told = f"weights.model.layers.2.self_attn.{part} (with {other}, config.rope_interleave)"
    assert names(found) == ["config.rope_interleave", told]
    assert [one.name for one in settings_off_reference(found.variant)] == [told]
    assert scores(at_reference(found.variant), tmp_path) == scores(model(base), tmp_path)


def test_biases_go_with_reordered_rotary_rows(tmp_path: Path) -> None:
    base = save_latent(tmp_path / "base", pairs=False, attention_bias=True)
    weights = load_file(base / "model.safetensors")
    for name in weights:
        if name.endswith("proj_with_mqa.bias"):
            weights[name] = torch.linspace(-1.0, 1.0, 20)
    save_file(weights, base / "model.safetensors", metadata={"format": "pt"})

    def change(weights: Weights) -> None:
        biases = {n: one[:, None] for n, one in weights.items() if n.endswith("with_mqa.bias")}
        pair_rotary_rows(biases, ("kv_a_proj_with_mqa.bias",))
        weights |= {name: one[:, 0] for name, one in biases.items()}

    made = switched(base, tmp_path / "port", pairs=True, changes=(pair_rotary_rows, change))
    found = derive_settings(model(base), model(made))
    assert len(settings_off_reference(found.variant)) == 1
    assert scores(found.variant, tmp_path) == scores(model(base), tmp_path)


@pytest.mark.parametrize(
    ("pairs", "changes", "expected"),
    [
        (True, (), "config.rope_interleave"),
        (
            False,
            (pair_rotary_rows,),
            "weights.q_b_proj, kv_a_proj_with_mqa (all 6, rotary pairs)",
        ),
    ],
)
def test_a_switch_or_an_order_of_rotary_rows_alone_is_one_mistake(
    pairs: bool, changes: tuple[Change, ...], expected: str, tmp_path: Path
) -> None:
    base = save_latent(tmp_path / "base", pairs=False)
    made = switched(base, tmp_path / "port", pairs=pairs, changes=changes)
    assert names(derive_settings(model(base), model(made))) == [expected]


def test_a_switch_the_other_way_than_the_rows_stays_a_mistake_of_its_own(tmp_path: Path) -> None:
    base = save_latent(tmp_path / "base", pairs=True)
    made = switched(base, tmp_path / "port", pairs=False, changes=(pair_rotary_rows,))
    assert names(derive_settings(model(base), model(made))) == [
        "config.rope_interleave",
        "weights.q_b_proj, kv_a_proj_with_mqa (all 6, rotary pairs)",
    ]


def test_over_layers_rotary_rows_come_with_the_switch_of_their_module(tmp_path: Path) -> None:
    base = save_latent(tmp_path / "base", pairs=False)
    made = switched(base, tmp_path / "port", pairs=True, changes=(pair_rotary_rows,))
    found = derive_module_settings(model(base), model(made), "layers")
    layers = [f"model.layers.{layer}" for layer in range(3)]
    assert {*layers} <= {one.name for one in found.variant.settings}
    changes = {one.name: one.reference for one in found.variant.settings if one.name in layers[:1]}
    assert scores(found.variant.assigned(changes), tmp_path) == scores(model(base), tmp_path)


def test_what_nothing_takes_back_stays_apart(base: Path, tmp_path: Path) -> None:
    def change(weights: Weights) -> None:
        scale("v_proj", 4.0)(weights)
        damage("self_attn.o_proj", roll)(weights)
        damage("mlp.down_proj", lambda one: one * 0.25)(weights)

    found = derive_settings(model(base), model(port(base, tmp_path / "port", change)))
    assert set(names(found)) == {
        "weights.v_proj (all 4, scaled, by 4)",
        "weights.model.layers.2.self_attn.o_proj (shifted)",
        "weights.model.layers.2.mlp.down_proj (scaled, by 0.25)",
    }


def test_what_different_modules_hold_can_be_asked_apart(base: Path, tmp_path: Path) -> None:
    def change(weights: Weights) -> None:
        order = torch.tensor([5, 3, 0, 1, 2, 4, *range(6, 48)])
        for layer in (1, 3):
            for name, axis in (("gate_proj", 0), ("up_proj", 0), ("down_proj", 1)):
                key = f"model.layers.{layer}.mlp.{name}.weight"
                weights[key] = weights[key].index_select(axis, order)

    found = derive_settings(model(base), model(port(base, tmp_path / "port", change)))
    (name,) = names(found)
    assert name == "weights.mlp (layers 1 and 3, rows permuted, columns permuted)"
    assert [one.name for one in found.groups[name]] == [
        "weights.gate_proj (layers 1 and 3, rows permuted)",
        "weights.up_proj (layers 1 and 3, rows permuted)",
        "weights.down_proj (layers 1 and 3, columns permuted)",
    ]  # fmt: skip


def test_over_layers_one_mistake_is_taken_back_as_one(base: Path, tmp_path: Path) -> None:
    def change(weights: Weights) -> None:
        kept = {name: one for name, one in weights.items() if ".1." in name or ".2." in name}
        permute_queries(weights)
        weights |= kept
        exchange({1: 2, 2: 1})(weights)

    candidate = port(base, tmp_path / "port", change)
    found = derive_module_settings(model(base), model(candidate), "layers")
    names = [one.name for one in found.variant.settings]
    assert names[:2] == ["layers.1, layers.2 (swapped)", "q_proj (layers 0 and 3, heads permuted)"]
    assert {"model.layers.0", "model.layers.3"} < set(names)
    assert not {"model.layers.1", "model.layers.2"} & set(names)
    mended = {one.name: one.reference for one in found.variant.settings[:2]}
    assert scores(found.variant.assigned(mended), tmp_path) == scores(model(base), tmp_path)
    inside = {one.target.path for finer in found.groups.values() for one in finer}
    assert "model.layers.0.self_attn.q_proj" not in inside
