"""PrefixSharing: what several continuations have before them is read once, and that is checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch

from evalguard.errors import EvalguardError, FallbackError
from evalguard.models.answer_failures import format_error
from evalguard.models.hf.attention_reach import AttentionReach
from evalguard.models.hf.moved_batch import move_tensor
from evalguard.models.hf.out_of_memory import is_out_of_memory
from evalguard.models.hf.packed_batch import PackedBatch
from evalguard.models.hf.prefix_tree import PrefixTree
from evalguard.models.hf.scored_tokens import InputTokens
from evalguard.models.hf.sharing_check import BatchScorer, compare_with_plain_batches
from evalguard.models.hf.sharing_plan import SharingPlan
from evalguard.models.hf.tree_batch import TreeBatch, build_tree_batch
from evalguard.models.hf.trunk_cache import TrunkCache

# A pass is held against plain batches again when it is so much larger than those checked before.
_RECHECK_GROWTH = 1.1
# Pieces of a pass that are scored in plain batches, too.
_PIECES_CHECKED = 4

TreePass = Sequence[PrefixTree]


@dataclass(slots=True)
class PrefixSharing:
    """Runs trees through one model, and holds the first of them against plain batches.

    Attributes:
        reach: how its layers see.
    """

    reach: AttentionReach
    _trunk: TrunkCache = field(default_factory=TrunkCache)
    # widest and longest pass that was checked, of those on a trunk and those without
    _checked: dict[bool, tuple[int, int]] = field(default_factory=dict)

    def batches(self, model: BatchScorer, plan: SharingPlan) -> Iterator[PackedBatch]:
        """The forward passes of a plan.

        Raises:
            FallbackError: scores differ from those of plain batches by more than rounding.
        """
        for on_trunk in (True, False):
            self._check(model, [p for p in plan.passes if bool(p[0].trunk) == on_trunk], on_trunk)
        for trees in plan.passes:
            yield build_tree_batch(trees, self.reach)

    def run(
        self,
        call: Callable[..., torch.Tensor],
        unread: Callable[..., object],
        batch: TreeBatch,
        device: torch.device,
    ) -> torch.Tensor:
        """Let a model read a batch of trees.

        Args:
            call: the model's forward, which returns its logits.
            unread: the same where no logits are wanted.

        Raises:
            FallbackError: the model fails on it; it may have no room for a row as wide as a tree,
                though every piece of it fits.
        """
        with _fall_back_on_error():
            return self._run(call, unread, batch, device)

    def _run(
        self,
        call: Callable[..., torch.Tensor],
        unread: Callable[..., object],
        batch: TreeBatch,
        device: torch.device,
    ) -> torch.Tensor:
        masks = batch.masks
        on_device = (
            {kind: move_tensor(mask, device) for kind, mask in masks.items()}
            if isinstance(masks, dict)
            else move_tensor(masks, device)
        )
        arguments = {
            "input_ids": move_tensor(batch.input_ids, device),
            "position_ids": move_tensor(batch.position_ids, device),
            "attention_mask": on_device,
        }
        if not batch.trunk:
            return call(**arguments, use_cache=False)
        with self._trunk.read(unread, batch.trunk, device) as cache:
            return call(**arguments, cache=cache)

    def _check(self, model: BatchScorer, passes: Sequence[TreePass], on_trunk: bool) -> None:
        """Hold the largest passes against plain batches, where none like them was before."""
        if not passes:
            return
        before = self._checked.get(on_trunk, (0, 0))
        sizes = [(max(t.width for t in trees), max(t.length for t in trees)) for trees in passes]
        widest, longest = (max(range(len(sizes)), key=lambda i: sizes[i][axis]) for axis in (0, 1))
        largest = sizes[widest][0], sizes[longest][1]
        if not any(self._beyond(size, known) for size, known in zip(largest, before, strict=True)):
            return
        for chosen in {widest, longest}:
            batch = build_tree_batch(passes[chosen], self.reach)
            found = compare_with_plain_batches(model, batch, _sample_pieces(batch))
            if found:
                raise _sharing_error(f"shared prefixes cannot be read once: {found}")
        self._checked[on_trunk] = max(largest[0], before[0]), max(largest[1], before[1])

    def _beyond(self, size: int, checked: int) -> bool:
        # beyond a window it is another case, however little is the step
        crossed = any(checked <= border < size for border in self.reach.borders)
        return crossed or size > checked * _RECHECK_GROWTH


@contextmanager
def _fall_back_on_error() -> Iterator[None]:
    """Turn what a model raises over a tree into a fallback to plain batches."""
    try:
        yield
    except Exception as error:
        if isinstance(error, EvalguardError) or is_out_of_memory(error):
            raise
        raise _sharing_error(f"a tree of prefixes cannot be read: {format_error(error)}") from error


def _sharing_error(reason: str) -> FallbackError:
    return FallbackError(reason, giving_up="share_prefixes", hint="run: {share_prefixes: false}")


def _sample_pieces(batch: PackedBatch) -> list[InputTokens]:
    """The longest piece of a batch, and others from its first to its last one."""
    pieces = [read.piece for read in batch.reads]
    spread = np.linspace(0, len(pieces) - 1, min(len(pieces), _PIECES_CHECKED - 1)).astype(int)
    longest = max(pieces, key=lambda piece: len(piece.ids))
    return list(dict.fromkeys([longest, *(pieces[index] for index in spread)]))
