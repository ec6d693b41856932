"""ToolCall: a call of a function that a model wrote, and those of a chat server's message."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One call.

    Attributes:
        name: of the function; "": the call names none.
        arguments: as they were written, JSON or not.
    """

    name: str
    arguments: str


def calls_of_message(message: str) -> tuple[ToolCall, ...] | None:
    """The calls of a ``Response.message``; None where it does not say whether there are any.

    A call that is no function's has no name; arguments that a server sends as an object, and not
    as the text of one, are written as JSON.
    """
    listed = message_fields(message).get("tool_calls", [])
    if not isinstance(listed, list):
        return None
    return tuple(_call(one) for one in listed)


def message_fields(message: str) -> Mapping[str, Any]:
    """What a chat server answered beside its text; {} where nothing, or what is no JSON object."""
    try:
        found = json.loads(message or "{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _call(found: Any) -> ToolCall:
    function = found.get("function") if isinstance(found, dict) else None
    if not isinstance(function, dict):
        return ToolCall(name="", arguments=json.dumps(found, ensure_ascii=False))
    name, arguments = function.get("name"), function.get("arguments", "")
    return ToolCall(
        name=name if isinstance(name, str) else "",
        arguments=arguments
        if isinstance(arguments, str)
        else json.dumps(arguments, ensure_ascii=False),
    )
