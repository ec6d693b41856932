"""A chat server without a model, started with flags, of which some spoil some of its answers.

    python -m benchmarks.flagged_server --port N --plan PLAN.json [--flag0 1 ... --flag7 1]

What it writes follows from the question and the flags, as greedy decoding would: half a dozen to
sixty words inside a JSON object. A flag that is in the plan spoils the questions that it names: it
loops until the token limit, is cut there, or is no JSON. Every other flag only words some answers
otherwise. A word is a token.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

FLAGS = tuple(f"flag{number}" for number in range(8))
LIMIT = 160
_WORDS = ("the", "river", "runs", "past", "old", "stone", "mills", "where", "boats", "wait", "for",
          "rain", "and", "wind", "to", "turn")  # fmt: skip


def answer(question: str, flags: Sequence[str], plan: dict[str, Any]) -> tuple[str, bool]:
    """The text, and whether it was cut at the limit."""
    draws = random.Random(question)
    words = [draws.choice(_WORDS) for _ in range(draws.randint(6, 60))]
    for flag in flags:
        other = random.Random(f"{question} {flag}")
        if other.random() < 0.15:
            words[other.randrange(len(words))] = other.choice(_WORDS)
    kind = next(
        (kind for kind, fault in plan.items()
         if fault["flag"] in flags and question in fault["questions"]),
        "",
    )  # fmt: skip
    if kind == "loops":
        words += (["round and round it goes"] * LIMIT)[: LIMIT - len(words)]
        words = " ".join(words).split()[:LIMIT]
        return '{"answer": "' + " ".join(words), True
    if kind == "cut":
        words += [f"w{draws.randrange(10**6)}" for _ in range(LIMIT - len(words))]
        return '{"answer": "' + " ".join(words), True
    text = " ".join(words)
    return f'{{"answer": {text}}}' if kind == "valid_json" else f'{{"answer": "{text}"}}', False


def main() -> None:
    """Serve until ended."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--plan", type=Path, required=True)
    for flag in FLAGS:
        parser.add_argument(f"--{flag}", type=int, default=0)
    asked = parser.parse_args()
    plan = json.loads(asked.plan.read_text())
    flags = [flag for flag in FLAGS if getattr(asked, flag)]

    class Chats(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            text, cut = answer(body["messages"][-1]["content"], flags, plan)
            choice = {
                "index": 0,
                "message": {"role": "assistant", "content": text},
                "finish_reason": "length" if cut else "stop",
            }
            usage = {"completion_tokens": len(text.split())}
            self._say({"model": body["model"], "choices": [choice], "usage": usage})

        def do_GET(self) -> None:
            self._say({"data": [{"id": "stub"}]})

        def _say(self, what: Any) -> None:
            text = json.dumps(what).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: Any) -> None:
            pass

    ThreadingHTTPServer(("127.0.0.1", asked.port), Chats).serve_forever()


if __name__ == "__main__":
    main()
