"""From what an lm-eval model answered, and what it was fed, to Responses."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from evalguard.core.scorer import Request, Response
from evalguard.core.shown_tokens import TopLogprobs
from evalguard.models.generated_texts import GeneratedText
from evalguard.models.scored_tokens import (
    InputTokens,
    ScoredTokens,
    generated_length,
    hash_input_tokens,
    pair_answer,
    text_answer,
)

RecordedPair = tuple[Any, Sequence[int], Sequence[int]]


@dataclass(frozen=True, slots=True)
class RecordedCalls:
    """Every (key, context ids, continuation ids) that a model was given, and its answers."""

    pairs: list[RecordedPair] = field(default_factory=list)
    answers: list[Any] = field(default_factory=list)


@contextlib.contextmanager
def record_input_tokens(lm: Any) -> Iterator[RecordedCalls]:
    """Record what ``lm._loglikelihood_tokens`` is given and answers.

    Models without that method (generate-only, some APIs) record nothing.
    """
    seen = RecordedCalls()
    original = getattr(lm, "_loglikelihood_tokens", None)
    if original is None:
        yield seen
        return

    def recording(requests: Sequence[RecordedPair], *arguments: Any, **options: Any) -> Any:
        seen.pairs.extend(requests)
        answers = original(requests, *arguments, **options)
        if isinstance(answers, list):
            seen.answers.extend(answers)
        return answers

    lm._loglikelihood_tokens = recording
    try:
        yield seen
    finally:
        del lm._loglikelihood_tokens


def match_inputs_to_requests(
    pairs: Sequence[RecordedPair], arguments: Sequence[tuple[Any, ...]], max_length: int | None
) -> list[InputTokens] | None:
    """Match recorded pairs to likelihood requests, in the order asked; None if they do not match.

    Args:
        pairs: what was recorded while the requests were answered.
        arguments: (context, continuation) of each request.
        max_length: the model's context length, None where unknown.
    """
    if len(pairs) != len(arguments) or not _are_ids(pairs):
        return None
    for (key, _, _), asked in zip(pairs, arguments, strict=True):
        if key is not None and tuple(key) != tuple(asked):
            return None
    return [InputTokens.of_pair(context, cont, max_length) for _, context, cont in pairs]


def match_inputs_to_texts(
    pairs: Sequence[RecordedPair], scored_counts: Sequence[int], max_length: int | None
) -> list[list[InputTokens]] | None:
    """Split recorded rolling windows by text; None if they do not add up.

    ``scored_counts`` holds the number of tokens each text has: its windows score each token once.
    """
    if not _are_ids(pairs):
        return None
    remaining = iter(pairs)
    texts: list[list[InputTokens]] = []
    for count in scored_counts:
        windows: list[InputTokens] = []
        while sum(window.n_scored for window in windows) < count:
            pair = next(remaining, None)
            if pair is None:
                return None
            windows.append(InputTokens.of_pair(pair[1], pair[2], max_length))
        texts.append(windows)
    return texts if next(remaining, None) is None else None


def _are_ids(pairs: Sequence[RecordedPair]) -> bool:
    return all(isinstance(part, int) for _, ctx, cont in pairs for part in (*ctx[:1], *cont[:1]))


def encode_request(lm: Any, request: Request) -> tuple[int, ...]:
    """Encode as lm-eval's TemplateLM does; () for a model type that shows no token ids."""
    if not hasattr(lm, "tok_encode") or not hasattr(lm, "_encode_pair"):
        return ()
    before, scored = encode_halves(lm, request)
    ids = (*before, *scored)
    return ids if all(isinstance(part, int) for part in ids[:1]) else ()


def encode_halves(lm: Any, request: Request) -> tuple[list[int], list[int]]:
    """Return what a model is given, and what is scored after it: an encoder reads the one, and its
    decoder the other; nothing is scored of what is to be generated."""
    return _ENCODERS[request.kind](lm, request.arguments)


