"""What weights are called together says which they are, and how many there are of the kind."""

from __future__ import annotations

import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Mamba2Config,
    Mamba2ForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from evalguard.bisect.settings.weight_names import name_weights
from evalguard.models.unloaded_models import locate_weights

SIZES = {
    "vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2,
    "num_key_value_heads": 1, "intermediate_size": 16,
}  # fmt: skip


def build(kind: str) -> PreTrainedModel:
    with torch.device("meta"):
        if kind == "mamba2":
            return Mamba2ForCausalLM(
                Mamba2Config(
                    vocab_size=32, hidden_size=16, num_hidden_layers=3, num_heads=4, head_dim=8,
                    state_size=4, n_groups=1,
                )
            )  # fmt: skip
        if kind == "qwen2":
            return Qwen2ForCausalLM(Qwen2Config(**SIZES))
        if kind == "moe":
            return Qwen3MoeForCausalLM(
                Qwen3MoeConfig(
                    **SIZES, num_experts=2, num_experts_per_tok=1, moe_intermediate_size=8,
                    mlp_only_layers=[0],
                )
            )  # fmt: skip
        return LlamaForCausalLM(LlamaConfig(**SIZES))


@pytest.mark.parametrize(
    ("kind", "endings", "name"),
    [
        ("mamba2", ("mixer.dt_bias",), "mixer.dt_bias (all 3)"),
        ("mamba2", ("mixer.D",), "mixer.D (all 3)"),
        ("mamba2", ("0.mixer.A_log", "2.mixer.A_log"), "mixer.A_log (layers 0 and 2)"),
        ("mamba2", ("1.mixer.D",), "backbone.layers.1.mixer.D"),
        ("mamba2", ("mixer.dt_bias", "mixer.D"), "mixer.dt_bias, mixer.D (all 6)"),
        ("mamba2", ("mixer.dt_bias", "mixer.D", "mixer.A_log"), "mixer (all 9)"),
        ("mamba2", ("1.mixer.dt_bias", "1.mixer.D"),
         "backbone.layers.1.mixer.D, backbone.layers.1.mixer.dt_bias"),
        ("mamba2", ("mixer.norm.weight",), "mixer.norm (all 3)"),
        ("mamba2", (".norm.weight",), "norm (all 6)"),
        ("mamba2", ("conv1d.weight", "mixer.D"), "mixer.D, conv1d (all 6)"),
        ("qwen2", ("q_proj.bias",), "q_proj.bias (all 3)"),
        ("qwen2", ("q_proj.bias", "k_proj.bias"), "q_proj.bias, k_proj.bias (all 6)"),
        (
            "qwen2", ("q_proj.bias", "k_proj.bias", "v_proj.bias"),
            "q_proj.bias, k_proj.bias, v_proj.bias (all 9)",
        ),
        ("qwen2", ("q_proj.bias", "q_proj.weight"), "q_proj (all 6)"),
        ("qwen2", ("1.self_attn.q_proj.bias", "1.self_attn.q_proj.weight"),
         "model.layers.1.self_attn.q_proj"),
        ("qwen2", ("q_proj.weight", "k_proj.weight", "v_proj.weight", "o_proj.weight"),
         "attention (all 12)"),
        ("qwen2", ("q_proj.weight", "k_proj.weight", "v_proj.weight"), "attention (9 of 12)"),
        ("qwen2", ("_proj.weight",), "all layers"),
        ("qwen2", ("_proj.weight", "layernorm.weight"), "all layers"),
        ("llama", ("q_proj.weight", "k_proj.weight", "v_proj.weight", "o_proj.weight",
                   "layernorm.weight"), "norms, attention (18 of 19)"),
        ("llama", ("o_proj.weight", "v_proj.weight", "layernorm.weight"),
         "norms, attention (12 of 19)"),
        ("llama", ("o_proj.weight", "down_proj.weight", "layernorm.weight", "up_proj.weight"),
         "tensors (15 of 30)"),
        ("llama", tuple(f"1.{one}.weight" for one in ("self_attn.q_proj", "self_attn.k_proj",
                        "self_attn.o_proj", "input_layernorm")), "norms, attention (layer 1)"),
        ("moe", ("experts.down_proj",), "experts.down_proj (all 2)"),
        ("moe", ("experts.gate_up_proj", "experts.down_proj"), "experts (all 4)"),
        ("moe", ("mlp.down_proj.weight",), "model.layers.0.mlp.down_proj"),
        ("llama", ("q_proj.weight",), "q_proj (all 3)"),
        ("llama", ("1.self_attn.q_proj.weight", "2.self_attn.q_proj.weight"),
         "q_proj (layers 1 and 2)"),
        ("llama", ("input_layernorm.weight", "post_attention_layernorm.weight"),
         "input_layernorm, post_attention_layernorm (all 6)"),
    ],
)  # fmt: skip
def test_weights_are_called_by_what_they_are(
    kind: str, endings: tuple[str, ...], name: str
) -> None:
    places = locate_weights(build(kind))
    tensors = [one for one in places if one.endswith(endings)]
    assert tensors
    assert name_weights(tensors, places) == name


def test_two_parameters_of_one_module_have_two_names() -> None:
    """dt_bias and D of a mixer were both "mixer (3 of 9)"."""
    places = locate_weights(build("mamba2"))
    names = [
        name_weights([one for one in places if one.endswith(leaf)], places, "zeroed")
        for leaf in ("mixer.dt_bias", "mixer.D", "mixer.A_log")
    ]
    assert len(set(names)) == 3
