"""PrefixSharing: what several continuations have before them is read once, and that is checked."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from math import ceil
from typing import Any, Protocol

import numpy as np
import torch

from evalguard.errors import EvalguardError, EvaluationError, FallbackError
from evalguard.models.failures import explain_failures, format_error
from evalguard.models.hf.attention_reach import AttentionReach, read_attention_reach
from evalguard.models.hf.batches import PackedBatch, move_tensor
from evalguard.models.hf.longrope import scales_with_length
from evalguard.models.hf.out_of_memory import is_out_of_memory
from evalguard.models.hf.padding import rounding_unit
from evalguard.models.hf.prefix_tree import (
    PrefixTree,
    RowPieces,
    TreeBatch,
    TrunkGroup,
    build_prefix_tree,
    build_tree_batch,
    divide_into_rows,
    group_by_trunk,
    row_cost,
)
from evalguard.models.scored_tokens import InputTokens, ScoredTokens

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
    shared = score_batches(model, [packed])
    unit = rounding_unit(model.model)
    if unit is None:
        worst = np.max([_excess_difference(plain[piece], shared[piece]) for piece in pieces])
        if not worst <= 0:
            return (
                f"scores differ from those of plain batches by "
                f"{_largest_difference(plain, shared):.2g} nats"
            )
        greedy = [piece for piece in pieces if plain[piece].is_greedy != shared[piece].is_greedy]
        return "greedy answers differ from those of plain batches" if greedy else ""
    alone = score_batches(model, (b for piece in pieces for b in model.plain_batches([piece])))
    noise = _largest_difference(plain, alone)
    limit = max(_TIMES_BATCHES * noise, _UNITS * unit * math.sqrt(max(p.n_scored for p in pieces)))
    difference = _largest_difference(plain, shared)
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


# A trunk is read first only if that saves as much: masks and a forward pass cost something, too.
_MOST_COST_WITH_TRUNK = 0.8
BatchCut = Callable[[Sequence[int]], Sequence[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingPlan:
    """Forward passes over trees, and the pieces that share too little with any other.

    Attributes:
        passes: the trees of each pass; all of one pass stand on one trunk, or on none.
        alone: pieces for plain batches.
    """

    passes: tuple[tuple[PrefixTree, ...], ...]
    alone: tuple[InputTokens, ...]


def plan_sharing(
    pieces: Iterable[InputTokens], *, widest: int, cut: BatchCut, trunks: bool = True
) -> SharingPlan:
    """Plan forward passes over distinct pieces; a function of their token ids alone.

    Args:
        widest: tokens of a row; one with a long piece may be wider.
        cut: from what rows count against the budget of a pass, the largest first, to the numbers
            of rows in each pass.
        trunks: whether what many rows begin with may be read before them.
    """
    rows = divide_into_rows(pieces, widest=widest)
    groves = group_by_trunk(rows) if trunks else [TrunkGroup(trunk=0, rows=tuple(rows))]
    standing: list[tuple[PrefixTree, ...]] = []
    free: list[RowPieces] = []
    for grove in groves:
        if grove.trunk and _trunk_pays_off(grove):
            standing += _passes_on_trunk(grove, cut)
        else:
            free += grove.rows
    trees = [build_prefix_tree(row) for row in free if len(row) > 1]
    alone = tuple(row[0] for row in free if len(row) == 1)
    return SharingPlan(passes=(*standing, *_passes(trees, cut)), alone=alone)


def _passes(trees: Sequence[PrefixTree], cut: BatchCut) -> Iterator[tuple[PrefixTree, ...]]:
    """Trees of about the same width side by side, the widest first."""
    ordered = sorted(trees, key=lambda tree: (-tree.width, tree.pieces[0].ids))
    sizes = cut([ceil(row_cost(tree.width)) for tree in ordered])
    for start, end in _ranges(sizes):
        yield tuple(ordered[start:end])


def _passes_on_trunk(grove: TrunkGroup, cut: BatchCut) -> Iterator[tuple[PrefixTree, ...]]:
    """Rows on one trunk, several to a pass: in one row, so that the trunk is there once."""
    trunk = grove.trunk
    of_width = [(build_prefix_tree(row, after=trunk).width, row) for row in grove.rows]
    of_width.sort(key=lambda row: (-row[0], row[1][0].ids))
    sizes = cut([ceil(row_cost(width, before=trunk)) for width, _ in of_width])
    for start, end in _ranges(sizes):
        together = [piece for _, row in of_width[start:end] for piece in row]
        yield (build_prefix_tree(together, after=trunk),)


def _ranges(sizes: Sequence[int]) -> Iterable[tuple[int, int]]:
    return pairwise(accumulate(sizes, initial=0))


def _trunk_pays_off(grove: TrunkGroup) -> bool:
    """Whether a trunk that is read first saves enough."""
    trunk, widths = grove.trunk, [build_prefix_tree(row).width for row in grove.rows]
    together = row_cost(trunk) + sum(row_cost(width - trunk, before=trunk) for width in widths)
    return together <= _MOST_COST_WITH_TRUNK * sum(row_cost(width) for width in widths)


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
            problem = compare_with_plain_batches(model, batch, _sample_pieces(batch))
            if problem:
                raise _sharing_error(f"shared prefixes cannot be read once: {problem}")
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
            problems = [_probe_trees(lm, trees, reach) for trees in _build_probe_trees(lm, reach)]
    except EvaluationError as error:
        return str(error)
    return next(filter(None, problems), "")


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
