"""Tiny random models of many architectures, each with what is special about it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tiny_models import save_tokenizer
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

_SIZES = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 48, "initializer_range": 0.3,
}  # fmt: skip
_LINEAR = {
    "head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "full_attention"],
}  # fmt: skip
_LONGROPE = {
    "rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 24,
    "short_factor": [1.0] * 4, "long_factor": [1.0, 2.0, 4.0, 8.0], "factor": 2.0,
}  # fmt: skip
_GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 48, "initializer_range": 0.3}
_STATE = {"hidden_size": 32, "num_hidden_layers": 2}

# name -> (model type of transformers, config)
ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2: learned positions": ("gpt2", _GPT2),
    "opt: positions from the mask": (
        "opt",
        {**_SIZES, "ffn_dim": 48, "word_embed_proj_dim": 32, "init_std": 0.3},
    ),
    "gpt_neox: partial rotary": ("gpt_neox", _SIZES),
    "mistral: sliding window": ("mistral", {**_SIZES, "sliding_window": 6}),
    "gemma3: two kinds of rotary": (
        "gemma3_text",
        {**_SIZES, "head_dim": 12, "sliding_window": 6},
    ),
    "qwen3: wide heads": ("qwen3", {**_SIZES, "head_dim": 16}),
    "mixtral: experts": (
        "mixtral",
        {**_SIZES, "num_local_experts": 4, "num_experts_per_tok": 2},
    ),
    "mamba: a state": ("mamba", {**_STATE, "state_size": 4, "initializer_range": 0.3}),
    "rwkv: a state without a mask": ("rwkv", {**_STATE, "context_length": 48}),
    "qwen3_5: gated delta rule": ("qwen3_5_text", {**_SIZES, **_LINEAR}),
    "falcon_h1: attention beside a state": (
        "falcon_h1",
        {
            **_SIZES,
            "head_dim": 8,
            "mamba_d_ssm": 32,
            "mamba_n_heads": 4,
            "mamba_d_head": 8,
            "mamba_d_state": 8,
            "mamba_chunk_size": 8,
            "lm_head_multiplier": 0.5,
        },
    ),
    "recurrent_gemma: gated recurrences": (
        "recurrent_gemma",
        {
            **_SIZES,
            "head_dim": 8,
            "lru_width": 32,
            "attention_window_size": 8,
            "num_hidden_layers": 3,
            "logits_soft_cap": 5.0,
            "w_init_variance_scale": 0.3,
        },
    ),
    "cohere: scaled logits": ("cohere", {**_SIZES, "logit_scale": 0.25}),
    "granite: divided logits": ("granite", {**_SIZES, "logits_scaling": 3.0}),
    "phi3: longrope": (
        "phi3",
        {**_SIZES, "rope_parameters": _LONGROPE, "original_max_position_embeddings": 24},
    ),
}

# Others whose attention is special: tried with shared prefixes only.
_LONGER = {**_SIZES, "max_position_embeddings": 400}
ATTENTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama4: chunks": (
        "llama4_text",
        {**_LONGER, "head_dim": 8, "attention_chunk_size": 24, "num_local_experts": 2,
         "intermediate_size_mlp": 48, "no_rope_layers": [1, 0], "moe_layers": []},
    ),
    "gpt_oss: sinks, every other layer with a window": (
        "gpt_oss",
        {**_LONGER, "head_dim": 8, "sliding_window": 16, "num_local_experts": 4,
         "num_experts_per_tok": 2},
    ),
    "bloom: distances instead of positions": (
        "bloom",
        {"hidden_size": 32, "n_layer": 2, "n_head": 4, "initializer_range": 0.3},
    ),
    "deepseek_v32: an indexer": (
        "deepseek_v32",
        {**_SIZES, "num_key_value_heads": 4, "q_lora_rank": 12, "kv_lora_rank": 12,
         "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8, "index_topk": 12,
         "index_n_heads": 16, "index_head_dim": 16, "n_routed_experts": 4,
         "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "moe_intermediate_size": 24},
    ),
    "mpt: biases of a length of their own": (
        "mpt",
        {"d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 48, "initializer_range": 0.3},
    ),
    "gpt_neo: windows of its own": (
        "gpt_neo",
        {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "window_size": 20,
         "attention_types": [[["global", "local"], 1]], "max_position_embeddings": 400,
         "initializer_range": 0.3},
    ),
}  # fmt: skip

# Others, which are only held against lm-eval's scores.
_LATENT = {
    "num_key_value_heads": 4, "q_lora_rank": 12, "kv_lora_rank": 12, "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8, "v_head_dim": 8, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "n_group": 1, "topk_group": 1, "moe_intermediate_size": 24, "first_k_dense_replace": 1,
}  # fmt: skip
_MAMBA2 = {
    "mamba_d_state": 8, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_chunk_size": 8,
    "mamba_n_groups": 1,
}  # fmt: skip
FURTHER: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", _SIZES),
    "gemma2: soft caps": ("gemma2", {**_SIZES, "head_dim": 8, "sliding_window": 6}),
    "qwen2: biases": ("qwen2", _SIZES),
    "phi: parallel blocks": ("phi", _SIZES),
    "gptj: interleaved rotary": ("gptj", {**_GPT2, "rotary_dim": 4}),
    "falcon: one key": (
        "falcon",
        {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
         "max_position_embeddings": 48, "initializer_range": 0.3},
    ),
    "gpt_bigcode: one key, learned positions": ("gpt_bigcode", _GPT2),
    "stablelm: partial rotary": ("stablelm", _SIZES),
    "starcoder2: a window": ("starcoder2", {**_SIZES, "sliding_window": 6}),
    "cohere2: layers without positions": (
        "cohere2",
        {**_SIZES, "logit_scale": 0.25, "sliding_window": 6},
    ),
    "xglm: sines": (
        "xglm",
        {"d_model": 32, "ffn_dim": 48, "num_layers": 2, "attention_heads": 4,
         "max_position_embeddings": 48, "init_std": 0.3},
    ),
    "olmo2: norms behind": ("olmo2", _SIZES),
    "olmoe: experts": ("olmoe", {**_SIZES, "num_experts": 4, "num_experts_per_tok": 2}),
    "deepseek_v2: latent keys": ("deepseek_v2", {**_SIZES, **_LATENT}),
    "deepseek_v3: latent keys": ("deepseek_v3", {**_SIZES, **_LATENT}),
    "mamba2: chunks": (
        "mamba2",
        {**_STATE, "state_size": 8, "num_heads": 8, "head_dim": 8, "n_groups": 1,
         "chunk_size": 8, "initializer_range": 0.3},
    ),
    "jamba: a state, attention, experts": (
        "jamba",
        {**_SIZES, "num_experts": 4, "num_experts_per_tok": 2, "attn_layer_period": 2,
         "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1,
         "mamba_d_state": 4, "mamba_dt_rank": 4, "use_mamba_kernels": False},
    ),
    "bamba: chunks, attention": ("bamba", {**_SIZES, **_MAMBA2, "attn_layer_indices": [1]}),
    "granitemoehybrid: chunks, experts": (
        "granitemoehybrid",
        {**_SIZES, **_MAMBA2, "layer_types": ["mamba", "attention"], "num_local_experts": 4,
         "num_experts_per_tok": 2},
    ),
    "minimax: lightning attention": (
        "minimax",
        {**_SIZES, "head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2},
    ),
    "lfm2: short convolutions": ("lfm2", _SIZES),
}  # fmt: skip


def save_architecture(folder: Path, name: str, **changes: Any) -> Path:
    """Save a model of these, with other values for some of its config."""
    size = save_tokenizer(folder)
    kind, values = {**ARCHITECTURES, **ATTENTIONS, **FURTHER}[name]
    common = {"vocab_size": size, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
    torch.manual_seed(0)
    config = CONFIG_MAPPING[kind](**{**common, **values, **changes})
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def save_bidirectional(folder: Path) -> Path:
    """Save a BERT whose tokens see what follows them, though it loads as a causal model."""
    from transformers import BertConfig, BertLMHeadModel

    torch.manual_seed(0)
    values = {**_SIZES, "pad_token_id": 1}
    del values["num_key_value_heads"]
    config = BertConfig(vocab_size=save_tokenizer(folder), **values)
    BertLMHeadModel(config).save_pretrained(folder)
    return folder
