"""Names of tensors in GGUF and MLX files, as the names of a Hugging Face checkpoint.

Names come from the package gguf, as llama.cpp's converter has them; what the converter does to the
numbers is stated here: rotary pairs of queries and keys of the Llama family are put beside each
other, Gemma's norm weights get 1 added, GPT-2's matrices are transposed, experts are stacked.
evalguard's own recipe takes an attention scale that llama.cpp has not into the queries.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields
from typing import Any

from evalguard.core.name_map import Layout, NameMap, NameRule, Permutation, Take

# Architectures whose converter permutes q and k (class LlamaModel of convert_hf_to_gguf and what
# inherits it); the others rotate halves as Hugging Face does.
_PERMUTED = frozenset({"llama", "granite", "granitemoe", "arcee", "smollm3", "deci", "internlm2"})
_NORM_PLUS_ONE = frozenset({"gemma", "gemma2", "gemma3", "gemma3n", "nemotron"})
_QUERY_SCALE_KEY = "evalguard.query_scale"  # where evalguard's recipe says what it took into q
_EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(.*)")
_BLOCK = re.compile(r"blk\.(\d+)\.")
# Buffers that a converter adds or leaves out: nothing was trained in them.
_IGNORED = ("rope_freqs.weight", "**.rotary_emb.inv_freq", "rope_factors_*.weight")


def map_gguf_names(
    names: Collection[str],
    gguf_names: Collection[str],
    metadata: Mapping[str, Any],
    *,
    gguf_is_base: bool,
) -> NameMap:
    """Return the map of a model's names and those of a GGUF file.

    Args:
        names: of the Hugging Face model.
        gguf_names: of the file.
        metadata: the file's: its architecture and counts of heads.
        gguf_is_base: whether the GGUF file is the base.
    """
    from gguf import MODEL_ARCH_NAMES, get_tensor_name_map

    architecture = str(metadata.get("general.architecture", ""))
    known = {name: arch for arch, name in MODEL_ARCH_NAMES.items()}
    if architecture not in known:
        return NameMap(ignore=_IGNORED)
    blocks = 1 + max((int(m[1]) for entry in gguf_names if (m := _BLOCK.match(entry))), default=0)
    table = get_tensor_name_map(known[architecture], blocks)
    rules = []
    for name in names:
        match = _find_name(name, table, gguf_names)
        if match is None:
            continue
        gguf_name, expert = match
        layout = _layout(gguf_name, architecture, metadata, inverted=gguf_is_base)
        if expert is not None and not gguf_is_base:
            values = {field.name: getattr(layout, field.name) for field in fields(Layout)}
            layout = Layout(**{**values, "take": Take(index=expert)})
        elif expert is not None:
            continue  # a stack is no part of one expert
        base, candidate = (gguf_name, name) if gguf_is_base else (name, gguf_name)
        rules.append(NameRule(base=base, cand=candidate, layout=layout))
    return NameMap(rules=tuple(rules), ignore=_IGNORED)


def _find_name(name: str, table: Any, gguf_names: Collection[str]) -> tuple[str, int | None] | None:
    """Return the name in the file, and the number of the expert where it is one of a stack."""
    suffixes = (".weight", ".bias")
    tried: list[tuple[str, int | None]] = [(name, None)]
    expert = _EXPERT.fullmatch(name)
    if expert is not None:
        tried.append((f"{expert[1]}.{expert[3]}", int(expert[2])))
    for prefix in ("", "model.", "transformer."):  # bare and wrapped models
        for candidate, number in tried:
            gguf_name = table.get_name(prefix + candidate, try_suffixes=suffixes)
            if gguf_name in gguf_names:
                return gguf_name, number
    for wrapper in ("model.language_model.", "language_model."):
        if name.startswith(wrapper):
            inner = "model." + name.removeprefix(wrapper).removeprefix("model.")
            return _find_name(inner, table, gguf_names)
    return None


def _layout(
    gguf_name: str, architecture: str, metadata: Mapping[str, Any], *, inverted: bool
) -> Layout:
    permute: tuple[Permutation, ...] = ()
    block = _BLOCK.match(gguf_name)
    part = re.search(r"\.attn_(q|k)\.(weight|bias)$", gguf_name)
    if part is not None and block is not None and architecture in _PERMUTED:
        heads = _count_heads(metadata, architecture, part[1], int(block[1]))
        if heads:
            order = "halves" if inverted else "interleaved"
            permute = (Permutation(heads=heads, order=order),)
    add = 0.0
    if architecture in _NORM_PLUS_ONE and gguf_name.endswith("norm.weight"):
        add = 1.0 if inverted else -1.0
    scale = 1.0
    if part is not None and part[1] == "q":
        times = metadata.get(_QUERY_SCALE_KEY)
        if isinstance(times, float) and math.isfinite(times) and times:
            scale = times if inverted else 1.0 / times
    matrix = re.search(r"\.(attn_qkv|attn_output|ffn_up|ffn_down)\.weight$", gguf_name)
    transpose = (1, 0) if architecture == "gpt2" and matrix is not None else ()
    return Layout(permute=permute, scale=scale, add=add, transpose=transpose)


def _count_heads(metadata: Mapping[str, Any], architecture: str, part: str, block: int) -> int:
    key = f"{architecture}.attention.head_count"
    heads = metadata.get(key)
    if part == "k":
        heads = metadata.get(f"{key}_kv", heads)
    if isinstance(heads, list):  # another number in each layer
        heads = heads[block] if block < len(heads) else 0
    return heads if isinstance(heads, int) else 0


# The expert's matrices in Hugging Face's checkpoints -> mlx-lm's (its models' sanitize).
_QWEN = {name: name for name in ("gate_proj", "up_proj", "down_proj")}
_MIXTRAL = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}
_RULES = tuple(
    NameRule(
        base=f"**.{block}.experts.*.{name}.weight",
        cand=f"**.{block}.switch_mlp.{stacked}.weight",
        layout=Layout(take=Take(index="$2")),
    )
    for block, names in (("mlp", _QWEN), ("block_sparse_moe", _MIXTRAL))
    for name, stacked in names.items()
)


def map_mlx_experts(candidate: Iterable[str]) -> NameMap:
    """Return the rules by which an expert's matrix is a slice of a stack; none without a stack."""
    return NameMap(rules=_RULES if any(".switch_mlp." in name for name in candidate) else ())
