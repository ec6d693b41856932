"""Faults as conversions make them, planted in small trained models, and who is guilty of each."""

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


Edit = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One mistake of a conversion, or none.

    Attributes:
        kind: weights, config, tokenizer, numerics or code; healthy where nobody may be named.
        model: a kind of ``trained_models``.
        change: of the weights, in place; ``config``: keys of config.json; ``tokenizer``: of
            tokenizer.json, in place.
        setting: the guilty setting's name begins with it; "" of weights, which are known by what
            was changed.
        dtype, shards: how the weights are stored.
        declared: what the two are said to differ in: else other vocabularies are refused.
        places: of what is no weight: parts of the modules' names that a trace may name for it.
    """

    name: str
    kind: str
    model: str
    change: Change | None = None
    config: dict[str, Any] | None = None
    tokenizer: Edit | None = None
    code: str = ""
    setting: str = ""
    dtype: str = ""
    shards: int = 1
    declared: tuple[str, ...] = ()
    places: tuple[str, ...] = ()


def each(pattern: str, change: Callable[[Any], Any]) -> Change:
    """Change every weight whose name has this in it."""

    def apply(weights: Weights) -> None:
        for name in weights:
            if pattern in name:
                weights[name] = change(weights[name])

    return apply


def heads(order: Iterable[int]) -> Callable[[Any], Any]:
    places = [*order]
    return lambda one: one.view(len(places), -1, *one.shape[1:])[places].reshape(one.shape)


def exchanged(order: dict[int, int], within: str = "") -> Change:
    """Layers (or what is within them) under the numbers of others."""

    def apply(weights: Weights) -> None:
        before = dict(weights)
        for name in before:
            for layer, other in order.items():
                if f"layers.{layer}.{within}" in name:
                    weights[name] = before[name.replace(f"layers.{layer}.", f"layers.{other}.")]

    return apply


def noise(share: float) -> Callable[[Any], Any]:
    """Noise of a share of a weight's own scatter."""

    def apply(one: Any) -> Any:
        import torch

        drawn = torch.randn(one.shape, generator=torch.Generator().manual_seed(one.numel()))
        return one + share * one.std() * drawn

    return apply


def rounded_rows(bits: int) -> Callable[[Any], Any]:
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


def grouped(bits: int, group: int) -> Callable[[Any], Any]:
    """Rounded to integers of so many bits, one scale for each group of a row."""
    in_rows = rounded_rows(bits)
    return lambda one: in_rows(one.reshape(-1, group)).reshape(one.shape)


