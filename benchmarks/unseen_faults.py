"""Faults and healthy ports of kinds that no other table has, and who is guilty of each.

Ports that are healthy change much and compute the same: heads, neurons, experts and states in
another order, factors and rotations that cancel, norms and multipliers folded into weights, weights
under other names, fused, split or rounded. A model whose name begins with "random" has random
weights and documents of its own (benchmarks/sampled_models.py); the others are trained.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from benchmarks.undeclared_faults import (
    Change,
    Fault,
    both,
    columns,
    each,
    grouped,
    heads,
    interleaved,
    place,
    rounded_rows,
    swap_modules,
    zeroed,
)

if TYPE_CHECKING:
    import torch

    Weights = dict[str, torch.Tensor]

One = Callable[[Any], Any]  # changes a weight
_QKV = ("q_proj", "k_proj", "v_proj")
# Rows of Mamba-2's in_proj: z, x, B and C of two groups of eight states, dt of eight heads of 12.
_INNER, _STATES, _MAMBA_HEADS = 96, 16, 8


def _order(count: int) -> Any:
    """An order of so many, the same wherever so many are put in order."""
    import torch

    return torch.randperm(count, generator=torch.Generator().manual_seed(count))


def _rows(parts: int = 1) -> One:
    """Rows in another order, the same in each of the parts."""

    def apply(one: Any) -> Any:
        inner = one.reshape(parts, -1, *one.shape[1:])
        return inner[:, _order(inner.shape[1])].reshape(one.shape)

    return apply


def _last(one: Any) -> Any:
    """Columns in another order: that of ``_rows``."""
    return one[..., _order(one.shape[-1])]


def _times(by: float) -> One:
    return lambda one: one * by


def _plus(by: float) -> One:
    return lambda one: one + by


def _factors(count: int) -> Any:
    import torch

    return torch.linspace(0.5, 2.0, count)[_order(count)]


def _grown_rows(one: Any) -> Any:
    """Every row by a factor of its own."""
    return one * _factors(len(one)).view(-1, *[1] * (one.ndim - 1))


def _shrunk_columns(one: Any) -> Any:
    return one / _factors(one.shape[-1])


def _orthogonal(size: int) -> Any:
    import torch

    drawn = torch.randn(size, size, generator=torch.Generator().manual_seed(size))
    return torch.linalg.qr(drawn)[0]


def _turned_rows(head: int) -> One:
    """Rows of every head in another basis."""
    turn = _orthogonal(head)
    return lambda one: (turn @ one.view(-1, head, one.shape[1])).reshape(one.shape)


def _turned_columns(head: int) -> One:
    turn = _orthogonal(head)
    return lambda one: (one.view(len(one), -1, head) @ turn.T).reshape(one.shape)


def _turned_pairs(head: int) -> One:
    """Both rows of every rotary pair turned by one angle."""

    def apply(one: Any) -> Any:
        import torch

        low, high = one.view(-1, 2, head // 2, one.shape[1]).unbind(1)
        c, s = math.cos(0.7), math.sin(0.7)
        return torch.stack([low * c - high * s, low * s + high * c], dim=1).reshape(one.shape)

    return apply


def _folded(norm: str, *readers: str, counted: float = 0.0, kept: bool = False) -> Change:
    """A norm's weight in the weights that read it; with its bias, where it has one.

    ``counted``: what is added to a norm's stored weight. ``kept``: the norm stays as well.
    """

    def apply(weights: Weights) -> None:
        for name in [one for one in weights if one.endswith(f"{norm}.weight")]:
            scale, stem = weights[name] + counted, name.removesuffix(f"{norm}.weight")
            shift = weights.get(f"{stem}{norm}.bias")
            readings = [one for one in weights if one.startswith(stem) and one.endswith(".weight")]
            for other in readings:
                if any(part in other for part in readers):
                    turned = "c_attn" in other  # GPT-2 stores the transpose
                    bias = other.removesuffix("weight") + "bias"
                    if shift is not None and not kept:
                        matrix = weights[other].T if turned else weights[other]
                        weights[bias] = weights[bias] + matrix @ shift
                    weights[other] = weights[other] * (scale.view(-1, 1) if turned else scale)
            if not kept:
                weights[name] = weights[name] * 0.0 + (1.0 - counted)
                if shift is not None:
                    weights[f"{stem}{norm}.bias"] = shift * 0.0

    return apply


def _final_folded(weights: Weights) -> None:
    weights["lm_head.weight"] = weights["lm_head.weight"] * weights["model.norm.weight"]
    weights["model.norm.weight"] = weights["model.norm.weight"] * 0.0 + 1.0


_LAYERS_FOLDED = both(
    _folded("input_layernorm", *_QKV),
    _folded("post_attention_layernorm", "gate_proj", "up_proj", "mlp.gate."),
)
_FOLDED = both(_LAYERS_FOLDED, _final_folded)


def _turn_stream(weights: Weights) -> None:
    """All that is written to the residual stream, and all that reads it, in another basis."""
    _FOLDED(weights)
    turn = _orthogonal(64)
    for name, one in weights.items():
        if any(part in name for part in ("embed", "lm_head", *_QKV, "gate_proj", "up_proj")):
            weights[name] = one @ turn
        elif "o_proj" in name or "down_proj" in name:
            weights[name] = turn.T @ one


def _moved(weights: Weights, change: Callable[[str], str]) -> None:
    before = dict(weights)
    weights.clear()
    weights.update({change(name): one for name, one in before.items()})


def _without_prefix(weights: Weights) -> None:
    _moved(weights, lambda name: name.removeprefix("transformer."))


def _fused(weights: Weights) -> None:
    """Llama's weights as Phi-3 stores them."""
    import torch

    for name in list(weights):
        for parts, whole in ((_QKV, "qkv_proj"), (("gate_proj", "up_proj"), "gate_up_proj")):
            if parts[0] in name:
                weights[name.replace(parts[0], whole)] = torch.cat(
                    [weights.pop(name.replace(parts[0], part)) for part in parts]
                )


