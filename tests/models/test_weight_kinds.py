"""The tensors of very different models are sorted by what they are for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from architectures import save_architecture

from evalguard.models.unloaded_models import (
    build_empty_model,
    locate_weights,
    read_effective_config,
)

# kind -> what stands before the last part of its tensors' names, layers folded
EXPECTED: dict[str, dict[str, set[str]]] = {
    "gpt2: learned positions": {
        "embeddings": {"transformer.wte", "transformer.wpe"},
        "norms": {"transformer.h.*.ln_1", "transformer.h.*.ln_2", "transformer.ln_f"},
        "attention": {"transformer.h.*.attn.c_attn", "transformer.h.*.attn.c_proj"},
        "mlp": {"transformer.h.*.mlp.c_fc", "transformer.h.*.mlp.c_proj"},
        "output_head": {"lm_head"},
    },
    "opt: positions from the mask": {
        "embeddings": {"model.decoder.embed_tokens", "model.decoder.embed_positions"},
        "norms": {
            "model.decoder.layers.*.self_attn_layer_norm", "model.decoder.final_layer_norm",
            "model.decoder.layers.*.final_layer_norm",
        },
        "attention": {f"model.decoder.layers.*.self_attn.{n}_proj" for n in ("q", "k", "v", "out")},
        "mlp": {"model.decoder.layers.*.fc1", "model.decoder.layers.*.fc2"},
        "output_head": {"lm_head"},
    },
    "mixtral: experts": {
        "embeddings": {"model.embed_tokens"},
        "norms": {
            "model.layers.*.input_layernorm", "model.layers.*.post_attention_layernorm",
            "model.norm",
        },
        "attention": {f"model.layers.*.self_attn.{n}_proj" for n in "qkvo"},
        "mlp": {"model.layers.*.mlp.gate", "model.layers.*.mlp.experts"},
        "output_head": {"lm_head"},
    },
    "mamba: a state": {
        "embeddings": {"backbone.embeddings"},
        "norms": {"backbone.layers.*.norm", "backbone.norm_f"},
        "recurrent": {
            "backbone.layers.*.mixer",
            *(f"backbone.layers.*.mixer.{n}" for n in ("conv1d", "in_proj", "x_proj", "dt_proj")),
            "backbone.layers.*.mixer.out_proj",
        },
        "output_head": {"lm_head"},
    },
    "recurrent_gemma: gated recurrences": {
        "embeddings": {"model.embed_tokens"},
        "norms": {
            "model.layers.*.temporal_pre_norm", "model.layers.*.channel_pre_norm",
            "model.final_norm",
        },
        "recurrent": {
            f"model.layers.*.temporal_block.{n}"
            for n in ("linear_x", "linear_y", "linear_out", "conv_1d", "rg_lru")
        },
        "attention": {f"model.layers.*.temporal_block.{n}_proj" for n in "qkvo"},
        "mlp": {f"model.layers.*.mlp_block.{n}_proj" for n in ("gate", "up", "down")},
        "output_head": {"lm_head"},
    },
}  # fmt: skip


@pytest.mark.parametrize("name", EXPECTED)
def test_every_tensor_has_its_kind(name: str, tmp_path: Path) -> None:
    arguments = {"pretrained": str(save_architecture(tmp_path / "model", name))}
    model = build_empty_model(read_effective_config(arguments, {}), arguments)
    found: dict[str, set[str]] = {}
    for place in locate_weights(model).values():
        folded = re.sub(r"\.\d+(?=\.)", ".*", place.module)
        found.setdefault(place.kind, set()).add(folded)
    assert found == EXPECTED[name]


def test_layers_are_counted_where_they_stand_in_a_list(tmp_path: Path) -> None:
    arguments = {"pretrained": str(save_architecture(tmp_path / "model", "mixtral: experts"))}
    places = locate_weights(build_empty_model(read_effective_config(arguments, {}), arguments))
    assert places["model.layers.1.mlp.experts.down_proj"].layer == 1
    assert places["model.norm.weight"].layer is None