def _encode_continuation(lm: Any, arguments: tuple[Any, ...]) -> tuple[list[int], list[int]]:
    context, continuation = arguments
    if context:
        before, scored = lm._encode_pair(context, continuation)
        return list(before), list(scored)
    ids = list(lm.tok_encode(continuation, add_special_tokens=False))
    # lm-eval puts the prefix token before an empty context, unless the text begins with it
    return (ids[:1], ids[1:]) if ids[:1] == [lm.prefix_token_id] else ([lm.prefix_token_id], ids)


def _encode_whole_text(lm: Any, arguments: tuple[Any, ...]) -> tuple[list[int], list[int]]:
    text = arguments[0]
    encode = lm.rolling_ids if hasattr(lm, "rolling_ids") else lm.tok_encode
    return [lm.prefix_token_id], list(encode(text))


def _encode_prompt(lm: Any, arguments: tuple[Any, ...]) -> tuple[list[int], list[int]]:
    return encode_context(lm, arguments), []


def encode_context(lm: Any, arguments: tuple[Any, ...]) -> list[int]:
    """The ids of a prompt; none where a server is sent its text, and encodes it as it will."""
    if not getattr(lm, "tokenized_requests", True):
        return []
    return list(lm.tok_encode(arguments[0]))


_ENCODERS = {
    "loglikelihood": _encode_continuation,
    "loglikelihood_rolling": _encode_whole_text,
    "generate_until": _encode_prompt,
}
_DEFAULT_GENERATED = 256  # lm-eval's, where neither task nor model says


def build_responses(
    lm: Any,
    kind: str,
    arguments: Sequence[tuple[Any, ...]],
    answers: Sequence[Any],
    fed: Sequence[RecordedPair],
    window_answers: Sequence[Any] = (),
) -> list[Response]:
    """Put every answer together with the token ids that were fed for it.

    Args:
        lm: the model; a ``GuardedHFLM`` has per-token answers in ``lm.scored``.
        kind: the request kind.
        arguments: lm-eval's arguments of each request.
        answers: what the model returned, in the order asked.
        fed: what was recorded of the model's token-level calls; ``window_answers``: what it
            answered to them. A server's are ``TokenAnswer`` where it shows its tokens.
    """
    if kind == "generate_until":
        return [
            _generation_response(lm, asked, answer)
            for asked, answer in zip(arguments, answers, strict=True)
        ]
    scored: list[list[ScoredTokens]] = getattr(lm, "scored", None) or []
    if len(scored) == len(answers):
        pieces: list[list[InputTokens]] | None = [[p.fed for p in request] for request in scored]
    else:
        scored = []
        pieces = _recorded_pieces(lm, kind, arguments, fed)
    responses = [
        _likelihood_response(
            answer,
            pieces[index] if pieces is not None else None,
            scored[index] if scored else None,
        )
        for index, answer in enumerate(answers)
    ]
    if scored:
        return responses
    shown = _shown_answers(kind, answers, pieces, window_answers)
    return list(map(_with_shown_tokens, responses, shown))


def _shown_answers(
    kind: str,
    answers: Sequence[Any],
    pieces: Sequence[Sequence[InputTokens]] | None,
    window_answers: Sequence[Any],
) -> list[Sequence[Any]]:
    """The answers that each request's is made of: one, or those of a whole text's windows."""
    if kind == "loglikelihood":
        return [[answer] for answer in answers]
    counts = [len(windows) for windows in pieces or ()]
    if len(counts) != len(answers) or sum(counts) != len(window_answers):
        return [[] for _ in answers]
    remaining = iter(window_answers)
    return [[next(remaining) for _ in range(count)] for count in counts]


def _with_shown_tokens(response: Response, parts: Sequence[Any]) -> Response:
    """Add the tokens that a server's answers are the sums of, where all of them show these."""
    if not parts or not all(hasattr(part, "token_logprobs") for part in parts):
        return response
    return replace(
        response,
        token_logprobs=np.concatenate([part.token_logprobs for part in parts]),
        top_logprobs=_join_shown([part.top_logprobs for part in parts]),
    )


