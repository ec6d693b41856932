"""One model scored on its own: the base leaves a reference, the candidate is compared with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from evalguard.core.divergence import Divergence
from evalguard.core.reference import Reference
from evalguard.core.scored_positions import cut, join_positions
from evalguard.core.scorer import ComparedAnswer, Request, Response
from evalguard.models.hf.lockstep import token_mismatch_text, vocabulary_mismatch_text
from evalguard.models.hf.row_source import RowSource
from evalguard.models.hf.scored_tokens import InputTokens, ScoredTokens
from evalguard.models.hf.smaller_batches import retry_with_smaller_batches
from evalguard.models.position_reduction import (
    CompareReferences,
    KeepReference,
    PositionReduction,
    Reduced,
    Wanted,
    read_rows,
)


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
    kept: dict[InputTokens, Reference] = {}
    for scored, reduced in reduce_rows(model, requests, wanted):
        answers[scored.fed] = scored
        assert reduced.kept is not None
        kept[scored.fed] = reduced.kept
    responses = model.answer(requests, pieces, answers)
    return responses, [
        join_positions([kept[piece] for piece in of]) if of else None for of in pieces
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
        [] if kept is None else cut(kept, [piece.n_scored for piece in of])
        for of, kept in zip(pieces, references, strict=True)
    ]
    # Almost always one: two contexts of the base may have been cut to one of the candidate.
    wanted: dict[InputTokens, dict[bytes, Reference]] = {}
    for of, own in zip(pieces, parts, strict=True):
        for piece, part in zip(of, own, strict=True):
            wanted.setdefault(piece, {})[_reference_key(part)] = part
    answers: dict[InputTokens, ScoredTokens] = {}
    found: dict[tuple[InputTokens, bytes], Divergence] = {}
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
            found[scored.fed, key] = divergence
    responses = model.answer(requests, pieces, answers)
    if reason:
        return responses, ComparedAnswer(reason=reason)
    divergences = tuple(
        join_positions(
            [found[piece, _reference_key(part)] for piece, part in zip(of, own, strict=True)]
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
    for request, of, kept in zip(requests, pieces, references, strict=True):
        scored = np.concatenate([np.empty(0, dtype=np.int64), *(piece.scored_ids for piece in of)])
        ours = scored[:0] if kept is None else kept.token_ids
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
