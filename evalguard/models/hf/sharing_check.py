"""Whether pieces that are scored in trees get the scores that they get in plain batches."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from evalguard.models.hf.packed_batch import PackedBatch
from evalguard.models.hf.rounding_limit import rounding_unit
from evalguard.models.hf.scored_tokens import InputTokens, ScoredTokens

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
