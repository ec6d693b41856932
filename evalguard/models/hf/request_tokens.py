"""The token ids that a request would feed, before any truncation."""

from __future__ import annotations

from typing import Any

from evalguard.core.scorer import Request


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
