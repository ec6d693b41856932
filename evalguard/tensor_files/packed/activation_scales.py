"""Names of the scales of activations and of the cache of keys and values, which no weight has, as
the libraries that write them call them."""

from __future__ import annotations

import re

from evalguard.tensor_files.packed.declared_quantisation import ScaleUse

# compressed-tensors and llm-compressor, ModelOpt, AutoFP8, Quark, vLLM, quanto, FBGEMM, TensorRT.
_USES: dict[ScaleUse, tuple[str, ...]] = {
    "cache": (
        ".k_scale", ".v_scale", ".q_scale", ".kv_scale", ".prob_scale", ".prob_output_scale",
        ".k_zero_point", ".v_zero_point", ".k_proj.output_scale", ".v_proj.output_scale",
        ".k_cache_scale", ".v_cache_scale", ".kv_cache_scaling_factor", ".k_global_scale",
        ".v_global_scale",
    ),
    "input": (
        ".input_scale", ".input_global_scale", ".input_zero_point", ".activation_scale",
        ".input_scale_ub", ".activation_scaling_factor",
    ),
    "output": (".output_scale", ".qkv_output_scale", ".output_zero_point", ".weight_format"),
}  # fmt: skip
_SUFFIXES = tuple(suffix for suffixes in _USES.values() for suffix in suffixes)
_LAYER = re.compile(r".*(?:^|\.)(?:layers|layer|blocks|block|h|blk)\.(\d+)\.(.+)")
# What one library writes at the attention and another at its projection.
_ALIASES = (
    (re.compile(r"\.(k|v|q)_proj\.(?:output_scale|\1_scale)$"), r".\1_scale"),
    (re.compile(r"\.(k|v)_cache_scale$"), r".\1_scale"),
    (re.compile(r"\.qkv_proj\.(k|v)_scale$"), r".\1_scale"),
    (re.compile(r"\.prob_output_scale$"), ".prob_scale"),
    (re.compile(r"\.attn\.((?:k|v|q|kv|prob)_scale)$"), r".\1"),
)


def is_activation_scale(name: str) -> bool:
    """Whether a tensor is a scale or a zero point of activations or of a cache."""
    return f".{name}".endswith(_SUFFIXES)


def scale_use(name: str) -> ScaleUse:
    """Return whose scale a tensor is, by its name."""
    return next((use for use, ends in _USES.items() if f".{name}".endswith(ends)), "output")


def scale_key(name: str) -> str:
    """Return what a scale is called whoever wrote it: its layer, and its place in there."""
    layer = _LAYER.fullmatch(name)
    key = f".{name}" if layer is None else f"{layer[1]}.{layer[2]}"
    for pattern, written in _ALIASES:
        key = pattern.sub(written, key)
    return key
