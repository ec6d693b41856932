"""One model scored on its own: the base leaves a reference, the candidate is compared with it."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from evalguard.core.divergence import Divergence
from evalguard.core.reference import Reference, divergence_from, reference
from evalguard.core.scored_positions import cut, join_positions
from evalguard.core.scorer import ComparedAnswer, Request, Response
from evalguard.core.token_windows import TokenWindow
from evalguard.models.hf.row_source import RowSource
from evalguard.models.hf.scored_tokens import InputTokens, ScoredTokens, hash_window
from evalguard.models.hf.smaller_batches import retry_with_smaller_batches
from evalguard.models.logits_file import compare_with_file

if TYPE_CHECKING:
    from torch import Tensor as Rows
from evalguard.models.hf.lockstep import token_mismatch_text, vocabulary_mismatch_text


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
    answers: dict[InputTokens, ScoredTokens] = {}
    kept: dict[InputTokens, Reference] = {}
    for scored, rows in model.rows(requests, (piece for of in pieces for piece in of)):
        answers[scored.fed] = scored
        # The draws depend on the piece alone, not on what was scored before it.
        own = zlib.crc32(np.array(scored.fed.ids, dtype="<i8").tobytes())
        kept[scored.fed] = reference(
            _as_array(rows),
            scored.fed.scored_ids,
            top_k=top_k,
            samples=samples,
            seed=(seed, own),
        )
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
    for scored, rows in model.rows(requests, wanted):
        answers[scored.fed] = scored
        for key, part in wanted[scored.fed].items():
            if part.file:
                found[scored.fed, key] = compare_with_file(part, _as_array(rows))
                answers[scored.fed] = _cut_as_file(scored, part)
            elif rows.shape[1] == part.vocabulary_size:
                found[scored.fed, key] = divergence_from(part, _as_array(rows))
            else:
                reason = vocabulary_mismatch_text(part.vocabulary_size, rows.shape[1])
    responses = [
        _as_asked(request, response)
        for request, response in zip(requests, model.answer(requests, pieces, answers), strict=True)
    ]
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


def _as_asked(request: Request, response: Response) -> Response:
    """Of token ids that were given, the hash is theirs: the model's own rule put BOS before."""
    window = TokenWindow.of(request.arguments)
    return response if window is None else replace(response, token_hash=hash_window(window))


def _cut_as_file(scored: ScoredTokens, part: Reference) -> ScoredTokens:
    """Where the file says only that a token is no more likely than this, the candidate's counts as
    that too: else it would lose by what the file leaves out."""
    assert part.cut_off is not None
    least = np.where(part.cut_off, part.token_logprobs, -np.inf)
    return replace(scored, logprobs=np.maximum(scored.logprobs, least))


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


def _as_array(rows: Rows | NDArray[np.float32]) -> NDArray[np.float32]:
    return rows if isinstance(rows, np.ndarray) else rows.cpu().numpy()


def _reference_key(part: Reference) -> bytes:
    return part.token_logprobs.tobytes()
