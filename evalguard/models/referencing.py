"""One model scored on its own: the base leaves a reference, the candidate is compared with it."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

from evalguard.divergence import Divergence
from evalguard.models.mismatch import other_tokens, other_widths
from evalguard.models.no_room import with_room
from evalguard.models.row_source import RowSource
from evalguard.models.scored_tokens import FedTokens, ScoredTokens
from evalguard.positions import cut, joined
from evalguard.reference import Reference, divergence_from, reference
from evalguard.scorer import Compared, Request, Response


def referenced(
    model: RowSource, requests: Sequence[Request], *, top_k: int, samples: int, seed: int
) -> tuple[list[Response], list[Reference | None]]:
    """Score one block and keep what a candidate's distributions can be compared with.

    Returns:
        Answers and references, one each per request; None for one without any scored position.

    Raises:
        EvaluationError: the model fails.
    """
    return with_room([model], lambda: _referenced(model, requests, top_k, samples, seed))


def _referenced(
    model: RowSource, requests: Sequence[Request], top_k: int, samples: int, seed: int
) -> tuple[list[Response], list[Reference | None]]:
    pieces = model.pieces(requests)
    answers: dict[FedTokens, ScoredTokens] = {}
    kept: dict[FedTokens, Reference] = {}
    for scored, rows in model.rows(requests, (piece for of in pieces for piece in of)):
        answers[scored.fed] = scored
        # The draws depend on the piece alone, not on what was scored before it.
        own = zlib.crc32(np.array(scored.fed.ids, dtype="<i8").tobytes())
        kept[scored.fed] = reference(
            rows.cpu().numpy(),
            scored.fed.scored_ids,
            top_k=top_k,
            samples=samples,
            seed=(seed, own),
        )
    responses = model.answer(requests, pieces, answers)
    return responses, [joined([kept[piece] for piece in of]) if of else None for of in pieces]


def compared(
    model: RowSource, requests: Sequence[Request], references: Sequence[Reference | None]
) -> tuple[list[Response], Compared]:
    """Score one block of the candidate and compare it with what was kept of the base.

    Args:
        references: one per request; None where the base scored no position.

    Raises:
        EvaluationError: the model fails.
    """
    return with_room([model], lambda: _compared(model, requests, references))


def _compared(
    model: RowSource, requests: Sequence[Request], references: Sequence[Reference | None]
) -> tuple[list[Response], Compared]:
    pieces = model.pieces(requests)
    reason = _unmatched(requests, pieces, references)
    if reason:
        return model.score(requests), Compared(reason=reason)
    parts = [
        [] if kept is None else cut(kept, [piece.n_scored for piece in of])
        for of, kept in zip(pieces, references, strict=True)
    ]
    # Almost always one: two contexts of the base may have been cut to one of the candidate.
    wanted: dict[FedTokens, dict[bytes, Reference]] = {}
    for of, own in zip(pieces, parts, strict=True):
        for piece, part in zip(of, own, strict=True):
            wanted.setdefault(piece, {})[_key(part)] = part
    answers: dict[FedTokens, ScoredTokens] = {}
    found: dict[tuple[FedTokens, bytes], Divergence] = {}
    for scored, rows in model.rows(requests, wanted):
        answers[scored.fed] = scored
        for key, part in wanted[scored.fed].items():
            if rows.shape[1] == part.vocabulary_size:
                found[scored.fed, key] = divergence_from(part, rows.cpu().numpy())
            else:
                reason = other_widths(part.vocabulary_size, rows.shape[1])
    responses = model.answer(requests, pieces, answers)
    if reason:
        return responses, Compared(reason=reason)
    divergences = tuple(
        joined([found[piece, _key(part)] for piece, part in zip(of, own, strict=True)])
        if of
        else None
        for of, own in zip(pieces, parts, strict=True)
    )
    return responses, Compared(divergences=divergences)


def _unmatched(
    requests: Sequence[Request],
    pieces: Sequence[Sequence[FedTokens]],
    references: Sequence[Reference | None],
) -> str:
    for request, of, kept in zip(requests, pieces, references, strict=True):
        scored = np.concatenate([np.empty(0, dtype=np.int64), *(piece.scored_ids for piece in of)])
        ours = scored[:0] if kept is None else kept.token_ids
        if not np.array_equal(ours, scored):
            return other_tokens(request, ours.size, scored.size)
    return ""


def _key(part: Reference) -> bytes:
    return part.token_logprobs.tobytes()
