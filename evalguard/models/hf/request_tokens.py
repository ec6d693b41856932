"""The token ids that a request would feed, before any truncation."""

from __future__ import annotations

from typing import Any

from evalguard.core.scorer import Request
from evalguard.core.token_windows import TokenWindow


def encode_request(lm: Any, request: Request) -> tuple[int, ...]:
    """Encode as lm-eval's TemplateLM does; () for a model type that shows no token ids."""
    if not hasattr(lm, "tok_encode") or not hasattr(lm, "_encode_pair"):
        return ()
    ids = _ENCODERS[request.kind](lm, request.arguments)
    return tuple(ids) if all(isinstance(part, int) for part in ids[:1]) else ()


def _encode_continuation(lm: Any, arguments: tuple[Any, ...]) -> list[int]:
    window = TokenWindow.of(arguments)
    if window is not None:
        before, scored = window.pair(added_bos(lm), None)
        return [*before, *scored]
    context, continuation = arguments
    if context:
        before, scored = lm._encode_pair(context, continuation)
        return [*before, *scored]
    ids = list(lm.tok_encode(continuation, add_special_tokens=False))
    # lm-eval puts the prefix token before an empty context, unless the text begins with it
    return ids if ids[:1] == [lm.prefix_token_id] else [lm.prefix_token_id, *ids]


def _encode_whole_text(lm: Any, arguments: tuple[Any, ...]) -> list[int]:
    text = arguments[0]
    if hasattr(lm, "rolling_ids"):
        return [lm.prefix_token_id, *lm.rolling_ids(text)]
    return [lm.prefix_token_id, *lm.tok_encode(text)]


def added_bos(lm: Any) -> int | None:
    """The token that a model's tokenizer puts before a text by itself; None: it puts none."""
    first = list(lm.tok_encode("a"))[:1]
    return first[0] if first == [lm.prefix_token_id] else None


def encode_context(lm: Any, arguments: tuple[Any, ...]) -> list[int]:
    """The ids of a prompt; none where a server is sent its text, and encodes it as it will."""
    if not getattr(lm, "tokenized_requests", True):
        return []
    return list(lm.tok_encode(arguments[0]))


_ENCODERS = {
    "loglikelihood": _encode_continuation,
    "loglikelihood_rolling": _encode_whole_text,
    "generate_until": encode_context,
}
