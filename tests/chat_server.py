"""A chat endpoint in this process that answers as a test says, whole or in pieces."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Message = Mapping[str, Any]
# What is asked -> the message that answers it, a number (an HTTP status), or None: plain words.
Answer = Callable[[Mapping[str, Any]], Message | int | None]


@dataclass(slots=True, kw_only=True)
class ChatServer:
    """Answers ``/v1/chat/completions`` and ``/v1/models``.

    Attributes:
        answer: see ``Answer``; a message may bring its own ``finish_reason`` and ``logprobs``.
        names: models that it lists.
        streams: answer in pieces, whether that is asked for or not.
        reasons: say why an answer ended.
        asked: what it was asked, probes among it.
    """

    answer: Answer
    names: tuple[str, ...] = ("stub",)
    streams: bool = False
    reasons: bool = True
    asked: list[dict[str, Any]] = field(default_factory=list)
    url: str = ""


def call(name: str, arguments: str) -> Message:
    """A message that calls one tool."""
    function = {"name": name, "arguments": arguments}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "call-1", "type": "function", "function": function}],
    }


@contextmanager
def serving(server: ChatServer) -> Iterator[ChatServer]:
    """Serve while the block runs; ``server.url`` is the address of the API."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if self.path == "/v1/models":
                self._say(200, json.dumps({"data": [{"id": name} for name in server.names]}))
            else:
                self._say(404, "{}")

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            server.asked.append(asked)
            found = server.answer(asked)
            if isinstance(found, int):
                self._say(found, json.dumps({"error": {"message": "the stub refuses this"}}))
                return
            message = dict(found or _words(asked))
            usual = "tool_calls" if "tool_calls" in message else "stop"
            reason = message.pop("finish_reason", usual)
            choice = {"index": 0, "message": message}
            shown = message.pop("logprobs", None)
            if shown is not None:
                choice["logprobs"] = shown
            if server.reasons:
                choice["finish_reason"] = reason
            if server.streams or asked.get("stream"):
                self._say(200, _stream(asked["model"], choice), kind="text/event-stream")
                return
            whole = {"object": "chat.completion", "model": asked["model"], "choices": [choice]}
            self._say(200, json.dumps(whole))

        def _say(self, status: int, text: str, kind: str = "application/json") -> None:
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.url = f"http://127.0.0.1:{listening.server_port}/v1"
    threading.Thread(target=listening.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        listening.shutdown()
        listening.server_close()


def _words(asked: Mapping[str, Any]) -> Message:
    said = asked["messages"][-1]["content"]
    return {"role": "assistant", "content": f"to {said}"}


def _stream(model: str, choice: Mapping[str, Any]) -> str:
    """An answer in pieces of three characters, as OpenAI's servers send it."""
    pieces: list[dict[str, Any]] = [{"role": "assistant"}]
    message = choice["message"]
    for key in ("reasoning_content", "content", "refusal"):
        pieces += [{key: part} for part in _cut(message.get(key) or "")]
    for at, one in enumerate(message.get("tool_calls") or ()):
        function = one["function"]
        head = {"name": function["name"], "arguments": ""}
        begun = {"index": at, "id": one["id"], "type": "function", "function": head}
        pieces.append({"tool_calls": [begun]})
        pieces += [
            {"tool_calls": [{"index": at, "function": {"arguments": part}}]}
            for part in _cut(function["arguments"])
        ]
    chunks = [{"index": 0, "delta": piece, "finish_reason": None} for piece in pieces]
    ended = {"index": 0, "delta": {}, "finish_reason": choice.get("finish_reason")}
    if "logprobs" in choice:
        ended["logprobs"] = choice["logprobs"]
    chunks.append(ended)
    head = {"object": "chat.completion.chunk", "model": model}
    events = [json.dumps({**head, "choices": [chunk]}) for chunk in chunks]
    return "".join(f"data: {event}\n\n" for event in [*events, "[DONE]"])


def _cut(text: str) -> list[str]:
    return [text[at : at + 3] for at in range(0, len(text), 3)]
