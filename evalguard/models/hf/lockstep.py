"""Lock-step: two models answer the same requests batch by batch, and nothing big is kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from evalguard.core.divergence import Divergence, Reference, cut, join_positions
from evalguard.core.scorer import ComparedAnswer, Request, Response
from evalguard.models.failures import BatchTooLargeError, retry_with_smaller_batches
from evalguard.models.hf.side_by_side import computed_beside, random_states
from evalguard.models.position_reduction import (
    CompareReferences,
    KeepReference,
    PositionReduction,
    Reduced,
    Wanted,
    read_rows,
)
from evalguard.models.process_state import seed_generators
from evalguard.models.scored_tokens import InputTokens, ScoredTokens

if TYPE_CHECKING:
    import torch
    from torch import Tensor as Rows


class RowSource(Protocol):
    """What lock-step and references need of a model; ``LMScorer`` says what each method does."""

    def score(self, requests: Sequence[Request]) -> list[Response]: ...

    def pieces(self, requests: Sequence[Request]) -> list[list[InputTokens]]: ...

    def rows(
        self, requests: Sequence[Request], pieces: Iterable[InputTokens]
    ) -> Iterator[tuple[ScoredTokens, torch.Tensor | NDArray[np.float32]]]: ...

    def make_room(self, found: BatchTooLargeError) -> bool: ...

    def answer(
        self,
        requests: Sequence[Request],
        pieces: Sequence[Sequence[InputTokens]],
        known: Mapping[InputTokens, ScoredTokens],
    ) -> list[Response]: ...


RequestPieces = list[list[InputTokens]]
PiecePair = tuple[InputTokens, InputTokens]
AnswersByPiece = dict[InputTokens, ScoredTokens]
ScoredRowStream = Iterator[tuple[ScoredTokens, "Rows"]]
# Numbers of one model (512 MiB) that may wait for the other's where batches are cut differently.
MOST_WAITING = 2**27
# Numbers of one model (4 MiB) that are compared at once.
TOGETHER = 2**20


def score_in_lockstep(
    base: RowSource,
    candidate: RowSource,
    base_requests: Sequence[Request],
    candidate_requests: Sequence[Request],
    *,
    seed: int,
    beside: int = 0,
) -> tuple[list[Response], list[Response], ComparedAnswer]:
    """Score one block with both models; every forward pass is done once.

    Each model keeps the batches that it has alone, so that its scores are the same to the last
    bit. Held at a time: the logits of one batch of each model, and the rows of one piece or 4
    MiB; where batches are cut differently, rows wait for their partner, and where too many would
    have to, the block is not compared. Side by side, a batch more of the candidate may be held.
    Where memory runs out on a batch of one model, both cut smaller ones.

    Args:
        base_requests, candidate_requests: the same requests; their prompts may differ.
        seed: of models that draw random numbers.
        beside: CPU threads of each model, which compute at the same time; 0: by turns. Where one
            drew a random number, the block is scored again by turns.

    Returns:
        The base's answers, the candidate's, and how their distributions differ.

    Raises:
        EvaluationError: a model fails.
    """
    return retry_with_smaller_batches(
        [base, candidate],
        lambda: _score_pairwise(base, candidate, base_requests, candidate_requests, seed, beside),
    )


def _score_pairwise(
    base: RowSource,
    candidate: RowSource,
    base_requests: Sequence[Request],
    candidate_requests: Sequence[Request],
    seed: int,
    beside: int,
) -> tuple[list[Response], list[Response], ComparedAnswer]:
    base_pieces, candidate_pieces = base.pieces(base_requests), candidate.pieces(candidate_requests)
    reason = _token_mismatch(base_requests, base_pieces, candidate_pieces)
    if reason:
        return (
            base.score(base_requests),
            candidate.score(candidate_requests),
            ComparedAnswer(reason=reason),
        )
    pairs = dict.fromkeys(
        pair
        for ours, theirs in zip(base_pieces, candidate_pieces, strict=True)
        for pair in zip(ours, theirs, strict=True)
    )

    def meet(beside: int) -> _RowPairing | None:
        """Bring the rows of both together; None: one drew random numbers beside the other."""
        meeting = _RowPairing(list(pairs))
        ours = cast(ScoredRowStream, base.rows(base_requests, (own for own, _ in pairs)))
        theirs = cast(
            ScoredRowStream, candidate.rows(candidate_requests, (own for _, own in pairs))
        )
        with seed_generators(seed):
            if not beside:
                meeting.run(ours, theirs)
                return meeting
            before = random_states()
            with computed_beside(theirs, threads=beside) as computed:
                meeting.run(ours, computed)
            return meeting if random_states() == before else None

    meeting = meet(beside) or meet(0)
    assert meeting is not None
    responses = base.answer(base_requests, base_pieces, meeting.answers[0])
    answers = candidate.answer(candidate_requests, candidate_pieces, meeting.answers[1])
    if meeting.reason:
        return responses, answers, ComparedAnswer(reason=meeting.reason)
    divergences = tuple(
        join_positions([meeting.divergences[pair] for pair in zip(ours, theirs, strict=True)])
        if ours
        else None
        for ours, theirs in zip(base_pieces, candidate_pieces, strict=True)
    )
    return responses, answers, ComparedAnswer(divergences=divergences)


def _token_mismatch(
    requests: Sequence[Request], base: RequestPieces, candidate: RequestPieces
) -> str:
    """Why two models' scored positions are not the same ones; "" if they are."""
    for request, ours, theirs in zip(requests, base, candidate, strict=True):
        if _same_tokens(ours, theirs):
            continue
        return token_mismatch_text(
            request, *(sum(piece.n_scored for piece in side) for side in (ours, theirs))
        )
    return ""


