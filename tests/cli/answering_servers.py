"""Servers at 127.0.0.1 that say what a test wants them to, and comparisons of two of them."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from small_world import SmallWorld, run_here

DOCUMENTS = 20
_TASK = """
task: sums
dataset_path: json
dataset_kwargs: {{data_files: {files}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
repeats: {repeats}
generation_kwargs: {{until: ["Q:"], max_gen_toks: 30, do_sample: true, temperature: 0.8}}
filter_list:
  - name: strict
    filter: [{{function: regex, regex_pattern: "#### (\\\\d+)"}}, {{function: take_first}}]
  - name: flexible
    filter:
      - {{function: regex, regex_pattern: "(\\\\d+)", group_select: -1}}
      - {{function: take_first}}
metric_list: [{{metric: exact_match, aggregation: mean, higher_is_better: true}}]
"""

# (question's number, seed) -> text and finish_reason
Says = Callable[[int, int], tuple[str, str]]


def right(number: int, seed: int) -> tuple[str, str]:
    """Right by the first seed for most documents, by three of four seeds for all."""
    found = number + 1 if (seed + number) % 4 else 999
    return f"Let me see. #### {found}", "stop"


def in_another_form(number: int, seed: int) -> tuple[str, str]:
    """The same answers, without the mark that the strict filter looks for, in half of them."""
    text, reason = right(number, seed)
    return (text.replace("#### ", "The answer is ") if number % 2 else text), reason


def cut(number: int, seed: int) -> tuple[str, str]:
    text, _ = right(number, seed)
    return (text[:12], "length") if number % 2 else (text, "stop")


def without_seed(number: int, seed: int) -> tuple[str, str]:
    return right(number, 1234)


def without_mark(number: int, seed: int) -> tuple[str, str]:
    """The same answers without the mark: the strict filter finds none of them."""
    text, reason = right(number, seed)
    return text.replace("#### ", "The answer is "), reason


def without_number(number: int, seed: int) -> tuple[str, str]:
    return f"{'very ' * (number % 5)}hard to say", "stop"


def empty(number: int, seed: int) -> tuple[str, str]:
    return "\n " * (number % 3), "stop"


def the_same(number: int, seed: int) -> tuple[str, str]:
    return "Let me see. #### 3", "stop"


@dataclass
class Served:
    """Servers at 127.0.0.1, by what they say."""

    servers: list[ThreadingHTTPServer]

    def start(self, says: Says) -> str:
        class Completions(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                choices = []
                prompts = asked.get("prompt") or [asked["messages"][-1]["content"]]
                for index, prompt in enumerate([prompts] if isinstance(prompts, str) else prompts):
                    number = int(prompt.split("number ")[1].split("?")[0])
                    text, reason = says(number, asked["seed"])
                    told = {"text": text, "message": {"content": text}}
                    choices.append({"index": index, "finish_reason": reason, **told})
                body = json.dumps({"model": asked["model"], "choices": choices}).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_GET(self) -> None:
                self.send_error(404)

            def log_message(self, *_: Any) -> None:
                pass

        self.servers.append(ThreadingHTTPServer(("127.0.0.1", 0), Completions))
        threading.Thread(target=self.servers[-1].serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{self.servers[-1].server_port}/v1/completions"


@dataclass
class Asked:
    """Commands about two servers."""

    world: SmallWorld
    served: Served
    capfd: pytest.CaptureFixture[str]
    tmp_path: Path

    def compare(
        self, base: Says, candidate: Says, *more: str, repeats: int = 4, chat: bool = False
    ) -> Any:
        more = (*more, "--apply_chat_template") if chat else more
        path = str(self.tmp_path / "reports")
        guard = self.write_guard(base, candidate, repeats=repeats, chat=chat)
        return self.run("compare", guard, "--output-path", path, *more)

    def plan(self, base: Says, candidate: Says, *more: str, repeats: int = 4) -> Any:
        return self.run("plan", self.write_guard(base, candidate, repeats=repeats), *more)

    def run(self, command: str, guard: Path, *more: str) -> Any:
        words = [command, "--config", guard, "--base", "served", "--cand", "port", "--quiet"]
        return run_here([*words, *more], self.capfd)

    def write_guard(self, base: Says, candidate: Says, *, repeats: int, chat: bool = False) -> Path:
        data = self.tmp_path / "test.jsonl"
        rows = [{"question": f"Q: number {n}?", "answer": str(n + 1)} for n in range(DOCUMENTS)]
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        files = json.dumps({"test": str(data)})
        (self.tmp_path / "sums.yaml").write_text(_TASK.format(files=files, repeats=repeats))
        more_arguments: dict[str, Any] = {} if chat else {
            "tokenized_requests": False,
            "tokenizer": str(self.world.models["llama"]),
            "tokenizer_backend": "huggingface",
            "max_length": 128,
        }  # fmt: skip
        models = {
            name: {
                "model": "local-chat-completions" if chat else "local-completions",
                "model_args": {
                    "base_url": self.served.start(says),
                    "model": "served",
                    "max_retries": 1,
                    **more_arguments,
                },
            }
            for name, says in (("served", base), ("port", candidate))
        }
        guard = self.tmp_path / "servers.yaml"
        guard.write_text(
            json.dumps({"models": models, "tasks": ["sums"], "include_path": [str(self.tmp_path)]})
        )
        return guard
