"""Rotary position embeddings whose frequencies depend on the longest sequence of a batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def longrope_switch_length(config: Any) -> int | None:
    """Return the length above which a model with "longrope" uses other frequencies, or None.

    The longest sequence of a batch decides for all of them.
    """
    lengths = [
        int(rope["original_max_position_embeddings"])
        for rope in _rope_parameters(config)
        if rope.get("rope_type") == "longrope" and rope.get("original_max_position_embeddings")
    ]
    return min(lengths, default=None)


def scales_with_length(config: Any, max_length: int) -> bool:
    """Return whether frequencies change with every length above the trained one ("dynamic").

    They also stay at those of the longest sequence read, until a short one resets them.
    """
    trained = getattr(_text_config(config), "max_position_embeddings", None) or max_length
    return max_length > trained and any(
        "dynamic" in str(rope.get("rope_type")) for rope in _rope_parameters(config)
    )


def _rope_parameters(config: Any) -> Iterator[Mapping[str, Any]]:
    declared = getattr(_text_config(config), "rope_parameters", None) or {}
    if "rope_type" in declared:
        yield declared
    else:  # one for each type of layer
        yield from (rope for rope in declared.values() if isinstance(rope, Mapping))


def _text_config(config: Any) -> Any:
    return getattr(config, "text_config", None) or config
