"""How far back each kind of layer sees, so that a tree's masks can be made for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F

from evalguard.models.hf.moved_batch import PackedBatch, PieceRead
from evalguard.models.hf.prefix_tree import PrefixTree

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
            own, others = depths // self.size, seen_depths // self.size
            return seen & (own[:, :, None] == others[:, None, :])
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


# What a model's answers depend on beside the tokens before them: measured on a few tokens.


_PROBE_TEXT = "The quick brown fox jumps over the lazy dog"
_LENGTH, _SHARED = 8, 5


def measure_effect_of_later_tokens(lm: Any) -> float:
    """Largest change of a log-probability, in nats, when only later tokens change.

    Zero but for rounding for a causal model; attention without a causal mask, or activations
    quantised together, let a token's score depend on what follows it and on its batch.
    """
    ids = probe_token_ids(lm)
    others = ids[:_SHARED] + ids[:_SHARED][::-1][: _LENGTH - _SHARED]
    first, second = (_logprobs(lm, row)[:_SHARED] for row in (ids, others))
    return largest_change(first, second)


def exceeds_rounding(lm: Any, change: float) -> bool:
    """Whether a change is more than the rounding of the model's dtype."""
    narrow = any(
        parameter.dtype in (torch.bfloat16, torch.float16) for parameter in lm.model.parameters()
    )
    return not change <= (0.5 if narrow else 0.01)


def probe_token_ids(lm: Any, length: int = _LENGTH) -> list[int]:
    """Token ids of a few ordinary words, repeated where that gives too few."""
    ids = list(lm.tok_encode(_PROBE_TEXT, add_special_tokens=False)) or [lm.prefix_token_id]
    return (ids * length)[:length]


def _logprobs(lm: Any, ids: list[int]) -> torch.Tensor:
    logits = lm._model_call(torch.tensor([ids], device=lm.device))[0]
    return F.log_softmax(logits[-len(ids) :], dim=-1, dtype=torch.float32)


def largest_change(first: torch.Tensor, second: torch.Tensor) -> float:
    """The largest difference without its sign; NaN where only one of the two is NaN."""
    # what is -inf (a masked token) or NaN on both sides has not changed
    same = (first == second) | (first.isnan() & second.isnan())
    return float(torch.where(same, 0.0, (first - second).abs()).max())


# One forward pass over several trees.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TreeBatch(PackedBatch):
    """Trees side by side.

    Attributes:
        position_ids: (B, T); the place of each token in its piece.
        masks: (B, 1, T, S), additive or boolean, as transformers takes it, S being the tokens of
            the trunk and those of the row; one for each kind of layer where they differ.
        trunk: token ids before every row, read in a pass of their own.
    """

    position_ids: torch.Tensor
    masks: torch.Tensor | dict[str, torch.Tensor]
    trunk: tuple[int, ...] = ()


def build_tree_batch(trees: Sequence[PrefixTree], reach: AttentionReach) -> TreeBatch:
    """Put each tree into a row; what fills up a row sees itself only, and nothing sees it.

    All trees stand on the same trunk, or on none.
    """
    trunk = trees[0].trunk
    shape = (len(trees), max(tree.width for tree in trees))
    ids, depths = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    index = np.arange(shape[1])
    ends = np.repeat(index[None] + 1, shape[0], axis=0)
    reads: list[PieceRead] = []
    for row, tree in enumerate(trees):
        for of_all, own in ((ids, tree.ids), (depths, tree.depths), (ends, tree.ends)):
            of_all[row, : tree.width] = own
        reads += [
            PieceRead(piece=piece, row=row, positions=positions)
            for piece, positions in zip(tree.pieces, tree.reads, strict=True)
        ]
    seen = (index <= index[:, None]) & (index[:, None] < ends[:, None, :])
    of_trunk = np.ones((*shape, len(trunk)), dtype=np.bool_)
    trunk_depths = np.repeat(np.arange(len(trunk))[None], len(trees), axis=0)
    places = torch.from_numpy(depths)
    masks = reach.masks(
        torch.from_numpy(np.concatenate([of_trunk, seen], axis=2)),
        places,
        torch.from_numpy(np.concatenate([trunk_depths, depths], axis=1)),
    )
    return TreeBatch(
        input_ids=torch.from_numpy(ids),
        position_ids=places,
        masks=masks,
        trunk=trunk,
        reads=tuple(reads),
    )


# The keys and values of the trunk that was read last.


@dataclass(slots=True)
class TrunkCache:
    """Keeps one trunk: passes on the same trunk come one after the other."""

    _ids: tuple[int, ...] = ()
    _cache: Any = None

    @contextmanager
    def read(
        self, call: Callable[..., Any], ids: tuple[int, ...], device: torch.device
    ) -> Iterator[Any]:
        """Lend the keys and values of a trunk to one forward pass, which adds its own to them.

        Args:
            call: the model's forward.
        """
        cache = self._of(call, ids, device)
        self._cache = None  # what a failed pass leaves behind is of no use
        yield cache
        cache.crop(len(ids) - cache.get_seq_length())
        self._ids, self._cache = ids, cache

    def _of(self, call: Callable[..., Any], ids: tuple[int, ...], device: torch.device) -> Any:
        if self._cache is None or self._ids != ids:
            from transformers import DynamicCache

            # without the config: layers with a window keep all tokens, and masks hide the far ones
            self._cache = DynamicCache()
            call(input_ids=torch.tensor([ids], device=device), cache=self._cache)
        return self._cache
