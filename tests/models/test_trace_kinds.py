"""What a fault is made of is told: one number, rotary positions, a tie, a nan, a class."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from traced_faults import DOCUMENTS, after
from traced_models import changed, make_llama
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from evalguard.core.activation_sums import ErrorSums
from evalguard.tracing.measure.forced_trace import trace_models


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("module", "function", "says"),
    [
        ("lm_head", lambda x: x * 6.0, "output is 6.00 times the base's, cosine 1.000000"),
        ("model.embed_tokens", lambda x: x * 12.0, "output is 12.00 times the base's, cosine 1"),
        ("lm_head", lambda x: x / 6.0, "output is 0.16667 times the base's, cosine 1.0"),
        ("model.norm", lambda x: x * 1.02, "output is 1.02 times the base's"),
        ("model.layers.1.mlp.down_proj", lambda x: -x, "output is the base's with the other sign"),
        ("model.layers.1.mlp.up_proj", lambda x: x + 0.25, "output is the base's plus 0.25"),
        ("model.layers.0.self_attn.o_proj", lambda x: x * 0.0, "output is zero"),
    ],
)
def test_one_number_that_is_the_whole_error_is_told(
    module: str, function: Any, says: str, dtype: torch.dtype
) -> None:
    base = make_llama()
    found = trace_models(base, changed(base, after(module, function), dtype), DOCUMENTS)
    assert found.first is not None
    assert found.first.module == module
    if dtype is torch.float32:  # the other one rounds the number, too
        assert says in found.first.operation
    assert found.first.relation is not None


@pytest.mark.parametrize(
    "function",
    [
        torch.tanh,
        lambda x: x * torch.linspace(0.5, 2.0, x.shape[-1]),
        lambda x: x.roll(1, -1),
        lambda x: x + torch.linspace(0.5, 2.0, x.shape[-1]),
        lambda x: x.abs(),
    ],
)
def test_what_is_no_constant_is_not_called_one(function: Any) -> None:
    base = make_llama()
    found = trace_models(base, changed(base, after("lm_head", function)), DOCUMENTS)
    assert found.first is not None
    assert found.first.relation is None
    assert "computes something else" in found.first.operation


def test_factors_and_offsets_are_read_off_the_sums() -> None:
    values = np.random.default_rng(0).standard_normal((64, 32)).astype(np.float32)
    for made, kind, value in (
        (values * 3, "factor", 3.0), (values * -1, "factor", -1.0),
        (values * 1.001, "factor", 1.001), (values + 2, "offset", 2.0),
        (values - 0.01, "offset", -0.01),
    ):  # fmt: skip
        sums = ErrorSums()
        sums.add(values, made.astype(np.float32))
        relation = sums.relation()
        assert relation is not None
        assert relation.kind == kind
        assert relation.value == pytest.approx(value, rel=1e-3)


def make_router(kind: str, **sizes: Any) -> Any:
    """A mixture whose routers choose with biases that its files store beside the weights."""
    torch.manual_seed(0)
    config = CONFIG_MAPPING[kind](
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=4, moe_intermediate_size=24,
        initializer_range=0.3, num_experts_per_tok=2, **sizes,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config).eval()
    for name, held in model.named_buffers():
        if name.endswith("_bias"):
            held.copy_(torch.linspace(-0.3, 0.3, len(held))[torch.randperm(len(held))])
    return model


def test_buffers_that_are_stored_are_weights() -> None:
    base = make_router(
        "deepseek_v3", q_lora_rank=12, kv_lora_rank=12, qk_rope_head_dim=8, qk_nope_head_dim=8,
        v_head_dim=8, n_routed_experts=8, n_group=2, topk_group=1, first_k_dense_replace=1,
    )  # fmt: skip
    gate = "model.layers.1.mlp.gate"
    for change, says in (
        (lambda held: held.zero_(), "is all zeros"),
        (
            lambda held: held.copy_(held.flip(0)),
            "has its elements in another order (all 8 elements reversed)",
        ),
        (lambda held: held.mul_(-1), "looks scaled by -1 (other sign)"),
    ):
        candidate = changed(base, lambda m, c=change: c(m.get_buffer(f"{gate}.{CORRECTION}")))
        found = trace_models(base, candidate, DOCUMENTS)
        assert found.first is not None
        assert [one.module for one in found.suspects] == [gate]
        assert found.first.operation.startswith(f"weights: {CORRECTION} {says}")
        assert base.get_buffer(f"{gate}.{CORRECTION}").any(), "left as it was"
    healthy = trace_models(base, changed(base, lambda _: None, torch.bfloat16), DOCUMENTS)
    assert healthy.suspects == ()
    other = trace_models(base, changed(base, after(gate, add_to_weights)), DOCUMENTS)
    assert [one.fault for one in other.suspects] == ["operation"]


CORRECTION = "e_score_correction_bias"


def add_to_weights(routed: Any) -> Any:
    return tuple(one + 0.25 if one.is_floating_point() else one for one in routed)


@pytest.mark.parametrize("also", [False, True])
def test_weights_that_a_module_hands_to_another_are_named_where_they_are_held(also: bool) -> None:
    kinds = ["full_attention", "full_attention"]
    base = make_router("lfm2_moe", num_experts=8, num_dense_layers=1, layer_types=kinds)
    block = "model.layers.1.feed_forward"

    def change(model: Any) -> None:
        model.get_buffer(f"{block}.expert_bias").zero_()
        if also:
            after(f"{block}.gate", add_to_weights)(model)

    found = trace_models(base, changed(base, change), DOCUMENTS)
    named = [(one.module, one.fault) for one in found.suspects]
    assert named == [(block, "weights"), *([(f"{block}.gate", "operation")] if also else [])]


def test_halves_that_all_experts_have_exchanged_are_told() -> None:
    sizes = {"n_routed_experts": 4, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1}
    ranks = {"q_lora_rank": 12, "kv_lora_rank": 12}
    heads = {"qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
    base = make_router("deepseek_v3", **sizes, **ranks, **heads)
    name = "model.layers.1.mlp.experts.gate_up_proj"

    def exchange(model: Any) -> None:
        held = model.get_parameter(name)
        held.copy_(held.roll(held.shape[1] // 2, 1).clone())

    found = trace_models(base, changed(base, exchange), DOCUMENTS)
    assert found.first is not None
    told = "gate_up_proj has its two halves along axis 1 exchanged"
    assert found.first.operation == f"weights: {told}"


def test_weights_that_show_beside_an_output_are_named_as_weights() -> None:
    torch.manual_seed(0)
    base = AutoModelForCausalLM.from_config(
        CONFIG_MAPPING["gpt_oss"](
            vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, head_dim=8,
            num_attention_heads=4, num_key_value_heads=2, num_local_experts=2,
            num_experts_per_tok=2, initializer_range=0.3, pad_token_id=1,
        )
    ).eval()  # fmt: skip
    attention = "model.layers.1.self_attn"
    candidate = changed(base, lambda m: m.get_parameter(f"{attention}.sinks").zero_())
    found = trace_models(base, candidate, DOCUMENTS)
    assert [(one.module, one.difference) for one in found.suspects] == [
        (attention, "weights: sinks is all zeros")
    ]
