"""From what an lm-eval model answered, and what it was fed, to Responses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from evalguard.models.fed_recorder import Pair, fed_per_request, fed_per_text
from evalguard.models.generated_length import generated_length
from evalguard.models.scored_tokens import (
    FedTokens,
    ScoredTokens,
    pair_answer,
    text_answer,
    token_hash,
)
from evalguard.scorer import Response

_DEFAULT_GENERATED = 256  # lm-eval's, where neither task nor model says


def responses(
    lm: Any,
    kind: str,
    arguments: Sequence[tuple[Any, ...]],
    answers: Sequence[Any],
    fed: Sequence[Pair],
) -> list[Response]:
    """Pair every answer with the token ids that were fed for it.

    Args:
        lm: the model; a ``GuardedHFLM`` has per-token answers in ``lm.scored``.
        kind: the request kind.
        arguments: lm-eval's arguments of each request.
        answers: what the model returned, in the order asked.
        fed: what was recorded of the model's token-level calls.
    """
    if kind == "generate_until":
        return [
            _generated(lm, asked, answer) for asked, answer in zip(arguments, answers, strict=True)
        ]
    scored: list[list[ScoredTokens]] = getattr(lm, "scored", None) or []
    if len(scored) == len(answers):
        pieces: list[list[FedTokens]] | None = [[p.fed for p in request] for request in scored]
    else:
        scored = []
        pieces = _recorded_pieces(lm, kind, arguments, fed)
    return [
        _likelihood(
            answer,
            pieces[index] if pieces is not None else None,
            scored[index] if scored else None,
        )
        for index, answer in enumerate(answers)
    ]


def scored_responses(kind: str, scored: Sequence[Sequence[ScoredTokens]]) -> list[Response]:
    """Put the scored pieces of each request together, as ``responses`` does."""
    whole = kind == "loglikelihood_rolling"
    return [
        _likelihood(text_answer(of) if whole else pair_answer(*of), [one.fed for one in of], of)
        for of in scored
    ]


def _recorded_pieces(
    lm: Any, kind: str, arguments: Sequence[tuple[Any, ...]], fed: Sequence[Pair]
) -> list[list[FedTokens]] | None:
    if not fed:
        return None
    # an encoder-decoder model cuts context and continuation each for itself
    causal = getattr(lm, "backend", "causal") == "causal"
    max_length = getattr(lm, "max_length", None) if causal else None
    if kind == "loglikelihood":
        matched = fed_per_request(fed, arguments, max_length)
        return None if matched is None else [[piece] for piece in matched]
    encoded = getattr(lm, "rolling_ids", None) or lm.tok_encode
    counts = [len(encoded(text)) for (text,) in arguments]
    return fed_per_text(fed, counts, max_length)


def _likelihood(
    answer: Any, pieces: Sequence[FedTokens] | None, scored: Sequence[ScoredTokens] | None
) -> Response:
    # (log-likelihood, is greedy) for a continuation, the bare log-likelihood for a whole text
    value, greedy = answer if isinstance(answer, (tuple, list)) else (answer, None)
    logprobs = None
    if scored is not None:
        logprobs = np.concatenate([np.empty(0), *(piece.logprobs for piece in scored)])
    return Response(
        loglikelihood=float(value),
        is_greedy=None if greedy is None else bool(greedy),
        token_logprobs=logprobs,
        token_hash="" if pieces is None else token_hash(pieces),
        n_tokens=sum(len(piece.ids) for piece in pieces or ()),
        truncated=any(piece.truncated for piece in pieces or ()),
    )


def _generated(lm: Any, asked: tuple[Any, ...], text: str) -> Response:
    ids = list(lm.tok_encode(asked[0])) if hasattr(lm, "tok_encode") else []
    if not all(isinstance(part, int) for part in ids[:1]):
        ids = []
    room = _room(lm, asked[1])
    truncated = room is not None and len(ids) > room
    fed = FedTokens(ids=tuple(ids[-room:] if truncated and room else ids), n_scored=0)
    return Response(
        text=str(text),
        token_hash=token_hash([fed]) if ids else "",
        n_tokens=len(fed.ids),
        truncated=truncated,
    )


def _room(lm: Any, options: dict[str, Any]) -> int | None:
    """Tokens of context that fit beside what may be generated; None where unknown."""
    max_length = getattr(lm, "max_length", None)
    if max_length is None:
        return None
    if getattr(lm, "backend", "causal") == "seq2seq":
        return int(max_length)
    default = getattr(lm, "max_gen_toks", _DEFAULT_GENERATED)
    return max(1, int(max_length) - generated_length(options, default))
