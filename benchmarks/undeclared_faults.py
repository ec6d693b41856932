"""Faults as conversions make them, planted in small models, and who is guilty of each."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    Weights = dict[str, torch.Tensor]

Change = Callable[["Weights"], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One mistake of a conversion.

    Attributes:
        kind: weights, config, tokenizer, numerics or code.
        model: a kind of ``sampled_models``.
        change: of the weights, in place; ``config``: keys of config.json; ``tokenizer``: likewise
            of tokenizer.json.
        setting: the guilty setting's name begins with it; "" of weights, which are known by what
            was changed.
    """

    name: str
    kind: str
    model: str
    change: Change | None = None
    config: dict[str, Any] | None = None
    tokenizer: dict[str, Any] | None = None
    code: str = ""
    setting: str = ""


def _each(pattern: str, change: Callable[[Any], Any]) -> Change:
    """Change every weight whose name has this in it."""

    def apply(weights: Weights) -> None:
        for name in weights:
            if pattern in name:
                weights[name] = change(weights[name])

    return apply


def _heads(order: Iterable[int]) -> Callable[[Any], Any]:
    places = [*order]
    return lambda one: one.view(len(places), -1, *one.shape[1:])[places].reshape(one.shape)


def _exchanged(order: dict[int, int], within: str = "") -> Change:
    """Layers (or what is within them) under the numbers of others."""

    def apply(weights: Weights) -> None:
        before = dict(weights)
        for name in before:
            for layer, other in order.items():
                if f"layers.{layer}.{within}" in name:
                    weights[name] = before[name.replace(f"layers.{layer}.", f"layers.{other}.")]

    return apply


def _noise(share: float) -> Callable[[Any], Any]:
    """Noise of a share of a weight's own scatter."""

    def apply(one: Any) -> Any:
        import torch

        drawn = torch.randn(one.shape, generator=torch.Generator().manual_seed(one.numel()))
        return one + share * one.std() * drawn

    return apply


def _rounded(bits: int) -> Callable[[Any], Any]:
    """Rounded to integers of so many bits, one scale for each row."""

    def apply(one: Any) -> Any:
        if one.ndim < 2:
            return one
        scale = one.abs().amax(dim=1, keepdim=True) / (2 ** (bits - 1) - 1)
        return (one / scale).round() * scale

    return apply


