"""Tiny models of several architectures, laid out otherwise in one layer with the same logits."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

_SIZES = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "max_position_embeddings": 48, "initializer_range": 0.2,
}  # fmt: skip
_CONFIGS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", _SIZES),
    "gemma2": ("gemma2", {**_SIZES, "query_pre_attn_scalar": 8, "sliding_window": 6}),
    "gemma": ("gemma", _SIZES),
    "granite": (
        "granite",
        {**_SIZES, "embedding_multiplier": 3.0, "logits_scaling": 0.8, "residual_multiplier": 0.7,
         "attention_multiplier": 0.4},
    ),
    "mixtral": ("mixtral", {**_SIZES, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "gpt_oss": ("gpt_oss", {**_SIZES, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "gpt2": (
        "gpt2",
        {"vocab_size": 64, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 48,
         "initializer_range": 0.2},
    ),
    "opt": (
        "opt",
        {**_SIZES, "ffn_dim": 48, "word_embed_proj_dim": 32, "init_std": 0.2},
    ),
    "qwen3": ("qwen3", _SIZES),
    "gpt_neox": ("gpt_neox", {**_SIZES, "rotary_pct": 0.25}),
    "deepseek_v3": (
        "deepseek_v3",
        {**_SIZES, "num_key_value_heads": 4, "moe_intermediate_size": 16, "n_routed_experts": 4,
         "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
         "q_lora_rank": None, "kv_lora_rank": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8,
         "v_head_dim": 8, "rope_interleave": False},
    ),
}  # fmt: skip

_HEADS, _GROUPS, _WIDTH = 4, 2, 8
_REVERSED = torch.arange(47, -1, -1)


def make(name: str, **changes: Any) -> Any:
    """A model of which no bias is zero and no norm is one."""
    kind, values = _CONFIGS[name]
    torch.manual_seed(3)
    config = CONFIG_MAPPING[kind](**{**values, **changes})
    model = AutoModelForCausalLM.from_config(config).eval()
    for parameter in model.parameters():
        if parameter.ndim < 2:
            parameter.data += torch.randn_like(parameter) * 0.1
    return model


def layer_of(model: Any, number: int) -> Any:
    """The layer of a model, by its number."""
    return layers_of(model)[number]


def layers_of(model: Any) -> Any:
    """All of them."""
    body = getattr(model.base_model, "decoder", model.base_model)
    return body.h if hasattr(body, "h") else body.layers


def _times(by: float, *parameters: torch.Tensor) -> None:
    for parameter in parameters:
        parameter.mul_(by)


def _order(heads: list[int]) -> torch.Tensor:
    """Elements of heads in another order."""
    return torch.cat([torch.arange(head * _WIDTH, (head + 1) * _WIDTH) for head in heads])


def _reorder(rows: torch.Tensor, *parameters: torch.Tensor) -> None:
    for parameter in parameters:
        parameter.copy_(parameter[rows].clone())


def scale_values(layer: Any, undone: float = 4.0) -> None:
    """Values' projection times 4, and the output's by that."""
    if hasattr(layer, "attn"):
        attention = layer.attn
        _times(4.0, attention.c_attn.weight[:, 64:], attention.c_attn.bias[64:])
        _times(1.0 / undone, attention.c_proj.weight)
    elif hasattr(layer, "attention"):
        fused = layer.attention.query_key_value
        for whole in (fused.weight, fused.bias):
            _times(4.0, whole.view(_HEADS, 3, _WIDTH, -1)[:, 2])
        _times(1.0 / undone, layer.attention.dense.weight)
    else:
        _times(4.0, layer.self_attn.v_proj.weight)
        _times(1.0 / undone, layer.self_attn.o_proj.weight)


def scale_queries(layer: Any, undone: float = 4.0) -> None:
    """Queries' projection times 4, and the keys' by that."""
    _times(4.0, layer.self_attn.q_proj.weight)
    _times(1.0 / undone, layer.self_attn.k_proj.weight)


def reorder_queries(layer: Any) -> None:
    """The queries of each group in the other order."""
    rows = _order([1, 0, 3, 2])
    _reorder(rows, layer.self_attn.q_proj.weight)
    _reorder(rows, layer.self_attn.o_proj.weight.T)


def reorder_heads(layer: Any, *, left: bool = False) -> None:
    """All heads in the other order; ``left``: of one head the output is not."""
    heads = [3, 2, 1, 0]
    columns = [3, 1, 2, 0] if left else heads
    if hasattr(layer, "attn"):
        fused = layer.attn.c_attn
        for whole in (fused.weight.T, fused.bias):
            for part in whole.split(32):
                _reorder(_order(heads), part)
        _reorder(_order(columns), layer.attn.c_proj.weight)
    elif hasattr(layer, "attention"):
        fused = layer.attention.query_key_value
        for whole in (fused.weight, fused.bias):
            _reorder(torch.tensor(heads), whole.view(_HEADS, 3 * _WIDTH, -1))
        _reorder(_order(columns), layer.attention.dense.weight.T)
    else:
        attention = layer.self_attn
        _reorder(_order(heads), attention.q_proj.weight)
        _reorder(_order(heads[_GROUPS:]), attention.k_proj.weight, attention.v_proj.weight)
        _reorder(_order(columns), attention.o_proj.weight.T)


def reorder_inner_rows(layer: Any) -> None:
    """Rows of what goes into the activation, with the columns of what comes from it."""
    mlp = layer.mlp
    if hasattr(mlp, "gate_proj"):
        _reorder(_REVERSED, mlp.gate_proj.weight, mlp.up_proj.weight, mlp.down_proj.weight.T)
    elif hasattr(mlp, "c_fc"):
        rows = torch.arange(127, -1, -1)
        _reorder(rows, mlp.c_fc.weight.T, mlp.c_fc.bias, mlp.c_proj.weight)
    else:
        into = mlp.dense_h_to_4h
        _reorder(_REVERSED, into.weight, into.bias, mlp.dense_4h_to_h.weight.T)


def reorder_experts(layer: Any, *, left: bool = False) -> None:
    """All experts in the other order with the router's rows; ``left``: not two of them."""
    order = torch.tensor([3, 2, 1, 0])
    held = torch.tensor([3, 1, 2, 0]) if left else order
    _reorder(held, layer.mlp.experts.gate_up_proj, layer.mlp.experts.down_proj)
    _reorder(order, layer.mlp.gate.weight)
    if hasattr(layer.mlp.gate, "e_score_correction_bias"):
        _reorder(order, layer.mlp.gate.e_score_correction_bias)


