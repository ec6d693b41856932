"""One forward pass over several trees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from evalguard.models.hf.attention_reach import AttentionReach
from evalguard.models.hf.packed_batch import PackedBatch, PieceRead
from evalguard.models.hf.prefix_tree import PrefixTree


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
