"""PrefixSharing: what several continuations have before them is read once, and that is checked."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch

from evalguard.errors import EvalguardError, EvaluationError, FallbackError
from evalguard.models.hf.attention_reach import (
    AttentionReach,
    TreeBatch,
    TrunkCache,
    build_tree_batch,
    read_attention_reach,
)
from evalguard.models.hf.last_layer_probe import is_out_of_memory, rounding_unit
from evalguard.models.hf.moved_batch import PackedBatch, move_tensor
from evalguard.models.hf.prefix_tree import PrefixTree, SharingPlan, build_prefix_tree
from evalguard.models.hf.scored_tokens import InputTokens, ScoredTokens, scales_with_length
from evalguard.models.load_failures import explain_failures, format_error

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


# Whether pieces that are scored in trees get the scores that they get in plain batches.


ScoresByPiece = Mapping[InputTokens, ScoredTokens]

# Of a log-likelihood in float32, and per nat of it: ten times what rounding was seen to do.
_ABSOLUTE, _RELATIVE = 1e-4, 1e-6
# In a narrower dtype rounding is read off the model itself: what plain batches of another
# composition do to the same scores. Another kernel may do more than that, yet not come out farther
# from float32: stories260K in bfloat16 and float16 showed up to 38 rounding units per root of the
# number of tokens, on 1,000 continuations.
_TIMES_BATCHES, _UNITS = 4.0, 64.0


class BatchScorer(Protocol):
    """A model that scores batches, as ``PieceScoring`` does."""

    model: Any

    def plain_batches(self, pieces: Iterable[InputTokens]) -> Iterable[PackedBatch]: ...

    def scored_batch(self, batch: PackedBatch) -> Iterable[tuple[ScoredTokens, torch.Tensor]]: ...


def compare_with_plain_batches(
    model: BatchScorer, packed: PackedBatch, pieces: Sequence[InputTokens]
) -> str:
    """Score pieces of a batch of trees in plain batches, too, and hold the scores together.

    Args:
        packed: the batch of trees; ``pieces``: those of its pieces that are held together.

    Returns:
        "" where they agree within the rounding of the model's dtype, else what differs.
    """
    plain = score_batches(model, model.plain_batches(pieces))
    found = score_batches(model, [packed])
    unit = rounding_unit(model.model)
    if unit is None:
        worst = np.max([_excess_difference(plain[piece], found[piece]) for piece in pieces])
        if not worst <= 0:
            return (
                f"scores differ from those of plain batches by "
                f"{_largest_difference(plain, found):.2g} nats"
            )
        greedy = [piece for piece in pieces if plain[piece].is_greedy != found[piece].is_greedy]
        return "greedy answers differ from those of plain batches" if greedy else ""
    alone = score_batches(model, (b for piece in pieces for b in model.plain_batches([piece])))
    noise = _largest_difference(plain, alone)
    limit = max(_TIMES_BATCHES * noise, _UNITS * unit * math.sqrt(max(p.n_scored for p in pieces)))
    difference = _largest_difference(plain, found)
    if difference <= limit:
        return ""
    return (
        f"scores differ from those of plain batches by {difference:.2g} nats, and plain batches of "
        f"other composition by {noise:.2g}"
    )


def score_batches(
    model: BatchScorer, batches: Iterable[PackedBatch]
) -> dict[InputTokens, ScoredTokens]:
    """What a model says of every piece of some batches."""
    return {scored.fed: scored for batch in batches for scored, _ in model.scored_batch(batch)}


def _excess_difference(one: ScoredTokens, other: ScoredTokens) -> float:
    """By how much two answers differ more than float32 rounding does."""
    size = abs(float(one.logprobs.sum()))
    return _difference(one, other) - _ABSOLUTE - (_RELATIVE * size if math.isfinite(size) else 0.0)


def _largest_difference(some: ScoresByPiece, others: ScoresByPiece) -> float:
    return float(np.max([_difference(some[piece], others[piece]) for piece in some]))


def _difference(one: ScoredTokens, other: ScoredTokens) -> float:
    # what is -inf (a masked token) or NaN on both sides agrees
    same = (one.logprobs == other.logprobs) | (np.isnan(one.logprobs) & np.isnan(other.logprobs))
    with np.errstate(invalid="ignore"):
        apart = one.logprobs - other.logprobs
    return abs(float(np.where(same, 0.0, apart).sum()))


# Whether a loaded model can share prefixes: read off it, and tried on a few tokens.


# Of the trees that are made up: small, for huge models read them, too.
_CONTEXTS, _CONTINUATIONS, _TRUNK = (14, 9), (1, 3, 4), 5
_LONGEST_PROBED_WINDOW = 256  # a window beyond that is checked where a document reaches it
_PROBE_TEXT = (
    "The keeper of the lighthouse counted the bells again, wrote the hour into his book and went "
    "down to the harbour, where nobody had seen the boat since the fog came in."
)


def decide_sharing(lm: Any) -> None:
    """Let a ``PieceScoring`` model share prefixes if it can; ``lm.unshared`` says why it cannot.

    A few tokens are read as trees and in plain batches.
    """
    lm.unshared = _sharing_obstacle(lm)
    if lm.unshared:
        lm.sharing = None
    lm.gave_up = None  # what made-up tokens show is not a reason to give up anything but sharing


def _sharing_obstacle(lm: Any) -> str:
    if scales_with_length(lm.config, lm.max_length):
        return "rotary frequencies follow the longest sequence that was read"
    reach = read_attention_reach(lm.model)
    if isinstance(reach, str):
        return reach
    lm.sharing = PrefixSharing(reach)
    try:
        with explain_failures("reading a few tokens as a tree", ()):
            found = [_probe_trees(lm, trees, reach) for trees in _build_probe_trees(lm, reach)]
    except EvaluationError as error:
        return str(error)
    return next(filter(None, found), "")


def _probe_trees(lm: Any, trees: list[PrefixTree], reach: AttentionReach) -> str:
    pieces = [piece for tree in trees for piece in tree.pieces]
    return compare_with_plain_batches(lm, build_tree_batch(trees, reach), pieces)


def _build_probe_trees(lm: Any, reach: AttentionReach) -> Iterator[list[PrefixTree]]:
    """Trees of two widths; the same on a trunk; one beyond each window that is not too far."""
    ids = np.array(lm.tok_encode(_PROBE_TEXT, add_special_tokens=False) or [lm.prefix_token_id])
    random = np.random.default_rng(0)
    room = lm.max_length - max(_CONTINUATIONS)

    def pieces(length: int, start: Sequence[int] = ()) -> list[InputTokens]:
        context = [*start, *random.choice(ids, size=length).tolist()]
        context = context[: max(1, room)]
        ends = [random.choice(ids, size=size).tolist() for size in _CONTINUATIONS]
        fitting = [end for end in ends if len(end) <= lm.max_length]
        return [InputTokens(ids=(*context, *end), n_scored=len(end)) for end in fitting]

    yield [build_prefix_tree(pieces(length)) for length in _CONTEXTS]
    trunk = random.choice(ids, size=max(0, min(_TRUNK, room - 1))).tolist()
    together = [piece for length in _CONTEXTS for piece in pieces(length, trunk)]
    yield [build_prefix_tree(together, after=len(trunk))]
    for size in reach.borders:
        if _CONTEXTS[0] < size <= _LONGEST_PROBED_WINDOW:
            yield [build_prefix_tree(pieces(size + 4))]
