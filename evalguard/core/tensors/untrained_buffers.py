"""Buffers that a model computes anew and in which nothing was trained: some versions of a library
store them, and others do not."""

from __future__ import annotations

from collections.abc import Sequence

# How names end; transformers leaves the same out (``_keys_to_ignore_on_load_unexpected``).
_NAMES = (
    ".position_ids", ".rotary_emb.inv_freq", ".masked_bias", ".relative_position_index",
    ".token_type_ids",
)  # fmt: skip
_MASKS = (".attn.bias", ".attention.bias")  # of GPT-2 and GPT-NeoX, where they are square


def is_untrained(name: str, shape: Sequence[int]) -> bool:
    """Whether a tensor is such a buffer, by its name and shape."""
    mask = len(shape) == 4 and shape[0] == shape[1] == 1 and shape[2] == shape[3]
    return f".{name}".endswith(_NAMES) or (mask and f".{name}".endswith(_MASKS))