def _split(weights: Weights) -> None:
    """Phi-3's weights as Llama stores them."""
    sizes = {"qkv_proj": (_QKV, (48, 24, 24)), "gate_up_proj": (("gate_proj", "up_proj"), (96, 96))}
    for name in list(weights):
        for whole, (parts, rows) in sizes.items():
            if whole in name:
                for part, one in zip(parts, weights.pop(name).split(list(rows)), strict=True):
                    weights[name.replace(whole, part)] = one


def _padded(rows: int) -> Change:
    def apply(weights: Weights) -> None:
        import torch

        for name in ("model.embed_tokens.weight", "lm_head.weight"):
            one = weights[name]
            weights[name] = torch.cat([one, one.new_zeros(rows, one.shape[1])])

    return apply


def _drop(pattern: str) -> Change:
    def apply(weights: Weights) -> None:
        for name in [one for one in weights if pattern in one]:
            del weights[name]

    return apply


def _experts(order: tuple[int, ...]) -> Change:
    """Experts under the numbers of others; their router stays."""

    def apply(weights: Weights) -> None:
        before = dict(weights)
        for name in before:
            for number, other in enumerate(order):
                if f"experts.{number}." in name:
                    weights[name] = before[name.replace(f"experts.{number}.", f"experts.{other}.")]

    return apply


def _gates(order: tuple[int, ...]) -> Change:
    """Rows of the routers in another order."""
    places = list(order)
    return both(
        each("block_sparse_moe.gate.", lambda one: one[places]),
        each("mlp.gate.", lambda one: one[places]),
    )


def _fold_value_bias(weights: Weights) -> None:
    """GPT-2's bias of the values in that of the projection behind the attention."""
    for name in [one for one in weights if one.endswith("attn.c_attn.bias")]:
        stem, bias = name.removesuffix("c_attn.bias"), weights[name]
        values = bias[-64:]
        weights[name] = place(slice(-64, None), zeroed)(bias)
        weights[f"{stem}c_proj.bias"] += values @ weights[f"{stem}c_proj.weight"]