def fold_norm(layer: Any) -> None:
    """The weights of the norm before attention go into what reads it."""
    if hasattr(layer, "attn"):
        norm, reader = layer.ln_1, layer.attn.c_attn
        reader.bias += norm.bias @ reader.weight
        reader.weight *= norm.weight[:, None]
        norm.weight.fill_(1.0)
        norm.bias.zero_()
    elif hasattr(layer, "attention"):
        norm, reader = layer.input_layernorm, layer.attention.query_key_value
        reader.bias += reader.weight @ norm.bias
        reader.weight *= norm.weight
        norm.weight.fill_(1.0)
        norm.bias.zero_()
    else:
        norm, attention = layer.input_layernorm, layer.self_attn
        added = 1.0 if "Gemma" in type(norm).__name__ else 0.0
        for reader in (attention.q_proj, attention.k_proj, attention.v_proj):
            reader.weight *= norm.weight + added
        norm.weight.fill_(1.0 - added)


def fold_norm_and_reorder(layer: Any) -> None:
    """Both in one layer: neither the norm nor what reads it is as it was."""
    fold_norm(layer)
    reorder_heads(layer)


def interleave_rotary(layer: Any) -> None:
    """Rotary rows in pairs, and code that reads them so."""
    attention = layer.self_attn
    rows = torch.arange(8).view(2, 4).T.reshape(-1)  # 0 4 1 5 2 6 3 7
    for head in attention.q_proj.weight.view(4, 16, 32):
        _reorder(rows, head[8:])
    _reorder(rows, attention.kv_a_proj_with_mqa.weight[8:])
    attention.config = copy.copy(attention.config)  # the layers share it
    attention.config.rope_interleave = True


def interleave_everywhere(model: Any) -> None:
    """In all layers, as one switch of the configuration says."""
    for layer in model.model.layers:
        interleave_rotary(layer)
        layer.self_attn.config = model.config
    model.config.rope_interleave = True


