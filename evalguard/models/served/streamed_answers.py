"""Answers that come in pieces (server-sent events), put together as a server would send them whole.

Source: OpenAI's API reference, "Chat completion chunk": texts and arguments of tool calls are put
one behind the other, tool calls by their ``index``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from evalguard.core.reports.findings import Quote, quote_message

# Of a piece, what is said once; everything else that is a text goes behind what is there.
_ONCE = frozenset({"role", "id", "type", "index", "name"})


class BrokenStreamError(ValueError):
    """A stream that ends before its answers do, or that is none; asking again may help.

    ``quotes``: what the server says of it.
    """

    def __init__(self, message: str, *, quotes: tuple[Quote, ...] = ()) -> None:
        super().__init__(message)
        self.quotes = quotes
        self.__notes__ = [quote.text for quote in quotes]


def read_answer(text: str) -> Any:
    """Return the JSON of an answer, whole or in pieces.

    Raises:
        ValueError: it is neither.
        RecursionError: it is JSON nested too deeply.
    """
    if not is_stream(text):
        return json.loads(text)
    return join_stream(text)


def is_stream(text: str) -> bool:
    """Whether an answer came in pieces."""
    return text.lstrip().startswith(("data:", "event:", ":", "id:", "retry:"))


def join_stream(text: str) -> dict[str, Any]:
    """Return the answer that the pieces of a stream make.

    Raises:
        BrokenStreamError: no piece, an error among them, or choices that do not end.
    """
    whole: dict[str, Any] = {}
    choices: dict[int, dict[str, Any]] = {}
    done = False
    for data in _events(text):
        if data == "[DONE]":
            done = True
            continue
        piece = json.loads(data)
        if not isinstance(piece, dict) or piece.get("error"):
            told = piece.get("error") if isinstance(piece, dict) else piece
            raise BrokenStreamError(
                "the server ends its stream with an error", quotes=quote_message(str(told)[:200])
            )
        for choice in piece.pop("choices", None) or ():
            _add_choice(choices, choice)
        whole |= {key: value for key, value in piece.items() if value is not None}
    if not choices:
        raise BrokenStreamError("the stream has no answer in it")
    if not done and any(not one.get("finish_reason") for one in choices.values()):
        raise BrokenStreamError("the stream ends before its answer does")
    whole["object"] = "chat.completion"
    whole["choices"] = [_finished(choices[at]) for at in sorted(choices)]
    return whole


def _events(text: str) -> Iterator[str]:
    """The data of each event: its lines that begin with ``data:``, up to a blank line."""
    lines: list[str] = []
    for line in [*text.splitlines(), ""]:
        if line.startswith("data:"):
            lines.append(line[5:].removeprefix(" "))
        elif not line and lines:
            yield "\n".join(lines)
            lines = []


def _add_choice(choices: dict[int, dict[str, Any]], piece: dict[str, Any]) -> None:
    at = int(piece.get("index") or 0)
    known = choices.setdefault(at, {"index": at, "message": {}})
    _add(known["message"], piece.get("delta") or piece.get("message") or {})
    if isinstance(piece.get("text"), str):  # a stream of completions
        known["text"] = known.get("text", "") + piece["text"]
    if piece.get("finish_reason") is not None:
        known["finish_reason"] = piece["finish_reason"]
    shown = piece.get("logprobs")
    if isinstance(shown, dict):
        _add(known.setdefault("logprobs", {}), shown)


def _add(known: dict[str, Any], piece: dict[str, Any]) -> None:
    for key, value in piece.items():
        if key == "tool_calls" and isinstance(value, list):
            calls = known.setdefault("tool_calls", {})
            for place, call in enumerate(value):
                at = call.get("index", place)
                _add(calls.setdefault(at, {}), {k: v for k, v in call.items() if k != "index"})
        elif isinstance(value, dict):
            _add(known.setdefault(key, {}), value)
        elif isinstance(value, list):
            known[key] = [*(known.get(key) or ()), *value]
        elif isinstance(value, str) and key not in _ONCE and isinstance(known.get(key), str):
            known[key] += value
        elif value is not None and not (key in _ONCE and known.get(key)):
            known[key] = value


def _finished(choice: dict[str, Any]) -> dict[str, Any]:
    message = choice["message"]
    calls = message.get("tool_calls")
    if isinstance(calls, dict):
        message["tool_calls"] = [calls[at] for at in sorted(calls)]
    message.setdefault("content", None)
    return choice