def _same_tokens(ours: Sequence[InputTokens], theirs: Sequence[InputTokens]) -> bool:
    first, second = ([piece.ids[-piece.n_scored :] for piece in side] for side in (ours, theirs))
    return first == second


class _RowPairing:
    """Rows of two models, brought together piece by piece as they come."""

    def __init__(self, pairs: Sequence[PiecePair]) -> None:
        self.reason = ""
        self.answers: tuple[AnswersByPiece, AnswersByPiece] = ({}, {})
        self.divergences: dict[PiecePair, Divergence] = {}
        self._rows: tuple[dict[InputTokens, Rows], dict[InputTokens, Rows]] = ({}, {})
        self._waiting = [0, 0]  # numbers in the rows of each side
        self._ready: list[tuple[PiecePair, Rows, Rows]] = []
        self._together = 0  # numbers in the rows of one side that are ready
        self._open: tuple[dict[InputTokens, list[PiecePair]], ...] = ({}, {})
        for pair in pairs:
            for side, piece in enumerate(pair):
                self._open[side].setdefault(piece, []).append(pair)

    def run(self, base: ScoredRowStream, candidate: ScoredRowStream) -> None:
        """Let both models score all their pieces."""
        going: list[tuple[int, ScoredRowStream]] = [(0, base), (1, candidate)]
        while going:
            going = [(side, rows) for side, rows in going if self._next(side, rows)]
        if not self.reason:
            self._compare_ready()

    def _next(self, side: int, arriving: ScoredRowStream) -> bool:
        """Take a model's next piece, and let go of it before another one is made."""
        arrived = next(arriving, None)
        if arrived is not None:
            self._take(side, *arrived)
        return arrived is not None

    def _take(self, side: int, scored: ScoredTokens, rows: Rows) -> None:
        self.answers[side][scored.fed] = scored
        if self._waiting[side] > MOST_WAITING:
            self._give_up("the two models' batches differ too much to be held side by side")
        if self.reason:
            return
        self._rows[side][scored.fed] = rows
        self._waiting[side] += rows.numel()
        for pair in list(self._open[side][scored.fed]):
            if all(piece in rows for piece, rows in zip(pair, self._rows, strict=True)):
                self._compare(pair)

    def _compare(self, pair: PiecePair) -> None:
        base, candidate = (rows[piece] for piece, rows in zip(pair, self._rows, strict=True))
        if base.shape != candidate.shape:
            self._give_up(vocabulary_mismatch_text(base.shape[1], candidate.shape[1]))
            return
        self._ready.append((pair, base, candidate))
        self._together += base.numel()
        for side, piece in enumerate(pair):
            self._open[side][piece].remove(pair)
            if not self._open[side][piece]:
                self._waiting[side] -= self._rows[side].pop(piece).numel()
        if self._together >= TOGETHER:
            self._compare_ready()

    def _compare_ready(self) -> None:
        """Compare what has met: many short pieces together take little longer than one of them."""
        import torch

        from evalguard.models.device_rows import compare_rows

        if not self._ready:
            return
        pairs, *sides = zip(*self._ready, strict=True)
        self._ready.clear()
        self._together = 0
        base, candidate = (side[0] if len(side) == 1 else torch.cat(side) for side in sides)
        ids = np.concatenate([pair[0].scored_ids for pair in pairs])
        divergences = compare_rows(base, candidate, ids)
        lengths = [pair[0].n_scored for pair in pairs]
        self.divergences.update(zip(pairs, cut(divergences, lengths), strict=True))

    def _give_up(self, reason: str) -> None:
        self.reason = reason
        self._ready.clear()
        self._waiting = [0, 0]
        for rows in self._rows:
            rows.clear()


def token_mismatch_text(request: Request, base: int, candidate: int) -> str:
    """Two models that score other tokens of the same request; so many of them each."""
    detail = "in other windows" if base == candidate else f"({base} and {candidate} of them)"
    return (
        f"base and candidate score other tokens {detail}, first in document {request.doc_id}, so "
        "that no position of one belongs to a position of the other"
    )


def vocabulary_mismatch_text(base: int, candidate: int) -> str:
    """Two models that give so many probabilities at a position."""
    return f"the base gives {base:,} probabilities at every position, the candidate {candidate:,}"