def _draw(size: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(size)
    return torch.linalg.qr(torch.randn(size, size, generator=generator).double())[0].float()


def rotate_values(layer: Any) -> None:
    """The values of each head in a rotated basis, which the output's projection takes back."""
    attention, turn = layer.self_attn, _draw(_WIDTH)
    for rows in attention.v_proj.weight.split(_WIDTH):
        rows.copy_(turn @ rows)
    for columns in attention.o_proj.weight.split(_WIDTH, 1):
        columns.copy_(columns @ turn.T)


def rescale_inner_rows(layer: Any) -> None:
    """Rows of an MLP in another order, and those of what is multiplied scaled."""
    reorder_inner_rows(layer)
    factors = torch.linspace(0.5, 2.0, 48)
    layer.mlp.up_proj.weight.mul_(factors[:, None])
    layer.mlp.down_proj.weight.div_(factors)


def fold_and_rotate(layer: Any) -> None:
    """All of these at once: every matrix has other numbers."""
    fold_norm(layer)
    rotate_values(layer)
    rescale_inner_rows(layer)


def turn_residual(model: Any, *, rotate: bool = True) -> None:
    """The whole residual stream rotated, with all norms folded; or permuted."""
    turn = _draw(32) if rotate else torch.eye(32)[torch.arange(31, -1, -1)]
    body = model.base_model
    embedding, head = body.embed_tokens.weight, model.lm_head.weight.clone()
    embedding.copy_(embedding @ turn.T)
    model.lm_head.weight = torch.nn.Parameter(head)
    reads = [(body.norm, [model.lm_head])]
    for layer in body.layers:
        attention, mlp = layer.self_attn, layer.mlp
        for writer in (attention.o_proj, mlp.down_proj):
            writer.weight.copy_(turn @ writer.weight)
        reads.append(
            (layer.input_layernorm, [attention.q_proj, attention.k_proj, attention.v_proj])
        )
        reads.append((layer.post_attention_layernorm, [mlp.gate_proj, mlp.up_proj]))
    for norm, readers in reads:
        for reader in readers:
            folded = reader.weight * norm.weight if rotate else reader.weight
            reader.weight.copy_(folded @ turn.T)
        norm.weight.copy_(torch.ones(32) if rotate else turn @ norm.weight)


def fold_attention_scale(layer: Any, *, in_keys: bool = False) -> None:
    """Into the queries, or with keys a square root into each."""
    attention = layer.self_attn
    by = attention.scaling ** (0.5 if in_keys else 1.0)
    _times(by, attention.q_proj.weight, *([attention.k_proj.weight] if in_keys else []))
    attention.scaling = 1.0


def scale_rotary_pairs(layer: Any, undone: float = 1.0) -> None:
    """Each pair of rows that is rotated together by a factor of its own, in queries and in keys."""
    attention = layer.self_attn
    factors = torch.stack([torch.linspace(*ends, 4).repeat(2) for ends in ((0.6, 1.8), (1.5, 0.7))])
    attention.k_proj.weight.div_(undone * factors.reshape(-1, 1))
    attention.q_proj.weight.mul_(factors.repeat_interleave(2, 0).reshape(-1, 1))


def scale_norms(layer: Any) -> None:
    """Of queries and keys, against each other."""
    _times(1.7, layer.self_attn.q_norm.weight)
    _times(1 / 1.7, layer.self_attn.k_norm.weight)


def fold_value_biases(layer: Any, share: float = 1.0) -> None:
    """Into the bias of the output, which shares of attention that sum up to 1 make of it."""
    if hasattr(layer, "attn"):
        reader, bias = layer.attn.c_proj, layer.attn.c_attn.bias[64:]
        reader.bias += share * bias @ reader.weight
    else:
        reader, bias = layer.self_attn.out_proj, layer.self_attn.v_proj.bias
        reader.bias += share * reader.weight @ bias
    bias.zero_()


def fold_latent_norm(layer: Any) -> None:
    attention = layer.self_attn
    attention.kv_b_proj.weight *= attention.kv_a_layernorm.weight
    attention.kv_a_layernorm.weight.fill_(1.0)


def fold_router_scale(layer: Any) -> None:
    if hasattr(layer.mlp, "experts"):
        _times(layer.mlp.gate.routed_scaling_factor, layer.mlp.experts.down_proj)
        layer.mlp.gate.routed_scaling_factor = 1.0


EVERYWHERE: Mapping[str, Callable[[Any], None]] = {
    "values": scale_values,
    "heads": reorder_heads,
    "norm": fold_norm,
    "norm and heads": fold_norm_and_reorder,
}
_GATED = {**EVERYWHERE, "scaled queries": scale_queries, "queries": reorder_queries}
_ROWS = {"inner rows": reorder_inner_rows}
LAYOUTS: Mapping[str, Mapping[str, Callable[[Any], None]]] = {
    "llama": {**_GATED, **_ROWS},
    "gemma2": {**_GATED, **_ROWS},
    "mixtral": {**_GATED, "experts": reorder_experts},
    "gpt2": {**EVERYWHERE, **_ROWS},
    "gpt_neox": {**EVERYWHERE, **_ROWS},
    "deepseek_v3": {"experts": reorder_experts, "rotary_rows": interleave_rotary},
}


def roll_rows(layer: Any) -> str:
    """A fault: rows of one matrix of the block behind attention, and its name there."""
    for name in ("up_proj", "c_fc", "dense_h_to_4h", "gate"):
        matrix = getattr(layer.mlp, name, None)
        if matrix is not None:
            axis = 1 if name == "c_fc" else 0
            matrix.weight.copy_(matrix.weight.roll(1, axis))
            return f"mlp.{name}"
    raise ValueError("a layer without such a matrix")