def _mamba_heads(weights: Weights) -> None:
    """Heads of each of Mamba-2's groups in another order, wherever they are stored."""
    import torch

    heads_in_order = torch.tensor((2, 0, 3, 1, 6, 4, 7, 5))
    inner = (heads_in_order[:, None] * 12 + torch.arange(12)).flatten()
    _in_mamba(weights, inner, torch.arange(2 * _STATES), heads_in_order)


def _mamba_states(weights: Weights) -> None:
    """States of each of Mamba-2's groups in another order, the same in B and in C."""
    import torch

    group = _order(_STATES // 2)
    states = torch.cat([group + start for start in range(0, 2 * _STATES, _STATES // 2)])
    _in_mamba(weights, torch.arange(_INNER), states, torch.arange(_MAMBA_HEADS))


def _in_mamba(weights: Weights, inner: Any, states: Any, heads_in_order: Any) -> None:
    import torch

    convolved = torch.cat([inner, _INNER + states])
    projected = torch.cat([inner, _INNER + convolved, 2 * _INNER + 2 * _STATES + heads_in_order])
    for name, one in weights.items():
        if "in_proj" in name:
            weights[name] = one[projected]
        elif "conv1d" in name:
            weights[name] = one[convolved]
        elif any(part in name for part in ("A_log", "mixer.D", "dt_bias")):
            weights[name] = one[heads_in_order]
        elif "mixer.norm" in name:
            weights[name] = one[inner]
        elif "out_proj" in name:
            weights[name] = one[:, inner]


def _blocks_exchanged(sizes: tuple[int, ...], order: tuple[int, ...]) -> One:
    """Blocks of rows in another order."""

    def apply(one: Any) -> Any:
        import torch

        parts = one.split([*sizes, len(one) - sum(sizes)] if sum(sizes) < len(one) else sizes)
        places = [*order, *range(len(order), len(parts))]
        return torch.cat([parts[number] for number in places])

    return apply


def _by_head(one: Any) -> Any:
    """Phi-3's queries, keys and values in groups by key head, as other fused layouts have them."""
    import torch

    queries, keys, values = one.split([48, 24, 24])
    parts = [part.view(2, -1, one.shape[1]) for part in (queries, keys, values)]
    return torch.cat(parts, dim=1).reshape(one.shape)


def _pruned(share: float) -> One:
    """The smallest weights are zero."""

    def apply(one: Any) -> Any:
        import torch

        return torch.where(one.abs() >= one.abs().quantile(share), one, one * 0.0)

    return apply


def _of_rank(rank: int) -> One:
    def apply(one: Any) -> Any:
        import torch

        u, s, v = torch.linalg.svd(one, full_matrices=False)
        return (u[:, :rank] * s[:rank]) @ v[:rank]

    return apply


def _adapted(scale: float) -> One:
    """An adapter of rank 2 merged, that the base has not."""

    def apply(one: Any) -> Any:
        import torch

        drawn = torch.Generator().manual_seed(one.shape[1])
        up = torch.randn(len(one), 2, generator=drawn)
        down = torch.randn(2, one.shape[1], generator=drawn)
        return one + scale * one.std() * (up @ down)

    return apply


def _clipped(share: float) -> One:
    """Saturated, as by a scale that is too small."""

    def apply(one: Any) -> Any:
        bound = one.abs().quantile(share).item()
        return one.clamp(-bound, bound)

    return apply


def _shifted_grid(bits: int, group: int) -> One:
    """Rounded in groups, and one step off: zero points counted from 1."""

    def apply(one: Any) -> Any:
        parts = one.reshape(-1, group)
        low = parts.amin(dim=1, keepdim=True)
        step = (parts.amax(dim=1, keepdim=True) - low) / (2**bits - 1)
        return (((parts - low) / step).round() * step + low + step).reshape(one.shape)

    return apply


def _unscaled_rows(one: Any) -> Any:
    """The integers of a quantisation, its scales of rows forgotten but for their mean."""
    scale = one.abs().amax(dim=1, keepdim=True)
    return one / scale * scale.mean()


def _averaged_heads(count: int) -> One:
    def apply(one: Any) -> Any:
        split = one.view(count, -1, one.shape[1])
        return split.mean(dim=0, keepdim=True).expand_as(split).reshape(one.shape)

    return apply


def _merged(name: str, other: str, share: float) -> Change:
    """Two layers' weights mixed in one of them."""

    def apply(weights: Weights) -> None:
        for one in [one for one in weights if name in one]:
            weights[one] = (1 - share) * weights[one] + share * weights[one.replace(name, other)]

    return apply


def _copied(name: str, source: str) -> Change:
    def apply(weights: Weights) -> None:
        for one in [one for one in weights if name in one]:
            weights[one] = weights[one.replace(name, source)].clone()

    return apply


def _expert_copied(weights: Weights) -> None:
    for name in [one for one in weights if "layers.1." in one and "experts." in one]:
        stem, _, rest = name.partition("experts.")
        weights[name] = weights[f"{stem}experts.0.{rest.partition('.')[2]}"].clone()


def _with_infinity(one: Any) -> Any:
    changed = one.clone()
    changed.view(-1)[7] = float("inf")
    return changed


def _lower(tokenizer: dict[str, Any]) -> None:
    tokenizer["normalizer"] = {"type": "Lowercase"}


def _end_too(tokenizer: dict[str, Any]) -> None:
    """EOS after every text, beside BOS before it."""
    single = tokenizer["post_processor"]
    told = json.loads(json.dumps(single))
    told["single"].append({"SpecialToken": {"id": "</s>", "type_id": 0}})
    told["special_tokens"]["</s>"] = {"id": "</s>", "ids": [2], "tokens": ["</s>"]}
    tokenizer["post_processor"] = told


def _code(body: str, kind: str) -> str:
    return f"""
import torch
from transformers import {kind}ForCausalLM


class HalvedForCausalLM({kind}ForCausalLM):
{body}
"""


_NO_LAST_MLP = """
    def __init__(self, *given, **named):
        super().__init__(*given, **named)
        self.model.layers[-1].mlp.forward = lambda x: x * 0.0
"""
_NO_LAST_ROTARY = """
    def __init__(self, *given, **named):
        super().__init__(*given, **named)
        own = self.model.layers[1].self_attn.forward

        def forward(*given, position_embeddings, **named):
            cos, sin = position_embeddings
            turned = (torch.ones_like(cos), torch.zeros_like(sin))
            return own(*given, position_embeddings=turned, **named)

        self.model.layers[1].self_attn.forward = forward
"""

_ROPE = {"rope_type": "default", "rope_theta": 1000.0}


def _multiply_out(weights: Weights) -> None:
    """Granite's multipliers in its weights, as Llama has none."""
    for part, by in (("embed_tokens", 3.0), ("lm_head", 1 / 0.8), ("o_proj", 0.7),
                     ("down_proj", 0.7), ("q_proj", 0.4 * math.sqrt(12))):  # fmt: skip
        each(part, _times(by))(weights)


def _fault(
    model: str,
    kind: str,
    name: str,
    change: Change | None = None,
    **rest: Any,
) -> Fault:
    return Fault(name=name, kind=kind, model=model, change=change, **rest)


def _config(model: str, name: str, setting: str, places: tuple[str, ...], **config: Any) -> Fault:
    return Fault(name=name, kind="config", model=model, config=config, setting=f"config.{setting}",
                 places=places)  # fmt: skip


def _last_rows(head: int, count: int, change: One) -> One:
    """Change the last rows of every head."""

    def apply(one: Any) -> Any:
        import torch

        rows = one.view(-1, head, one.shape[1])
        kept, moved = rows[:, :-count], rows[:, -count:].reshape(-1, one.shape[1])
        return torch.cat([kept, change(moved).view(-1, count, one.shape[1])], 1).view(one.shape)

    return apply


_ROTARY_IN_PAIRS = both(
    each("q_b_proj", _last_rows(16, 8, interleaved(8))),
    each("kv_a_proj_with_mqa", _last_rows(32, 8, interleaved(8))),
)
_PAIRED = {"rope_interleave": True}
FAULTS = (
    _fault("llama", "weights", "both norms of every layer exchanged",
           swap_modules("input_layernorm", "post_attention_layernorm")),
    _fault("llama", "weights", "a norm folded into its readers, and kept",
           _folded("input_layernorm", *_QKV, kept=True)),
    _fault("llama", "weights", "rotary pairs side by side in the keys alone",
           each("k_proj", interleaved(16))),
    _fault("llama", "numerics", "a projection of low rank", each("layers.2.mlp.down_proj",
                                                                 _of_rank(8))),
    _fault("llama", "numerics", "MLPs pruned by half", each(".mlp.", _pruned(0.6))),
    _fault("llama", "weights", "an adapter merged into queries and values",
           both(each("q_proj", _adapted(0.4)), each("v_proj", _adapted(0.4)))),
    _fault("llama", "weights", "inputs of the gates rolled by one",
           each("gate_proj", lambda one: one.roll(1, 1))),
    _fault("llama", "weights", "projections behind the attention in another basis",
           each("o_proj", _turned_columns(16))),
    _fault("llama", "weights", "one layer mixed with the next",
           _merged("layers.1.", "layers.2.", 0.5)),
    _fault("llama", "weights", "tied by mistake", _drop("lm_head"),
           config={"tie_word_embeddings": True}),
    _fault("llama", "numerics", "zero points one step off, keys of all layers",
           each("k_proj", _shifted_grid(4, 32))),
    _fault("llama", "weights", "an infinity in a weight",
           each("layers.1.mlp.up_proj", _with_infinity)),
    _config("llama", "rotary positions scaled", "rope_parameters", ("rotary", "self_attn"),
            rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 1000.0}),
    _config("llama", "activation of another kind", "hidden_act", ("act_fn", "mlp"),
            hidden_act="sigmoid"),
    _fault("llama", "code", "code of its own without the last MLP",
           code=_code(_NO_LAST_MLP, "Llama"), setting="model", places=("layers.3.mlp",)),
    _fault("llama", "code", "code of its own without positions in one layer",
           code=_code(_NO_LAST_ROTARY, "Llama"), setting="model", places=("layers.1.self_attn",)),
    _fault("llama", "tokenizer", "EOS after every text", tokenizer=_end_too, setting="tokenizer"),
    _fault("stories260k", "weights", "signs of one projection lost",
           each("layers.1.mlp.up_proj", lambda one: one.abs())),
    _fault("stories260k", "weights", "heads of the keys averaged",
           each("k_proj", _averaged_heads(4))),
    _fault("stories260k", "numerics", "down projections saturated", each("down_proj",
                                                                         _clipped(0.8))),
    _fault("stories260k", "weights", "scales of rows forgotten in the values",
           each("v_proj", _unscaled_rows)),
    _fault("stories260k", "weights", "values of one layer from another",
           _copied("layers.1.self_attn.v_proj", "layers.3.self_attn.v_proj")),
    _fault("stories260k", "tokenizer", "letters lowered", tokenizer=_lower, setting="tokenizer"),
    _fault("qwen3", "weights", "norms of queries and keys exchanged",
           swap_modules("q_norm", "k_norm")),
    _fault("qwen3", "weights", "norms of the keys squared", each("k_norm", lambda one: one**2)),
    _fault("qwen3", "weights", "one key head copied over the other",
           each("k_proj", lambda one: one[:16].repeat(2, 1))),
    _fault("qwen3", "weights", "queries and outputs exchanged in one layer",
           _merged("layers.2.self_attn.q_proj", "layers.2.self_attn.o_proj", 1.0)),
    _fault("qwen3", "numerics", "embeddings in 3 bits", each("embed_tokens", rounded_rows(3))),
    _fault("qwen3", "weights", "up projections divided by their rows' factors",
           each("up_proj", _grown_rows)),
    _config("qwen3", "attention in a window", "", ("self_attn", "mask", "layers"),
            use_sliding_window=True, sliding_window=4, max_window_layers=0,
            layer_types=["sliding_attention"] * 4),
    _fault("gemma2", "weights", "norms before and after the MLP exchanged",
           swap_modules("pre_feedforward_layernorm", "post_feedforward_layernorm")),
    _config("gemma2", "kinds of layers shifted", "layer_types", ("self_attn", "layers", "mask"),
            layer_types=["full_attention", "sliding_attention"] * 2),
    _fault("gemma2", "weights", "a norm folded into its readers, and kept",
           _folded("pre_feedforward_layernorm", "gate_proj", "up_proj", counted=1.0, kept=True)),
    _fault("gemma2", "weights", "values of one layer in another basis",
           each("layers.1.self_attn.v_proj", _turned_rows(16))),
    _fault("gpt_neox", "weights", "fused by kind, where the model reads by head",
           each("query_key_value", lambda one: one.reshape(4, 3, 16, *one.shape[1:])
                .transpose(0, 1).reshape(one.shape))),
    _fault("gpt_neox", "weights", "biases of the MLPs by 8",
           each("dense_h_to_4h.bias", _times(8.0))),
    _fault("gpt_neox", "weights", "weights of one norm lost, its bias kept",
           each("layers.1.input_layernorm.weight", lambda one: one * 0.0 + 1.0)),
    _fault("gpt_neox", "weights", "neurons read in another order", each("dense_4h_to_h.weight",
                                                                         _last)),
    _fault("gpt2", "weights", "positions offset by two, as another model stores them",
           each("wpe", lambda one: one.roll(-2, 0))),
    _fault("gpt2", "weights", "positions stretched by two",
           each("wpe", lambda one: one[[row // 2 for row in range(len(one))]])),
    _fault("gpt2", "weights", "biases left in another order",
           each("attn.c_attn.bias", columns((1, 2, 0)))),
    _fault("gpt2", "weights", "the same projection in two layers",
           _copied("h.3.mlp.c_fc", "h.2.mlp.c_fc")),
    _fault("olmo2", "weights", "norms behind attention and MLP exchanged",
           swap_modules("post_attention_layernorm", "post_feedforward_layernorm")),
    _fault("olmo2", "weights", "norms of the queries in another order",
           each("q_norm", lambda one: one.view(4, 16).flip(0).reshape(-1))),
    _fault("random mamba2", "weights", "decay stored as such, not its logarithm",
           each("A_log", lambda one: one.exp())),
    _fault("random mamba2", "weights", "skips lost", each("mixer.D", zeroed)),
    _fault("random mamba2", "weights", "biases of the time steps lost", each("dt_bias", zeroed)),
    _fault("random mamba2", "weights", "gate and input exchanged",
           each("in_proj", _blocks_exchanged((_INNER, _INNER), (1, 0)))),
    _fault("random mamba2", "weights", "B and C exchanged",
           each("in_proj", _blocks_exchanged((_INNER, _INNER, _STATES, _STATES), (0, 1, 3, 2)))),
    _config("random mamba2", "time steps limited", "time_step_limit", ("mixer",),
            time_step_limit=[0.0, 0.3]),
    _fault("random mixtral", "weights", "experts in another order, their router not",
           _experts((2, 3, 1, 0))),
    _fault("random mixtral", "weights", "w1 and w3 exchanged in all experts",
           swap_modules(".w1.", ".w3.")),
    _config("random mixtral", "one expert fewer a token", "num_experts_per_tok",
            ("mlp", "block_sparse_moe"), num_experts_per_tok=1),
    _fault("random mixtral", "weights", "one expert in place of all", _expert_copied),
    _fault("random qwen3_moe", "weights", "routers in another order, the experts not",
           _gates((2, 3, 1, 0))),
    _config("random qwen3_moe", "shares of experts not normed", "norm_topk_prob", ("mlp",),
            norm_topk_prob=False),
    _fault("random qwen3_moe", "weights", "one expert zeroed", each("layers.2.mlp.experts.1.",
                                                                     zeroed)),
    _fault("random phi3", "weights", "halves of the fused projections exchanged",
           each("gate_up_proj", _blocks_exchanged((96, 96), (1, 0)))),
    _fault("random phi3", "weights", "fused by head, where the model reads by kind",
           each("qkv_proj", _by_head)),
    _fault("random phi3", "weights", "keys and values exchanged",
           each("qkv_proj", _blocks_exchanged((48, 24, 24), (0, 2, 1)))),
    _config("random granite", "multiplier of the residual lost", "residual_multiplier",
            ("layers",), residual_multiplier=1.0),
    _config("random granite", "multiplier of the embeddings lost", "embedding_multiplier",
            ("(root)", "model", "embed_tokens"), embedding_multiplier=1.0),
    _config("random granite", "logits scaled the other way", "logits_scaling",
            ("(root)", "lm_head"), logits_scaling=1.25),
    _fault("random hybrid", "weights", "steps and decays exchanged",
           swap_modules("in_proj_a", "in_proj_b")),
    _fault("random hybrid", "weights", "queries and their gates exchanged",
           each("self_attn.q_proj", lambda one: one.view(4, 2, 12, -1).flip(1)
                .reshape(one.shape))),
    _fault("random deepseek_v3", "weights", "keys of one layer negated, in rotary pairs",
           both(_ROTARY_IN_PAIRS, each("layers.1.self_attn.kv_a_proj", _times(-1.0))),
           config=_PAIRED),
)  # fmt: skip


def _port(model: str, name: str, change: Change | None = None, **rest: Any) -> Fault:
    return Fault(name=name, kind="healthy", model=model, change=change, **rest)


def _neurons(rows: tuple[str, ...], read: str) -> Change:
    return both(*(each(one, _rows()) for one in rows), each(read, _last))


_MLP = _neurons(("gate_proj", "up_proj"), "down_proj")
HEALTHY = (
    _port("llama", "values by 4, outputs by 1/4",
          both(each("v_proj", _times(4.0)), each("o_proj", _times(0.25)))),
    _port("llama", "neurons permuted", _MLP),
    _port("llama", "groups of heads permuted",
          both(each("k_proj", heads((1, 0))), each("v_proj", heads((1, 0))),
               each("q_proj", heads((1, 0))), each("o_proj", columns((1, 0))))),
    _port("llama", "norms folded", _FOLDED),
    _port("llama", "values and outputs in another basis",
          both(each("v_proj", _turned_rows(16)), each("o_proj", _turned_columns(16)))),
    _port("llama", "residual stream in another basis", _turn_stream),
    _port("llama", "queries by 2, keys by 1/2",
          both(each("q_proj", _times(2.0)), each("k_proj", _times(0.5)))),
    _port("llama", "rotary pairs turned",
          both(each("q_proj", _turned_pairs(16)), each("k_proj", _turned_pairs(16)))),
    _port("llama", "factors of neurons",
          both(each("up_proj", _grown_rows), each("down_proj", _shrunk_columns))),
    _port("llama", "stored as Mistral", config={
        "model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": None}),
    _port("llama", "fused as Phi-3", _fused, config={
        "model_type": "phi3", "architectures": ["Phi3ForCausalLM"],
        "rope_parameters": {**_ROPE, "partial_rotary_factor": 1.0},
        "original_max_position_embeddings": 128}),
    _port("qwen3", "factors of the norms of queries and keys",
          both(each("q_norm", _times(2.0)), each("k_norm", _times(0.5)))),
    _port("qwen3", "heads of each group permuted",
          both(each("q_proj", heads((1, 0, 3, 2))), each("o_proj", columns((1, 0, 3, 2))))),
    _port("qwen3", "8 bits in groups", each("proj", grouped(8, 32))),
    _port("qwen3", "neurons permuted, in bfloat16", _MLP, dtype="bfloat16"),
    _port("gemma2", "norms folded",
          both(_folded("input_layernorm", *_QKV, counted=1.0),
               _folded("pre_feedforward_layernorm", "gate_proj", "up_proj", counted=1.0))),
    _port("gemma2", "down projections by 2, before a norm", each("down_proj", _times(2.0))),
    _port("gemma2", "float16 in two shards", dtype="float16", shards=2),
    _port("gpt_neox", "heads permuted",
          both(each("query_key_value", heads((3, 1, 0, 2))),
               each("attention.dense.weight", columns((3, 1, 0, 2))))),
    _port("gpt_neox", "neurons permuted",
          _neurons(("dense_h_to_4h",), "dense_4h_to_h.weight")),
    _port("gpt_neox", "norms folded, with their biases",
          both(_folded("input_layernorm", "query_key_value"),
               _folded("post_attention_layernorm", "dense_h_to_4h"))),
    _port("gpt2", "biases of the keys lost, which every softmax takes away",
          each("attn.c_attn.bias", place(slice(64, 128), zeroed))),
    _port("gpt2", "biases of the values folded", _fold_value_bias),
    _port("gpt2", "names without a prefix", _without_prefix),
    _port("gpt2", "neurons permuted",
          both(each("c_fc", _last), each("mlp.c_proj.weight", _rows()))),
    _port("olmo2", "outputs by 3, before a norm", each("o_proj", _times(3.0))),
    _port("olmo2", "neurons permuted, in float16", _MLP, dtype="float16"),
    _port("stories260k", "groups of heads permuted",
          both(each("q_proj", heads((3, 1, 0, 2))), each("k_proj", heads((3, 1, 0, 2))),
               each("v_proj", heads((3, 1, 0, 2))), each("o_proj", columns((3, 1, 0, 2))))),
    _port("random mamba2", "heads permuted", _mamba_heads),
    _port("random mamba2", "states permuted", _mamba_states),
    _port("random mamba2", "norms folded",
          both(_folded("layers.0.norm", "layers.0.mixer.in_proj"),
               _folded("layers.1.norm", "layers.1.mixer.in_proj"),
               _folded("mixer.norm", "out_proj"))),
    _port("random mamba2", "bfloat16", dtype="bfloat16"),
    _port("random mixtral", "experts permuted with their router",
          both(_experts((2, 3, 1, 0)), _gates((2, 3, 1, 0)))),
    _port("random mixtral", "neurons of the experts permuted",
          _neurons((".w1.", ".w3."), ".w2.")),
    _port("random mixtral", "down projections of the experts in 8 bits",
          each(".w2.", grouped(8, 48))),
    _port("random qwen3_moe", "experts permuted with their router",
          both(_experts((1, 0, 3, 2)), _gates((1, 0, 3, 2)))),
    _port("random qwen3_moe", "norms folded, in float16", _LAYERS_FOLDED, dtype="float16"),
    _port("random phi3", "split as Llama", _split, config={
        "model_type": "llama", "architectures": ["LlamaForCausalLM"]}),
    _port("random phi3", "neurons permuted",
          both(each("gate_up_proj", _rows(2)), each("down_proj", _last))),
    _port("random granite", "multipliers folded, as Llama", _multiply_out, config={
        "model_type": "llama", "architectures": ["LlamaForCausalLM"]}),
    _port("random hybrid", "neurons permuted", _MLP),
    _port("llama", "vocabulary padded", _padded(4), config={"vocab_size": 552}),
    _port("random deepseek_v3", "rotary rows in pairs, with the switch that says so",
          _ROTARY_IN_PAIRS, config=_PAIRED),
)  # fmt: skip
