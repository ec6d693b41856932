"""Lock-step: two models answer the same requests batch by batch, and nothing big is kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from evalguard.divergence import Divergence
from evalguard.models.mismatch import other_tokens, other_widths
from evalguard.models.no_room import with_room
from evalguard.models.row_source import RowSource
from evalguard.models.scored_tokens import FedTokens, ScoredTokens
from evalguard.models.seeding import seeded
from evalguard.positions import cut, joined
from evalguard.scorer import Compared, Request, Response

if TYPE_CHECKING:
    from torch import Tensor as Rows

Pieces = list[list[FedTokens]]
Pair = tuple[FedTokens, FedTokens]
Answers = dict[FedTokens, ScoredTokens]
Arriving = Iterator[tuple[ScoredTokens, "Rows"]]

# Numbers of one model (512 MiB) that may wait for the other's where batches are cut differently.
_MOST_WAITING = 2**27
# Numbers of one model (4 MiB) that are compared at once.
_TOGETHER = 2**20


def score_in_lockstep(
    base: RowSource,
    candidate: RowSource,
    base_requests: Sequence[Request],
    candidate_requests: Sequence[Request],
    *,
    seed: int,
) -> tuple[list[Response], list[Response], Compared]:
    """Score one block with both models; every forward pass is done once.

    Each model keeps the batches that it has alone, so that its scores are the same to the last bit.
    Held at a time: the logits of one batch of each model, and the rows of one piece or 4 MiB; where
    batches are cut differently, rows wait for their partner, and where too many would have to, the
    block is not compared. Where memory runs out on a batch of one model, both cut smaller ones.

    Args:
        base_requests, candidate_requests: the same requests; their prompts may differ.
        seed: of models that draw random numbers.

    Returns:
        The base's answers, the candidate's, and how their distributions differ.

    Raises:
        EvaluationError: a model fails.
    """
    return with_room(
        [base, candidate], lambda: _scored(base, candidate, base_requests, candidate_requests, seed)
    )


def _scored(
    base: RowSource,
    candidate: RowSource,
    base_requests: Sequence[Request],
    candidate_requests: Sequence[Request],
    seed: int,
) -> tuple[list[Response], list[Response], Compared]:
    base_pieces, candidate_pieces = base.pieces(base_requests), candidate.pieces(candidate_requests)
    reason = _unmatched(base_requests, base_pieces, candidate_pieces)
    if reason:
        return (
            base.score(base_requests),
            candidate.score(candidate_requests),
            Compared(reason=reason),
        )
    pairs = dict.fromkeys(
        pair
        for ours, theirs in zip(base_pieces, candidate_pieces, strict=True)
        for pair in zip(ours, theirs, strict=True)
    )
    meeting = _Meeting(list(pairs))
    with seeded(seed):
        meeting.run(
            base.rows(base_requests, (ours for ours, _ in pairs)),
            candidate.rows(candidate_requests, (theirs for _, theirs in pairs)),
        )
    responses = base.answer(base_requests, base_pieces, meeting.answers[0])
    answers = candidate.answer(candidate_requests, candidate_pieces, meeting.answers[1])
    if meeting.reason:
        return responses, answers, Compared(reason=meeting.reason)
    divergences = tuple(
        joined([meeting.divergences[pair] for pair in zip(ours, theirs, strict=True)])
        if ours
        else None
        for ours, theirs in zip(base_pieces, candidate_pieces, strict=True)
    )
    return responses, answers, Compared(divergences=divergences)


def _unmatched(requests: Sequence[Request], base: Pieces, candidate: Pieces) -> str:
    """Why two models' scored positions are not the same ones; "" if they are."""
    for request, ours, theirs in zip(requests, base, candidate, strict=True):
        if _same_tokens(ours, theirs):
            continue
        return other_tokens(
            request, *(sum(piece.n_scored for piece in side) for side in (ours, theirs))
        )
    return ""


def _same_tokens(ours: Sequence[FedTokens], theirs: Sequence[FedTokens]) -> bool:
    first, second = ([piece.ids[-piece.n_scored :] for piece in side] for side in (ours, theirs))
    return first == second


class _Meeting:
    """Rows of two models, brought together piece by piece as they come."""

    def __init__(self, pairs: Sequence[Pair]) -> None:
        self.reason = ""
        self.answers: tuple[Answers, Answers] = ({}, {})
        self.divergences: dict[Pair, Divergence] = {}
        self._rows: tuple[dict[FedTokens, Rows], dict[FedTokens, Rows]] = ({}, {})
        self._waiting = [0, 0]  # numbers in the rows of each side
        self._ready: list[tuple[Pair, Rows, Rows]] = []
        self._together = 0  # numbers in the rows of one side that are ready
        self._open: tuple[dict[FedTokens, list[Pair]], ...] = ({}, {})
        for pair in pairs:
            for side, piece in enumerate(pair):
                self._open[side].setdefault(piece, []).append(pair)

    def run(self, base: Arriving, candidate: Arriving) -> None:
        """Let both models score all their pieces."""
        going: list[tuple[int, Arriving]] = [(0, base), (1, candidate)]
        while going:
            going = [(side, rows) for side, rows in going if self._next(side, rows)]
        if not self.reason:
            self._compare_ready()

    def _next(self, side: int, arriving: Arriving) -> bool:
        """Take a model's next piece, and let go of it before another one is made."""
        arrived = next(arriving, None)
        if arrived is not None:
            self._take(side, *arrived)
        return arrived is not None

    def _take(self, side: int, scored: ScoredTokens, rows: Rows) -> None:
        self.answers[side][scored.fed] = scored
        if self._waiting[side] > _MOST_WAITING:
            self._give_up("the two models' batches differ too much to be held side by side")
        if self.reason:
            return
        self._rows[side][scored.fed] = rows
        self._waiting[side] += rows.numel()
        for pair in list(self._open[side][scored.fed]):
            if all(piece in rows for piece, rows in zip(pair, self._rows, strict=True)):
                self._compare(pair)

    def _compare(self, pair: Pair) -> None:
        base, candidate = (rows[piece] for piece, rows in zip(pair, self._rows, strict=True))
        if base.shape != candidate.shape:
            self._give_up(other_widths(base.shape[1], candidate.shape[1]))
            return
        self._ready.append((pair, base, candidate))
        self._together += base.numel()
        for side, piece in enumerate(pair):
            self._open[side][piece].remove(pair)
            if not self._open[side][piece]:
                self._waiting[side] -= self._rows[side].pop(piece).numel()
        if self._together >= _TOGETHER:
            self._compare_ready()

    def _compare_ready(self) -> None:
        """Compare what has met: many short pieces together take little longer than one of them."""
        import torch

        from evalguard.models.device_divergence import divergence_of

        if not self._ready:
            return
        pairs, *sides = zip(*self._ready, strict=True)
        self._ready.clear()
        self._together = 0
        base, candidate = (side[0] if len(side) == 1 else torch.cat(side) for side in sides)
        ids = np.concatenate([pair[0].scored_ids for pair in pairs])
        found = divergence_of(base, candidate, ids)
        lengths = [pair[0].n_scored for pair in pairs]
        self.divergences.update(zip(pairs, cut(found, lengths), strict=True))

    def _give_up(self, reason: str) -> None:
        self.reason = reason
        self._ready.clear()
        self._waiting = [0, 0]
        for rows in self._rows:
            rows.clear()
