"""What a chat server answered beside its text, as ``Response.message`` keeps it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

# vLLM 0.12 and OpenRouter say "reasoning" for what others call "reasoning_content".
_NAMES = {
    "tool_calls": "tool_calls",
    "reasoning_content": "reasoning_content",
    "reasoning": "reasoning_content",
    "refusal": "refusal",
}


def message_of(choice: Mapping[str, Any]) -> str:
    """JSON of a choice's ``tool_calls``, ``reasoning_content``, ``refusal`` and its end.

    "" where it is no chat's, or says nothing beside its text.
    """
    message = choice.get("message")
    if not isinstance(message, Mapping):
        return ""
    told = {
        name: message[key]
        for key, name in reversed(_NAMES.items())
        if message.get(key) not in (None, "", [])
    }
    reason = choice.get("finish_reason")
    if isinstance(reason, str) and reason:
        told["finish_reason"] = reason
    called = message.get("function_call")  # OpenAI's word before tool_calls
    if isinstance(called, Mapping) and "tool_calls" not in told:
        told["tool_calls"] = [{"type": "function", "function": dict(called)}]
    return json.dumps(told, ensure_ascii=False) if told else ""
