"""Faults inside experts, and of weights that another module's code uses, are named alone.

Inside an expert laid out otherwise what cancels is no fault, whether one tensor holds all experts
or each is a module.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from architectures import ARCHITECTURES as FIRST
from architectures import ATTENTIONS, FURTHER
from other_layouts import make as make_port
from other_layouts import roll_rows
from traced_models import changed, make_sequences
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from evalguard.core.trace_points import token_inputs
from evalguard.tracing.measure.forced_trace import trace_models

ROUTED = ["mixtral: experts", "olmoe: experts", "deepseek_v3: latent keys"]


def make(name: str, seed: int) -> Any:
    kind, values = {**FIRST, **ATTENTIONS, **FURTHER}[name]
    torch.manual_seed(seed)
    config = CONFIG_MAPPING[kind](vocab_size=64, **values)
    model = AutoModelForCausalLM.from_config(config).eval()
    for parameter in model.parameters():  # no bias is zero and no norm is one
        if parameter.ndim < 2:
            parameter.data += torch.randn_like(parameter) * 0.1
    return model


@pytest.mark.parametrize("name", ROUTED)
def test_another_activation_of_one_layers_experts_is_named(name: str) -> None:
    base = make(name, 1)
    layer = "model.layers.1.mlp.experts"

    def change(model: Any) -> None:
        model.get_submodule(layer).act_fn = torch.nn.GELU()

    found = trace_models(base, changed(base, change), make_sequences(length=20))
    assert [one.module for one in found.suspects] == [f"{layer}.act_fn"]


@pytest.mark.parametrize("name", ROUTED)
def test_experts_that_compute_something_else_are_named(name: str) -> None:
    base = make(name, 3)
    layer = "model.layers.1.mlp.experts"

    def change(model: Any) -> None:
        experts = model.get_submodule(layer)
        own = experts.forward
        experts.forward = lambda x, *routes: own(x, *routes) + 0.01 * own(x.roll(1, 0), *routes)

    found = trace_models(base, changed(base, change), make_sequences(length=20))
    assert [one.module for one in found.suspects] == [layer]


@pytest.mark.parametrize("name", ROUTED)
def test_experts_in_bfloat16_are_no_suspects(name: str) -> None:
    base = make(name, 4)
    rng = np.random.default_rng(4)
    documents = [token_inputs(rng.integers(0, 64, 24).tolist())]
    found = trace_models(base, changed(base, lambda _: None, torch.bfloat16), documents)
    assert found.suspects == ()


@pytest.mark.parametrize("name", ["mamba: a state", "jamba: a state, attention, experts"])
@pytest.mark.parametrize("kinds", [("weight",), ("bias",), ("weight", "dt_proj")])
def test_weights_that_another_modules_code_uses_are_blamed_alone(
    name: str, kinds: tuple[str, ...]
) -> None:
    base = make(name, 5)
    mixer = "backbone.layers.1.mixer" if name.startswith("mamba") else "model.layers.0.mamba"

    def change(model: Any) -> None:
        module = model.get_submodule(mixer)
        for kind in kinds:
            held = module.dt_proj.bias if kind == "dt_proj" else getattr(module.conv1d, kind)
            held.data = held.data.roll(1, 0)

    found = trace_models(base, changed(base, change), make_sequences(length=20))
    guilty = {f"{mixer}.dt_proj" if kind == "dt_proj" else f"{mixer}.conv1d" for kind in kinds}
    assert {one.module for one in found.suspects} == guilty


@pytest.mark.parametrize(
    "name", ["mixtral: experts", "gpt_oss: sinks, every other layer with a window"]
)
def test_a_router_that_picks_fewer_experts_is_named_and_not_the_experts(name: str) -> None:
    base = make(name, 6)
    router = (
        "model.layers.1.mlp.gate" if name.startswith("mixtral") else "model.layers.1.mlp.router"
    )

    def change(model: Any) -> None:
        model.get_submodule(router).top_k = 1

    found = trace_models(base, changed(base, change), make_sequences(length=20))
    assert [one.module for one in found.suspects] == [router]
    assert found.suspects[0].difference == "output has the shape [20, 1], the base's [20, 2]"


# Of the second layer's experts, laid out otherwise with the same outputs.


class SeparateExperts(torch.nn.Module):
    """Mixtral's experts, a module each."""

    def __init__(self, stacked: Any) -> None:
        super().__init__()
        self.act_fn = stacked.act_fn
        width = stacked.down_proj.shape[2]
        for number, (both, down) in enumerate(
            zip(stacked.gate_up_proj, stacked.down_proj, strict=True)
        ):
            expert = torch.nn.Module()
            parts = {"gate_proj": both[:width], "up_proj": both[width:], "down_proj": down}
            for name, weight in parts.items():
                linear = torch.nn.Linear(*weight.shape[::-1], bias=False)
                linear.weight = torch.nn.Parameter(weight.detach().clone())
                expert.add_module(name, linear)
            self.add_module(str(number), expert)

    def forward(self, x: Any, chosen: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        made = torch.zeros_like(x)
        for number in chosen.unique():
            expert: Any = self.get_submodule(str(int(number)))
            tokens, places = torch.where(chosen == number)
            inner = self.act_fn(expert.gate_proj(x[tokens])) * expert.up_proj(x[tokens])
            own = expert.down_proj(inner) * shares[tokens, places, None]
            made.index_add_(0, tokens, own.to(made.dtype))
        return made


def make_experts(form: str) -> Any:
    """In bfloat16, where numbers that are no powers of two are rounded anew."""
    if form == "turned":  # of which 16 bits would hide that anything was added in another order
        return make_port("gpt_oss", num_hidden_layers=2)
    base = make_port("mixtral", num_hidden_layers=2)
    if form == "separate":
        base.model.layers[1].mlp.experts = SeparateExperts(base.model.layers[1].mlp.experts)
    return base.bfloat16()


def scale_an_expert(model: Any, undone: float = 3.0, *, part: str = "up", expert: int = 1) -> None:
    """What one expert makes inside times 3, and what reads it by that."""
    experts = model.model.layers[1].mlp.experts
    if isinstance(experts, SeparateExperts):
        one: Any = experts.get_submodule(str(expert))
        one.up_proj.weight.mul_(3.0)
        one.down_proj.weight.div_(undone)
    else:
        gate, up = experts.gate_up_proj[expert].chunk(2)
        (gate if part == "gate" else up).mul_(3.0)
        experts.down_proj[expert].div_(undone)


def reorder_inside_an_expert(model: Any) -> None:
    """GPT-OSS holds its matrices turned, with rows of gate and up by turns, and biases."""
    experts = model.model.layers[1].mlp.experts
    order = torch.arange(experts.down_proj.shape[1] - 1, -1, -1)
    both = torch.stack([2 * order, 2 * order + 1], 1).flatten()
    for weight in (experts.gate_up_proj[1].T, experts.gate_up_proj_bias[1]):
        weight.copy_(weight[both].clone())
    experts.down_proj[1] = experts.down_proj[1][order].clone()


def trace_experts(base: Any, change: Callable[[Any], object]) -> tuple[list[str], list[str]]:
    """Names of suspects, and of what is another layout."""
    found = trace_models(base, changed(base, change), make_sequences(count=1, length=16))
    return [one.module for one in found.suspects], [one.module for one in found.other_layouts]


@pytest.mark.parametrize(
    ("form", "change", "moved"),
    [
        ("stacked", scale_an_expert, {""}),
        ("separate", scale_an_expert, {".1.up_proj", ".1.down_proj"}),
        ("turned", reorder_inside_an_expert, {""}),
    ],
)
def test_an_expert_laid_out_otherwise_is_no_suspect(
    form: str, change: Callable[[Any], None], moved: set[str]
) -> None:
    suspects, layouts = trace_experts(make_experts(form), change)
    assert suspects == []
    assert set(layouts) == {f"model.layers.1.mlp.experts{one}" for one in moved}


@pytest.mark.slow
def test_a_fault_beside_such_an_expert_is_the_only_suspect() -> None:
    def change(model: Any) -> None:
        scale_an_expert(model)
        roll_rows(model.model.layers[0])

    suspects, layouts = trace_experts(make_experts("stacked"), change)
    assert suspects == ["model.layers.0.mlp.gate"]
    assert layouts == ["model.layers.1.mlp.experts"]


@pytest.mark.parametrize(
    "change",
    [
        partial(scale_an_expert, undone=2.985),
        partial(scale_an_expert, part="gate"),
    ],
    ids=["by another factor", "before the activation"],
)
def test_an_expert_that_is_not_quite_undone_is_a_fault(change: Callable[[Any], None]) -> None:
    suspects, layouts = trace_experts(make_experts("stacked"), change)
    assert suspects == ["model.layers.1.mlp.experts"]
    assert layouts == []


@pytest.mark.slow
def test_nothing_tells_whether_an_expert_that_no_token_reaches_is_undone() -> None:
    base = make_port("deepseek_v3", num_hidden_layers=2)
    with torch.no_grad():
        base.model.layers[1].mlp.gate.e_score_correction_bias[1] = -1e4
    candidate = changed(base, partial(scale_an_expert, part="gate"), torch.bfloat16)
    found = trace_models(base, candidate, make_sequences(count=1, length=16))
    assert [one.module for one in found.suspects] == ["model.layers.1.mlp.experts"]
    assert found.other_layouts == ()
