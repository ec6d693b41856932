"""Chat requests on their way to a server, with all that lm-eval has no name for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from evalguard.core.chat_requests import take_chat_fields

_LENGTH = "max_completion_tokens"


def send_chat_fields(lm: Any) -> None:
    """Let a client of a chat endpoint send tools and whatever else a chat request holds.

    lm-eval writes the rest: model, messages, length, temperature, seed.
    """
    create: Callable[..., Any] = lm._create_payload

    @wraps(create)
    def create_with_fields(
        messages: Any,
        generate: bool = False,
        gen_kwargs: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> Any:
        options = dict(gen_kwargs or {})
        fields = take_chat_fields(options)
        payload = create(messages, generate=generate, gen_kwargs=options, **more)
        if fields is None:
            return payload
        if not payload.get("stop"):  # OpenAI refuses an empty list
            payload.pop("stop", None)
        if fields.pop(_LENGTH, None) is not None and "max_tokens" in payload:
            payload[_LENGTH] = payload.pop("max_tokens")
        return {**payload, **fields}

    lm._create_payload = create_with_fields