def interleaved(head: int) -> Callable[[Any], Any]:
    """Rotary pairs side by side, where the model reads them half a head apart."""
    return lambda one: one.view(-1, 2, head // 2, one.shape[1]).transpose(1, 2).reshape(one.shape)


def place(where: Any, value: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Change a part of a weight."""

    def apply(one: Any) -> Any:
        changed = one.clone()
        changed[where] = value(changed[where])
        return changed

    return apply


def zeroed(one: Any) -> Any:
    return one * 0.0


def _exchanged_rows(one: Any) -> Any:
    """Rows 300 to 339 in the reverse order."""
    changed = one.clone()
    changed[300:340] = one[300:340].flip(0)
    return changed


def columns(order: Iterable[int]) -> Callable[[Any], Any]:
    """Parts of the columns in another order."""
    import torch

    places = [*order]
    return lambda one: torch.cat(
        [one.chunk(len(places), dim=-1)[place] for place in places], dim=-1
    )


def _stale_head(weights: Weights) -> None:
    """A head of its own, from before the last steps of a training."""
    (embedding,) = (one for name, one in weights.items() if "embed_tokens" in name)
    weights["lm_head.weight"] = noise(0.5)(embedding)


def _same_head(weights: Weights) -> None:
    (embedding,) = (one for name, one in weights.items() if "embed_tokens" in name)
    weights["lm_head.weight"] = embedding.clone()


def swap_modules(one: str, other: str) -> Change:
    def apply(weights: Weights) -> None:
        before = dict(weights)
        for name in before:
            if one in name:
                there = name.replace(one, other)
                weights[name], weights[there] = before[there], before[name]

    return apply


def both(*changes: Change) -> Change:
    def apply(weights: Weights) -> None:
        for change in changes:
            change(weights)

    return apply


def _lose_bos(tokenizer: dict[str, Any]) -> None:
    tokenizer["post_processor"] = None


def _put_eos_first(tokenizer: dict[str, Any]) -> None:
    """EOS where BOS should be."""
    single = tokenizer["post_processor"]
    text = json.dumps(single).replace("<s>", "</s>").replace('"ids": [1]', '"ids": [2]')
    tokenizer["post_processor"] = json.loads(text)


def _swap_entries(tokenizer: dict[str, Any]) -> None:
    """Pairs of words under the ids of each other."""
    ids = tokenizer["model"]["vocab"]
    words = sorted((one for one in ids if one.startswith("\u0120") and len(one) > 4), key=ids.get)
    for one, other in zip(words[0:16:2], words[1:16:2], strict=True):
        ids[one], ids[other] = ids[other], ids[one]


def _lose_merges(tokenizer: dict[str, Any]) -> None:
    """The last merges are gone: the words that they made come in two pieces."""
    tokenizer["model"]["merges"] = tokenizer["model"]["merges"][:-60]


_LOGITS = '''
from transformers import LlamaForCausalLM


class HalvedForCausalLM(LlamaForCausalLM):
    """Logits halved, as a port that forgot to undo a scale."""

    def forward(self, *given, **named):
        out = super().forward(*given, **named)
        out.logits = out.logits * 0.5
        return out
'''

_ROPE = {"rope_type": "default", "rope_theta": 1000.0}

FAULTS = (
    Fault(name="query heads in another order, all layers", kind="weights", model="llama",
          change=each("q_proj", heads((2, 0, 3, 1)))),
    Fault(name="+1 on every norm", kind="weights", model="llama",
          change=each("norm", lambda one: one + 1.0)),
    Fault(name="layers 1 and 2 swapped", kind="weights", model="llama",
          change=exchanged({1: 2, 2: 1})),
    Fault(name="output projections transposed", kind="weights", model="llama",
          change=each("o_proj", lambda one: one.T)),
    Fault(name="rows of the head shifted by one", kind="weights", model="llama",
          change=each("lm_head", lambda one: one.roll(1, 0))),
    Fault(name="one layer's MLP damaged", kind="weights", model="llama",
          change=each("layers.2.mlp", noise(1.0))),
    Fault(name="one layer's MLP in groups of 2 bits", kind="numerics", model="llama",
          change=each("layers.0.mlp", grouped(2, 32))),
    Fault(name="one head of one layer zeroed", kind="weights", model="llama",
          change=each("layers.2.self_attn.o_proj",
                       place((slice(None), slice(16, 32)), zeroed))),
    Fault(name="rotary pairs side by side, all layers", kind="weights", model="llama",
          change=both(each("q_proj", interleaved(16)), each("k_proj", interleaved(16)))),
    Fault(name="embeddings of some tokens exchanged", kind="weights", model="llama",
          change=each("embed_tokens", _exchanged_rows)),
    Fault(name="rotary base", kind="config", model="llama",
          config={"rope_parameters": {"rope_type": "default", "rope_theta": 200.0}},
          setting="config.rope_parameters.rope_theta"),
    Fault(name="BOS lost", kind="tokenizer", model="llama", tokenizer=_lose_bos,
          setting="add_bos_token"),
    Fault(name="code of its own that halves the logits", kind="code", model="llama",
          code=_LOGITS, setting="model"),
    Fault(name="query norms scaled", kind="weights", model="qwen3",
          change=each("q_norm", lambda one: one * 1.6)),
    Fault(name="a layer copied over another", kind="weights", model="qwen3",
          change=exchanged({3: 1})),
    Fault(name="keys of one layer zeroed", kind="weights", model="qwen3",
          change=each("layers.1.self_attn.k_proj", zeroed)),
    Fault(name="everything in three bits", kind="numerics", model="qwen3",
          change=each("layers.", rounded_rows(3))),
    Fault(name="key heads in another order", kind="weights", model="qwen3",
          change=each("k_proj", heads((1, 0)))),
    Fault(name="embeddings scaled", kind="weights", model="qwen3",
          change=each("embed_tokens", lambda one: one * 0.2)),
    Fault(name="activation", kind="config", model="qwen3", config={"hidden_act": "relu2"},
          setting="config.hidden_act"),
    Fault(name="two blocks swapped", kind="weights", model="qwen3",
          change=exchanged({0: 2, 2: 0}, "mlp.")),
    Fault(name="a head that was tied is stale", kind="weights", model="qwen3",
          change=_stale_head, config={"tie_word_embeddings": False}),
    Fault(name="the last norm lost", kind="weights", model="qwen3",
          change=each("model.norm", lambda one: one * 0.0 + 1.0)),
    Fault(name="words under the ids of others", kind="tokenizer", model="qwen3",
          tokenizer=_swap_entries, setting="tokenizer", declared=("tokens",)),
    Fault(name="final soft-cap", kind="config", model="gemma2",
          config={"final_logit_softcapping": 6.0}, setting="config.final_logit_softcapping"),
    Fault(name="attention scale", kind="config", model="gemma2",
          config={"query_pre_attn_scalar": 60}, setting="config.query_pre_attn_scalar"),
    Fault(name="sliding window", kind="config", model="gemma2",
          config={"sliding_window": 12}, setting="config.sliding_window"),
    Fault(name="norms counted from 0", kind="weights", model="gemma2",
          change=each("norm", lambda one: one + 1.0)),
    Fault(name="gate and up projections of all layers swapped", kind="weights", model="gemma2",
          change=swap_modules("gate_proj", "up_proj")),
    Fault(name="half the rows of one projection negated", kind="weights", model="gemma2",
          change=each("layers.3.self_attn.v_proj", _negated_rows)),
    Fault(name="attention of all layers damaged", kind="weights", model="gemma2",
          change=each("self_attn", noise(0.4))),
    Fault(name="layers in another order", kind="weights", model="hybrid",
          change=exchanged({0: 2, 2: 0, 1: 3, 3: 1})),
    Fault(name="epsilon of the norms", kind="config", model="hybrid", config={"rms_norm_eps": 0.1},
          setting="config.rms_norm_eps"),
    Fault(name="one projection damaged", kind="weights", model="hybrid",
          change=each("layers.0.mlp.up_proj", noise(2.0))),
    Fault(name="down projections scaled", kind="weights", model="hybrid",
          change=each("down_proj", lambda one: one * 2.0)),
    Fault(name="time of the convolutions reversed", kind="weights", model="hybrid",
          change=each("conv1d", lambda one: one.flip(-1))),
    Fault(name="decay of the delta rule with the other sign", kind="weights", model="hybrid",
          change=each("A_log", lambda one: -one)),
    Fault(name="fused heads in another order", kind="weights", model="gpt_neox",
          change=each("query_key_value", heads((3, 1, 0, 2)))),
    Fault(name="a norm of one layer lost, with its bias", kind="weights", model="gpt_neox",
          change=each("layers.0.post_attention_layernorm", zeroed)),
    Fault(name="residual in series", kind="config", model="gpt_neox",
          config={"use_parallel_residual": False}, setting="config.use_parallel_residual"),
    Fault(name="layers shifted by one", kind="weights", model="gpt_neox",
          change=exchanged({1: 0, 2: 1, 3: 2})),
    Fault(name="rotary share of a head", kind="config", model="gpt_neox",
          config={"rope_parameters": {**_ROPE, "partial_rotary_factor": 0.25}},
          setting="config.rope_parameters.partial_rotary_factor"),
    Fault(name="merges lost", kind="tokenizer", model="gpt_neox", tokenizer=_lose_merges,
          setting="tokenizer"),
    Fault(name="key norms of one layer scaled", kind="weights", model="olmo2",
          change=each("layers.2.self_attn.k_norm", lambda one: one * 0.3)),
    Fault(name="MLPs of two layers damaged", kind="weights", model="olmo2",
          change=both(each("layers.0.mlp", noise(0.5)), each("layers.3.mlp", noise(0.5)))),
    Fault(name="heads of one layer in another order", kind="weights", model="olmo2",
          change=both(each("layers.1.self_attn.q_proj", heads((1, 2, 3, 0))))),
    Fault(name="epsilon of the norms", kind="config", model="olmo2", config={"rms_norm_eps": 0.01},
          setting="config.rms_norm_eps"),
    Fault(name="positions shifted by one", kind="weights", model="gpt2",
          change=each("wpe", lambda one: one.roll(1, 0))),
    Fault(name="queries and keys exchanged", kind="weights", model="gpt2",
          change=each("attn.c_attn", columns((1, 0, 2)))),
    Fault(name="fused heads in another order", kind="weights", model="gpt2",
          change=each("attn.c_attn", columns((2, 0, 3, 1, 6, 4, 7, 5, 10, 8, 11, 9)))),
    Fault(name="first matrices of the MLPs reshaped, not transposed", kind="weights", model="gpt2",
          change=each("mlp.c_fc.weight", lambda one: one.T.reshape(one.shape))),
    Fault(name="activation", kind="config", model="gpt2",
          config={"activation_function": "tanh"}, setting="config.activation_function"),
    Fault(name="attention unscaled", kind="config", model="gpt2",
          config={"scale_attn_weights": False}, setting="config.scale_attn_weights"),
    Fault(name="heads of one layer in another order", kind="weights", model="stories260k",
          change=each("layers.2.self_attn.q_proj", heads((3, 2, 1, 0, 7, 6, 5, 4)))),
    Fault(name="one layer's MLP in groups of 3 bits", kind="numerics", model="stories260k",
          change=each("layers.2.mlp", grouped(3, 32))),
    Fault(name="activation", kind="config", model="stories260k", config={"hidden_act": "gelu"},
          setting="config.hidden_act"),
    Fault(name="rotary base", kind="config", model="stories260k",
          config={"rope_parameters": {"rope_type": "default", "rope_theta": 100000.0}},
          setting="config.rope_parameters.rope_theta"),
    Fault(name="EOS in place of BOS", kind="tokenizer", model="stories260k",
          tokenizer=_put_eos_first, setting="tokenizer"),
    Fault(name="down projections of all layers rounded to 4 bits", kind="numerics",
          model="stories260k", change=each("down_proj", grouped(4, 172))),
    Fault(name="bfloat16", kind="healthy", model="llama", dtype="bfloat16"),
    Fault(name="float16", kind="healthy", model="qwen3", dtype="float16"),
    Fault(name="bfloat16", kind="healthy", model="gemma2", dtype="bfloat16"),
    Fault(name="bfloat16", kind="healthy", model="hybrid", dtype="bfloat16"),
    Fault(name="float16", kind="healthy", model="gpt2", dtype="float16"),
    Fault(name="untied, the head the same", kind="healthy", model="qwen3",
          change=_same_head, config={"tie_word_embeddings": False}),
    Fault(name="in three shards", kind="healthy", model="gpt_neox", shards=3),
    Fault(name="in shards and bfloat16", kind="healthy", model="olmo2", shards=2,
          dtype="bfloat16"),
    Fault(name="8 bits a row", kind="healthy", model="llama", change=each("proj", rounded_rows(8))),
    Fault(name="8 bits a row", kind="healthy", model="stories260k",
          change=each("proj", rounded_rows(8))),
    Fault(name="epsilon of a rounding", kind="healthy", model="olmo2",
          config={"rms_norm_eps": 1.01e-5}),
)  # fmt: skip


def plant(fault: Fault, base: Path, folder: Path, *, rounded: bool) -> frozenset[str]:
    """Write a port of a model with a fault; return the names of the weights that it changes.

    Args:
        rounded: every other weight is rounded to bfloat16, as conversions do without harm.
    """
    import torch
    from safetensors.torch import load_file

    folder.mkdir(parents=True)
    for file in base.iterdir():
        shutil.copyfile(file, folder / file.name)
    before = load_file(folder / "model.safetensors")
    weights = dict(before)
    if fault.change is not None:
        fault.change(weights)
    guilty = {
        name
        for name, one in weights.items()
        if name not in before or not torch.equal(one, before[name])
    } | (before.keys() - weights.keys())
    if rounded:
        weights = {name: one.bfloat16().float() for name, one in weights.items()}
    if fault.dtype:
        weights = {name: one.to(getattr(torch, fault.dtype)) for name, one in weights.items()}
    _store(weights, folder, fault.shards)
    _edit(folder / "config.json", fault.config or {})
    if fault.tokenizer is not None:
        tokenizer = json.loads((folder / "tokenizer.json").read_text())
        fault.tokenizer(tokenizer)
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    if fault.code:
        (folder / "modeling_port.py").write_text(fault.code)
        _edit(folder / "config.json", {
            "auto_map": {"AutoModelForCausalLM": "modeling_port.HalvedForCausalLM"},
        })  # fmt: skip
    return frozenset(guilty)


def _store(weights: Weights, folder: Path, shards: int) -> None:
    from safetensors.torch import save_file

    held = {name: one.contiguous().clone() for name, one in weights.items()}
    if shards == 1:
        save_file(held, folder / "model.safetensors", metadata={"format": "pt"})
        return
    (folder / "model.safetensors").unlink()
    places = {name: f"model-{number % shards}.safetensors" for number, name in enumerate(held)}
    for file in set(places.values()):
        part = {name: one for name, one in held.items() if places[name] == file}
        save_file(part, folder / file, metadata={"format": "pt"})
    index = {"metadata": {}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def _edit(file: Path, changes: dict[str, Any]) -> None:
    if changes:
        file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
