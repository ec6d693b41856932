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


def message_of(choice: Mapping[str, Any], *, think_end: str = "") -> str:
    """JSON of a choice's ``tool_calls``, ``reasoning_content``, ``refusal`` and its end.

    "" where it is no chat's, or says nothing beside its text.

    Args:
        think_end: mark up to which lm-eval's client cuts a text off: what was thought is kept, so
            that a thinking part with an end is told from one without; "": it cuts nothing.
    """
    message = choice.get("message")
    if not isinstance(message, Mapping):
        return ""
    told = {
        name: message[key]
        for key, name in reversed(_NAMES.items())
        if message.get(key) not in (None, "", [])
    }
    thought, closed, _ = str(message.get("content") or "").rpartition(think_end or "\0")
    if think_end and closed:
        told.setdefault("reasoning_content", thought.strip())
    reason = choice.get("finish_reason")
    if isinstance(reason, str) and reason:
        told["finish_reason"] = reason
    called = message.get("function_call")  # OpenAI's word before tool_calls
    if isinstance(called, Mapping) and "tool_calls" not in told:
        told["tool_calls"] = [{"type": "function", "function": dict(called)}]
    return json.dumps(told, ensure_ascii=False) if told else ""