def _negated_rows(one: Any) -> Any:
    changed = one.clone()
    changed[: len(one) // 2] *= -1.0
    return changed


_NO_BOS: dict[str, Any] = {"post_processor": None}
_LOGITS = '''
from transformers import LlamaForCausalLM


class HalvedForCausalLM(LlamaForCausalLM):
    """Logits halved, as a port that forgot to undo a scale."""

    def forward(self, *given, **named):
        out = super().forward(*given, **named)
        out.logits = out.logits * 0.5
        return out
'''

FAULTS = (
    Fault(name="query heads in another order, all layers", kind="weights", model="llama",
          change=_each("q_proj", _heads((2, 0, 3, 1)))),
    Fault(name="+1 on every norm", kind="weights", model="llama",
          change=_each("norm", lambda one: one + 1.0)),
    Fault(name="layers 1 and 2 swapped", kind="weights", model="llama",
          change=_exchanged({1: 2, 2: 1})),
    Fault(name="output projections transposed", kind="weights", model="llama",
          change=_each("o_proj", lambda one: one.T)),
    Fault(name="rows of the head shifted by one", kind="weights", model="llama",
          change=_each("lm_head", lambda one: one.roll(1, 0))),
    Fault(name="one layer's MLP damaged", kind="weights", model="llama",
          change=_each("layers.2.mlp", _noise(0.4))),
    Fault(name="rotary base", kind="config", model="llama",
          config={"rope_parameters": {"rope_type": "default", "rope_theta": 20.0}},
          setting="config.rope_parameters.rope_theta"),
    Fault(name="BOS lost", kind="tokenizer", model="llama", tokenizer=_NO_BOS,
          setting="add_bos_token"),
    Fault(name="code of its own that halves the logits", kind="code", model="llama",
          code=_LOGITS, setting="model"),
    Fault(name="query norms scaled", kind="weights", model="qwen3",
          change=_each("q_norm", lambda one: one * 1.6)),
    Fault(name="a layer copied over another", kind="weights", model="qwen3",
          change=_exchanged({3: 1})),
    Fault(name="keys of one layer zeroed", kind="weights", model="qwen3",
          change=_each("layers.1.self_attn.k_proj", lambda one: one * 0.0)),
    Fault(name="everything in three bits", kind="numerics", model="qwen3",
          change=_each("layers.", _rounded(3))),
    Fault(name="key heads in another order", kind="weights", model="qwen3",
          change=_each("k_proj", _heads((1, 0)))),
    Fault(name="embeddings scaled", kind="weights", model="qwen3",
          change=_each("embed_tokens", lambda one: one * 0.2)),
    Fault(name="activation", kind="config", model="qwen3", config={"hidden_act": "relu"},
          setting="config.hidden_act"),
    Fault(name="two blocks swapped", kind="weights", model="qwen3",
          change=_exchanged({0: 2, 2: 0}, "mlp.")),
    Fault(name="final soft-cap", kind="config", model="gemma2",
          config={"final_logit_softcapping": 4.0}, setting="config.final_logit_softcapping"),
    Fault(name="attention scale", kind="config", model="gemma2",
          config={"query_pre_attn_scalar": 400}, setting="config.query_pre_attn_scalar"),
    Fault(name="norms counted from 0", kind="weights", model="gemma2",
          change=_each("norm", lambda one: one + 1.0)),
    Fault(name="gate and up projections of all layers swapped", kind="weights", model="gemma2",
          change=lambda weights: _swap_modules(weights, "gate_proj", "up_proj")),
    Fault(name="half the rows of one projection negated", kind="weights", model="gemma2",
          change=_each("layers.1.self_attn.v_proj", _negated_rows)),
    Fault(name="attention of all layers damaged", kind="weights", model="gemma2",
          change=_each("self_attn", _noise(0.3))),
    Fault(name="layers in another order", kind="weights", model="hybrid",
          change=_exchanged({0: 2, 2: 0, 1: 3, 3: 1})),
    Fault(name="epsilon of the norms", kind="config", model="hybrid", config={"rms_norm_eps": 1.0},
          setting="config.rms_norm_eps"),
    Fault(name="one projection damaged", kind="weights", model="hybrid",
          change=_each("layers.3.mlp.up_proj", _noise(0.6))),
    Fault(name="down projections scaled", kind="weights", model="hybrid",
          change=_each("down_proj", lambda one: one * 2.0)),
    Fault(name="fused heads in another order", kind="weights", model="gpt_neox",
          change=_each("query_key_value", _heads((3, 1, 0, 2)))),
    Fault(name="biases of one layer lost", kind="weights", model="gpt_neox",
          change=_each("layers.0.post_attention_layernorm", lambda one: one * 0.0)),
    Fault(name="residual in series", kind="config", model="gpt_neox",
          config={"use_parallel_residual": False}, setting="config.use_parallel_residual"),
    Fault(name="layers shifted by one", kind="weights", model="gpt_neox",
          change=_exchanged({1: 0, 2: 1, 3: 2})),
    Fault(name="query and key norms of one layer scaled", kind="weights", model="olmo2",
          change=_each("layers.2.self_attn.k_norm", lambda one: one * 3.0)),
    Fault(name="MLPs of two layers damaged", kind="weights", model="olmo2",
          change=lambda weights: [_each(f"layers.{n}.mlp", _noise(0.5))(weights) for n in (0, 3)]
          and None),
)  # fmt: skip


def _swap_modules(weights: Weights, one: str, other: str) -> None:
    before = dict(weights)
    for name in before:
        if one in name:
            there = name.replace(one, other)
            weights[name], weights[there] = before[there], before[name]


def plant(fault: Fault, base: Path, folder: Path, *, rounded: bool) -> frozenset[str]:
    """Write a port of a model with a fault; return the names of the weights that it changes.

    Args:
        rounded: every other weight is rounded to bfloat16, and an epsilon is off by a hundredth, as
            conversions do without harm.
    """
    import torch
    from safetensors.torch import load_file, save_file

    shutil.copytree(base, folder)
    file = folder / "model.safetensors"
    before = load_file(file)
    weights = dict(before)
    if fault.change is not None:
        fault.change(weights)
    guilty = {name for name in before if not torch.equal(weights[name], before[name])}
    if rounded:
        weights = {name: one.bfloat16().float() for name, one in weights.items()}
    save_file(
        {name: one.contiguous().clone() for name, one in weights.items()},
        file,
        metadata={"format": "pt"},
    )
    _edit(folder / "config.json", fault.config or {})
    _edit(folder / "tokenizer.json", fault.tokenizer or {})
    if fault.code:
        (folder / "modeling_port.py").write_text(fault.code)
        _edit(folder / "config.json", {
            "auto_map": {"AutoModelForCausalLM": "modeling_port.HalvedForCausalLM"},
        })  # fmt: skip
    return frozenset(guilty)


def _edit(file: Path, changes: dict[str, Any]) -> None:
    if changes:
        file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
