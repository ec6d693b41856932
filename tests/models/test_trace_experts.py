"""Faults inside experts, and of weights that another module's code uses, are named alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from architectures import ARCHITECTURES as FIRST
from architectures import ATTENTIONS, FURTHER
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
