"""How far back each kind of layer sees, so that a tree's masks can be made for all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

# Implementations that take a mask of any shape; flash attention knows causal ones only.
_ANY_MASK = ("eager", "sdpa")
# What numbers are called that say how far a layer sees.
_REACH_WORDS = ("window", "chunk", "local")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerReach:
    """Which earlier tokens a layer sees: all, the last ``size``, or those of its own chunk."""

    kind: Literal["all", "window", "chunk"] = "all"
    size: int = 0

    def of(
        self, seen: torch.Tensor, depths: torch.Tensor, seen_depths: torch.Tensor
    ) -> torch.Tensor:
        """Narrow what a token sees, shape (B, T, S), to what a layer lets it see.

        Args:
            seen: boolean; which column each row sees.
            depths: (B, T); place of each token in its own sequence.
            seen_depths: (B, S); place of each token that may be seen.
        """
        if self.kind == "window":
            return seen & (depths[:, :, None] - seen_depths[:, None, :] < self.size)
        if self.kind == "chunk":
            own, seen_chunks = depths // self.size, seen_depths // self.size
            return seen & (own[:, :, None] == seen_chunks[:, None, :])
        return seen


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionReach:
    """The kinds of layers of a model, and the form in which it takes masks.

    Attributes:
        kinds: what transformers calls each kind of layer, and its reach.
        dtype: of the masks; boolean, or that of an additive mask.
        borders: numbers of the config from which on some layer may not see all that is before,
            known to ``kinds`` or not.
    """

    kinds: Mapping[str, LayerReach]
    dtype: torch.dtype
    borders: tuple[int, ...] = ()

    def masks(
        self, seen: torch.Tensor, depths: torch.Tensor, seen_depths: torch.Tensor
    ) -> torch.Tensor | dict[str, torch.Tensor]:
        """Masks of a batch as the model's forward takes them, (B, 1, T, S) each."""
        made = {
            name: self._formed(reach.of(seen, depths, seen_depths))
            for name, reach in self.kinds.items()
        }
        # One mask is handed to all layers as it is; several need their names.
        return made if len(made) > 1 else next(iter(made.values()))

    def _formed(self, seen: torch.Tensor) -> torch.Tensor:
        if self.dtype == torch.bool:
            return seen[:, None]
        mask = torch.zeros(seen.shape, dtype=self.dtype)
        return mask.masked_fill_(~seen, torch.finfo(self.dtype).min)[:, None]


def selects_tokens(model: Any) -> bool:
    """Whether layers choose the tokens that they see, or sum them up: short texts show neither."""
    config = getattr(model.config, "text_config", None) or model.config
    kinds = set(getattr(config, "layer_types", None) or ())
    known = {
        *_REACH_BY_LAYER,
        *(kind for kind, what in _UNSUPPORTED_LAYERS.items() if what == _KEEPS_STATE),
    }
    # an indexer's sizes: index_topk, indexer_budget
    return bool(kinds - known) or any(name.startswith("index") for name in config.to_dict())


def read_attention_reach(model: Any) -> AttentionReach | str:
    """Read off a transformers model how its layers see; or why no mask of ours would do."""
    config = getattr(model.config, "text_config", None) or model.config
    implementation = getattr(config, "_attn_implementation", None)
    if implementation not in _ANY_MASK:
        return f"attention is {implementation or 'of its own kind'}, which takes no tree's mask"
    kinds = dict.fromkeys(getattr(config, "layer_types", None) or ())
    unknown = [kind for kind in kinds if kind not in _REACH_BY_LAYER]
    if unknown:
        what = _UNSUPPORTED_LAYERS.get(unknown[0], "see more or less than a mask of ours says")
        return f"layers of kind {unknown[0]} {what}"
    window = getattr(config, "sliding_window", None)
    if not kinds:  # one mask for all layers, as in Mistral
        kinds = {"sliding_attention" if window else "full_attention": None}
    sizes = {"window": window, "chunk": getattr(config, "attention_chunk_size", None)}
    reaches = {}
    for name in kinds:
        kind = _REACH_BY_LAYER[name]
        size = sizes.get(kind)
        if kind != "all" and not size:
            return f"the config names no size for layers of kind {name}"
        reaches[name] = LayerReach(kind=kind, size=int(size or 0))
    dtype = torch.bool if implementation == "sdpa" else model.dtype
    return AttentionReach(kinds=reaches, dtype=dtype, borders=_reach_limits(config))


def _reach_limits(config: Any) -> tuple[int, ...]:
    named = config.to_dict()
    numbers = (value for name, value in named.items() if any(part in name for part in _REACH_WORDS))
    return tuple(sorted({n for n in numbers if isinstance(n, int) and n > 1}))


_KEEPS_STATE = "keep a state, which no mask divides"
_CHOOSES_TOKENS = "choose by themselves what they see, whatever a mask says"
KEEPS_STATE_LAYERS = frozenset({"linear_attention", "mamba", "conv", "hybrid", "recurrent"})
_UNSUPPORTED_LAYERS = {
    **dict.fromkeys(sorted(KEEPS_STATE_LAYERS), _KEEPS_STATE),
    "indexed_attention": _CHOOSES_TOKENS,
}
_REACH_BY_LAYER: dict[str, Literal["all", "window", "chunk"]] = {
    "full_attention": "all",
    "sliding_attention": "window",
    "chunked_attention": "chunk",
}