def score_with_references(
    model: RowSource, requests: Sequence[Request], *, top_k: int, samples: int, seed: int
) -> tuple[list[Response], list[Reference | None]]:
    """Score one block and keep what a candidate's distributions can be compared with.

    Returns:
        Answers and references, one each per request; None for one without any scored position.

    Raises:
        EvaluationError: the model fails.
    """
    return retry_with_smaller_batches(
        [model], lambda: _score_with_references(model, requests, top_k, samples, seed)
    )


def _score_with_references(
    model: RowSource, requests: Sequence[Request], top_k: int, samples: int, seed: int
) -> tuple[list[Response], list[Reference | None]]:
    pieces = model.pieces(requests)
    wanted: dict[InputTokens, Wanted] = {
        piece: KeepReference.for_ids(piece.ids, top_k=top_k, samples=samples, seed=seed)
        for of in pieces
        for piece in of
    }
    answers: dict[InputTokens, ScoredTokens] = {}
    references: dict[InputTokens, Reference] = {}
    for scored, reduced in reduce_rows(model, requests, wanted):
        answers[scored.fed] = scored
        assert reduced.kept is not None
        references[scored.fed] = reduced.kept
    responses = model.answer(requests, pieces, answers)
    return responses, [
        join_positions([references[piece] for piece in of]) if of else None for of in pieces
    ]


def score_against_references(
    model: RowSource, requests: Sequence[Request], references: Sequence[Reference | None]
) -> tuple[list[Response], ComparedAnswer]:
    """Score one block of the candidate and compare it with what was kept of the base.

    Args:
        references: one per request; None where the base scored no position.

    Raises:
        EvaluationError: the model fails.
    """
    return retry_with_smaller_batches(
        [model], lambda: _score_against_references(model, requests, references)
    )


def _score_against_references(
    model: RowSource, requests: Sequence[Request], references: Sequence[Reference | None]
) -> tuple[list[Response], ComparedAnswer]:
    pieces = model.pieces(requests)
    reason = _reference_mismatch(requests, pieces, references)
    if reason:
        return model.score(requests), ComparedAnswer(reason=reason)
    parts = [
        [] if reference is None else cut(reference, [piece.n_scored for piece in of])
        for of, reference in zip(pieces, references, strict=True)
    ]
    # Almost always one: two contexts of the base may have been cut to one of the candidate.
    wanted: dict[InputTokens, dict[bytes, Reference]] = {}
    for of, own in zip(pieces, parts, strict=True):
        for piece, part in zip(of, own, strict=True):
            wanted.setdefault(piece, {})[_reference_key(part)] = part
    answers: dict[InputTokens, ScoredTokens] = {}
    divergence_of: dict[tuple[InputTokens, bytes], Divergence] = {}
    asked: dict[InputTokens, Wanted] = {
        piece: CompareReferences(references=tuple(of_piece.values()))
        for piece, of_piece in wanted.items()
    }
    for scored, reduced in reduce_rows(model, requests, asked):
        answers[scored.fed] = scored
        own_parts = wanted[scored.fed]
        for (key, part), divergence in zip(own_parts.items(), reduced.divergences, strict=True):
            if divergence is None:
                reason = vocabulary_mismatch_text(part.vocabulary_size, reduced.vocabulary_size)
                continue
            divergence_of[scored.fed, key] = divergence
    responses = model.answer(requests, pieces, answers)
    if reason:
        return responses, ComparedAnswer(reason=reason)
    divergences = tuple(
        join_positions(
            [
                divergence_of[piece, _reference_key(part)]
                for piece, part in zip(of, own, strict=True)
            ]
        )
        if of
        else None
        for of, own in zip(pieces, parts, strict=True)
    )
    return responses, ComparedAnswer(divergences=divergences)


def _reference_mismatch(
    requests: Sequence[Request],
    pieces: Sequence[Sequence[InputTokens]],
    references: Sequence[Reference | None],
) -> str:
    for request, of, reference in zip(requests, pieces, references, strict=True):
        scored = np.concatenate([np.empty(0, dtype=np.int64), *(piece.scored_ids for piece in of)])
        ours = scored[:0] if reference is None else reference.token_ids
        if not np.array_equal(ours, scored):
            return token_mismatch_text(request, ours.size, scored.size)
    return ""


def reduce_rows(
    model: RowSource, requests: Sequence[Request], wanted: Mapping[InputTokens, Wanted]
) -> Iterator[tuple[ScoredTokens, Reduced]]:
    """Score pieces; of each, its answer and what its distributions are reduced to.

    A model that reduces them where they are computed has ``reduce_pieces``.
    """
    reduce = getattr(model, "reduce_pieces", None)
    if reduce is not None:
        yield from reduce(wanted)
        return
    for scored, rows in model.rows(requests, wanted):
        reduction = PositionReduction(scored.fed.scored_ids, wanted[scored.fed])
        reduction.add(read_rows(rows))
        yield scored, reduction.finish()


def _reference_key(part: Reference) -> bytes:
    return part.token_logprobs.tobytes()