def _join_shown(parts: Sequence[TopLogprobs | None]) -> TopLogprobs | None:
    """What a server showed of all windows of a text; None where it did not of any of them."""
    shown = [of for of in parts if of is not None]
    return tuple(top for of in shown for top in of) if len(shown) == len(parts) else None


def build_likelihood_responses(
    kind: str, scored: Sequence[Sequence[ScoredTokens]]
) -> list[Response]:
    """Put the scored pieces of each request together, as ``build_responses`` does."""
    whole = kind == "loglikelihood_rolling"
    return [
        _likelihood_response(
            text_answer(of) if whole else pair_answer(*of), [piece.fed for piece in of], of
        )
        for of in scored
    ]


def _recorded_pieces(
    lm: Any, kind: str, arguments: Sequence[tuple[Any, ...]], fed: Sequence[RecordedPair]
) -> list[list[InputTokens]] | None:
    if not fed:
        return None
    # an encoder-decoder model cuts context and continuation each for itself
    causal = getattr(lm, "backend", "causal") == "causal"
    max_length = getattr(lm, "max_length", None) if causal else None
    if max_length is not None and hasattr(lm, "batch_loglikelihood_requests"):
        max_length -= 1  # lm-eval sends a server so many tokens, with the last one among them
    if kind == "loglikelihood":
        matched = match_inputs_to_requests(fed, arguments, max_length)
        return None if matched is None else [[piece] for piece in matched]
    encoded = getattr(lm, "rolling_ids", None) or lm.tok_encode
    counts = [len(encoded(text)) for (text,) in arguments]
    return match_inputs_to_texts(fed, counts, max_length)


def _likelihood_response(
    answer: Any, pieces: Sequence[InputTokens] | None, scored: Sequence[ScoredTokens] | None
) -> Response:
    # (log-likelihood, is greedy) for a continuation, the bare log-likelihood for a whole text
    value, greedy = answer if isinstance(answer, (tuple, list)) else (answer, None)
    logprobs = shown = None
    if scored is not None:
        logprobs = np.concatenate([np.empty(0), *(piece.logprobs for piece in scored)])
        shown = _join_shown([piece.top_logprobs for piece in scored])
    return Response(
        loglikelihood=float(value),
        is_greedy=None if greedy is None else bool(greedy),
        token_logprobs=logprobs,
        top_logprobs=shown,
        token_hash="" if pieces is None else hash_input_tokens(pieces),
        n_tokens=sum(len(piece.ids) for piece in pieces or ()),
        truncated=any(piece.truncated for piece in pieces or ()),
    )


def _generation_response(lm: Any, asked: tuple[Any, ...], answer: object) -> Response:
    text = GeneratedText.of(answer)
    ids = encode_context(lm, asked) if hasattr(lm, "tok_encode") else []
    if not all(isinstance(part, int) for part in ids[:1]):
        ids = []
    room = _context_room(lm, asked[1])
    truncated = room is not None and len(ids) > room
    fed = InputTokens(ids=tuple(ids[-room:] if truncated and room else ids), n_scored=0)
    return Response(
        text=str(text),
        token_hash=hash_input_tokens([fed]) if ids else "",
        n_tokens=len(fed.ids),
        truncated=truncated,
        ended=text.ended,
        generated=text.tokens,
        message=text.message,
    )


def _context_room(lm: Any, options: dict[str, Any]) -> int | None:
    """Tokens of context that fit beside what may be generated; None where unknown."""
    max_length = getattr(lm, "max_length", None)
    if max_length is None:
        return None
    if getattr(lm, "backend", "causal") == "seq2seq":
        return int(max_length)
    if hasattr(lm, "batch_loglikelihood_requests"):  # lm-eval's clients of servers know one name
        length = int(options.get("max_gen_toks", lm._max_gen_toks))
    else:
        length = generated_length(options, getattr(lm, "max_gen_toks", _DEFAULT_GENERATED))
    return max(1, int(max_length) - length)
