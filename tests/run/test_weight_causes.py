"""Weights that differ for one reason are one setting, told by the files alone."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from changed_models import at_reference, model, scores
from safetensors.torch import load_file, save_file
from tiny_models import save_llama
from transformers import LlamaConfig, LlamaForCausalLM

from evalguard.run.bisection.derived_settings import DerivedCandidate, derive_settings
from evalguard.run.modules.module_settings import derive_module_settings

Weights = dict[str, torch.Tensor]


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


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (permute_queries, "weights.q_proj (all 4, heads permuted)"),
        (shift_norms, "weights.norms (all 9, plus a constant, +1)"),
        (exchange({1: 2, 2: 1}), "weights.layers.1, layers.2 (swapped)"),
        (exchange({0: 1, 1: 2, 2: 0}), "weights.layers.0, layers.1, layers.2 (in another order)"),
        (swap_gate_and_up, "weights.gate_proj, up_proj (all 8, swapped)"),
        (swap_and_round, "weights.layers.1, layers.2 (swapped)"),
        (exchange({2: 1}), "weights.layers.2 (a copy of other weights)"),
        (scale_head, "weights.down_proj (all 4, scaled, by 1.25)"),
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


def test_what_different_modules_hold_can_be_asked_apart(base: Path, tmp_path: Path) -> None:
    def change(weights: Weights) -> None:
        order = torch.tensor([5, 3, 0, 1, 2, 4, *range(6, 48)])
        for layer in (1, 3):
            for name, axis in (("gate_proj", 0), ("up_proj", 0), ("down_proj", 1)):
                key = f"model.layers.{layer}.mlp.{name}.weight"
                weights[key] = weights[key].index_select(axis, order)

    found = derive_settings(model(base), model(port(base, tmp_path / "port", change)))
    (name,) = names(found)
    assert name == "weights.layers.1, layers.3 (rows permuted, columns permuted)"
    assert [one.name for one in found.groups[name]] == [
        "weights.gate_proj (2 of 4)", "weights.up_proj (2 of 4)", "weights.down_proj (2 of 4)",
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
    assert names[:2] == ["layers.1, layers.2 (swapped)", "q_proj (2 of 4, heads permuted)"]
    assert {"model.layers.0", "model.layers.3"} < set(names)
    assert not {"model.layers.1", "model.layers.2"} & set(names)
    mended = {one.name: one.reference for one in found.variant.settings[:2]}
    assert scores(found.variant.assigned(mended), tmp_path) == scores(model(base), tmp_path)
    inside = {one.target.path for finer in found.groups.values() for one in finer}
    assert "model.layers.0.self_attn.q_proj" not in inside
