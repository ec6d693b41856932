"""Servers without a model: answers in the shapes that OpenAI, vLLM, SGLang and TGI document.

Their "model" is a table: the log-probabilities of the next token given the last one; or a real one.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Json = Any
# (server, what was asked, the sound answer) -> the answer
Edit = Callable[["Stub", Json, Json], Json]
# The same, to status, headers and body.
Reply = Callable[["Stub", Json, Json], tuple[int, Mapping[str, str], bytes]]


@dataclass
class Stub:
    """A server's model, and what goes wrong with it.

    Attributes:
        tokenizer: folder of a Hugging Face tokenizer.
        shape: "openai", "bare" (nothing but log-probabilities), "vllm" (with the prompt's ids),
            "sglang", "llama.cpp" (log-probabilities of generated tokens alone), "tgi" (none),
            "text" (prompts are texts), "chat".
        noise: of the logits, beside the model of noise 0.
        edit: changes a sound answer; ``reply``: sends it otherwise.
    """

    tokenizer: Path
    shape: str = "openai"
    noise: float = 0.0
    edit: Edit | None = None
    reply: Reply | None = None
    asked: list[Json] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    notes: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def decoder(self) -> Any:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(self.tokenizer)

    @cached_property
    def table(self) -> NDArray[np.float64]:
        """Log-probabilities of the next token (column) given the last one (row)."""
        size = len(self.decoder)
        draws = np.random.default_rng(7)
        logits = 2.0 * draws.standard_normal((size, size))
        logits += self.noise * draws.standard_normal((size, size))
        return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))

    def tokens(self, ids: Sequence[int], shown: int) -> list[dict[str, Any]]:
        """Each token of a text with its log-probability, and the most probable ones beside it."""
        found: list[dict[str, Any]] = []
        for place, token in enumerate(ids):
            text = self.decoder.convert_ids_to_tokens(int(token))
            if not place:
                found.append({"id": token, "text": text, "logprob": None, "tops": None})
                continue
            row = self.row(ids, place)
            most = [int(one) for one in np.argsort(-row)[:shown]]
            most += [] if token in most else [int(token)]
            found.append(
                {
                    "id": int(token),
                    "text": text,
                    "logprob": float(row[token]),
                    "tops": [(one, float(row[one])) for one in most],
                }
            )
        return found

    def row(self, ids: Sequence[int], place: int) -> Any:
        """Log-probabilities of the token at a place of a text."""
        return self.table[ids[place - 1]]

    def answer(self, asked: Json) -> Json:
        """The sound answer."""
        if self.shape == "chat":
            said = {"role": "assistant", "content": f"to {asked['messages'][-1]['content']}"}
            choice = {"index": 0, "message": said, "finish_reason": "stop"}
            return {"object": "chat.completion", "model": asked["model"], "choices": [choice]}
        if "input_ids" in asked:
            return [self._sglang(ids, asked) for ids in asked["input_ids"]]
        prompts = asked["prompt"]
        if self.shape == "text":
            texts = [prompts] if isinstance(prompts, str) else prompts
            prompts = [self.decoder(text)["input_ids"] for text in texts]
        prompts = [prompts] if prompts and isinstance(prompts[0], int) else prompts
        return {
            "id": "cmpl-1",
            "object": "text_completion",
            "created": 1,
            "model": asked["model"],
            "choices": [self._choice(index, list(ids), asked) for index, ids in enumerate(prompts)],
            **self._usage(prompts),
        }

    def _usage(self, prompts: Sequence[Sequence[int]]) -> Json:
        number = sum(map(len, prompts))
        usage = {"prompt_tokens": number, "completion_tokens": 1, "total_tokens": number + 1}
        return {} if self.shape == "bare" else {"usage": usage}

    def _choice(self, index: int, ids: list[int], asked: Json) -> Json:
        generated = int(np.argmax(self.table[ids[-1]]))
        said = [*ids, generated] if asked.get("echo") else [generated]
        choice: Json = {"index": index, "text": "", "finish_reason": "length", "logprobs": None}
        if self.shape == "llama.cpp":
            one = {"id": generated, "token": "x", "bytes": [], "logprob": -0.5, "top_logprobs": []}
            return {**choice, "text": "x", "logprobs": {"content": [one]}}
        if self.shape != "bare":
            choice["text"] = self.decoder.decode(said)
        if self.shape == "vllm":
            choice |= {"prompt_token_ids": ids, "stop_reason": None, "prompt_logprobs": None}
        if asked.get("logprobs") and self.shape != "tgi":
            tokens = self.tokens([*ids, generated], asked["logprobs"])[-len(said) :]
            choice["logprobs"] = self._logprobs(tokens)
        return choice

    def _logprobs(self, tokens: Sequence[Mapping[str, Any]]) -> Json:
        name = self.decoder.convert_ids_to_tokens
        found = {
            "token_logprobs": [one["logprob"] for one in tokens],
            "top_logprobs": [
                None if one["tops"] is None else {name(top): value for top, value in one["tops"]}
                for one in tokens
            ],
        }
        if self.shape != "bare":
            texts = [one["text"] for one in tokens]
            starts = [sum(map(len, texts[:place])) for place in range(len(texts))]
            found |= {"tokens": texts, "text_offset": starts}
        return found

    def _sglang(self, ids: Sequence[int], asked: Json) -> Json:
        tokens = self.tokens(ids, asked.get("top_logprobs_num", 1))
        about = {
            "id": "1",
            "prompt_tokens": len(ids),
            "input_token_logprobs": [[one["logprob"], one["id"], None] for one in tokens],
            "input_top_logprobs": [
                None if one["tops"] is None else [[value, top, None] for top, value in one["tops"]]
                for one in tokens
            ],
        }
        return {"text": self.decoder.decode([0]), "meta_info": about}


class ModelStub(Stub):
    """A stub whose log-probabilities are those of the model in the tokenizer's folder."""

    @cached_property
    def model(self) -> Any:
        import torch
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM.from_pretrained(self.tokenizer, dtype=torch.float32).eval()

    def tokens(self, ids: Sequence[int], shown: int) -> list[dict[str, Any]]:
        import torch

        with torch.no_grad():
            logits = self.model(torch.tensor([list(ids)])).logits[0].float()
        self.rows = torch.log_softmax(logits, dim=-1).double().numpy()
        return super().tokens(ids, shown)

    def row(self, ids: Sequence[int], place: int) -> Any:
        return self.rows[place - 1]


Key = Callable[[list[int], int], object]
"""(prompt, end of a block) -> under which a prefix cache keeps the block."""


@dataclass
class CachingStub(Stub):
    """A stub whose model reads all that is before a token, and which keeps blocks of prompts.

    Each token leaves a value (as keys and values of attention), a block of them is kept under
    ``key``, and log-probabilities are those of the table, moved by the values of all tokens before.

    Attributes:
        block: tokens of a block; ``key``: None keeps nothing.
        keeps: "values" of tokens, from which log-probabilities are computed anew, or the
            "logprobs" themselves.
        on_hit: what becomes of what is found, of shape (tokens, ...).
        wavering: standard deviation of noise on every log-probability, in nats.
        deep: what a token leaves depends on those before it, as in all layers but the first.
        echoes_anew: a prompt whose log-probabilities are asked for is computed whole, as by vLLM.
        generates: tokens of a generated text; ``chooses`` the next token of a row.
    """

    block: int = 16
    key: Key | None = None
    keeps: str = "values"
    on_hit: Callable[[NDArray[np.float64]], NDArray[np.float64]] | None = None
    wavering: float = 0.0
    deep: bool = False
    echoes_anew: bool = False
    generates: int = 8
    chooses: Callable[[NDArray[np.float64]], int] | None = None
    kept: dict[object, NDArray[np.float64]] = field(default_factory=dict)
    draws: np.random.Generator = field(default_factory=lambda: np.random.default_rng(11))

    def _values(self, ids: Sequence[int]) -> NDArray[np.float64]:
        places = np.arange(len(ids))
        own = np.sin(np.outer(np.asarray(ids) + 1, [0.7, 1.3, 2.9]) + 0.01 * places[:, None])
        return np.sin(3.0 * _mix(own)) if self.deep else own

    def _kept_or(self, ids: list[int], own: NDArray[np.float64]) -> NDArray[np.float64]:
        """Replace whole blocks by what is kept of them, and keep the others."""
        found = own.copy()
        if self.key is None:
            return found
        hits = True
        # The last token is the generated one, or is computed so that there is something to say.
        for end in range(self.block, len(ids), self.block):
            key, place = self.key(ids, end), slice(end - self.block, end)
            hits = hits and key in self.kept
            if hits:
                kept = self.kept[key]
                found[place] = kept if self.on_hit is None else self.on_hit(kept)
            else:
                self.kept[key] = own[place]
        return found

    def rows_of(
        self, ids: list[int], *, anew: bool = False, last: bool = False
    ) -> NDArray[np.float64]:
        """Log-probabilities of what follows each token, or the last one, shape (n, vocabulary)."""
        values = self._values(ids)
        if self.keeps == "values" and not anew:
            values = self._kept_or(ids, values)
        state = _mix(values, decay=0.5 if self.deep else 1.0)
        if last:
            ids, state = ids[-1:], state[-1:]
        size = len(self.decoder)
        mixing = np.random.default_rng(5).standard_normal((3, size))
        logits = self.table[np.asarray(ids)] + state @ mixing
        logits -= logits.max(axis=1, keepdims=True)
        rows = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        if self.wavering:
            rows = rows + self.wavering * self.draws.standard_normal(rows.shape)
            rows -= np.log(np.exp(rows).sum(axis=1, keepdims=True))
        return rows

    def tokens(self, ids: Sequence[int], shown: int) -> list[dict[str, Any]]:
        self.rows = self.rows_of([int(one) for one in ids], anew=self.echoes_anew)
        if self.keeps == "logprobs":
            own = np.array([self.rows[n - 1, one] for n, one in enumerate(ids)])
            own[0] = 0.0
            kept = self._kept_or([int(one) for one in ids], own)
            for place in np.flatnonzero(kept != own):
                self.rows[place - 1, ids[place]] = kept[place]
        return super().tokens(ids, shown)

    def row(self, ids: Sequence[int], place: int) -> Any:
        return self.rows[place - 1]

    def _choice(self, index: int, ids: list[int], asked: Json) -> Json:
        if asked.get("echo"):
            choice = super()._choice(index, ids, asked)
            if choice["logprobs"]:
                row = self.rows_of(list(ids), anew=self.echoes_anew, last=True)[-1]
                choice["logprobs"]["token_logprobs"][-1] = float(row.max())
            return choice
        text, names, values = list(ids), [], []
        for _ in range(min(self.generates, asked["max_tokens"])):
            row = self.rows_of(text, last=True)[-1]
            token = int(np.argmax(row)) if self.chooses is None else self.chooses(row)
            text.append(token)
            names.append(self.decoder.convert_ids_to_tokens(token))
            values.append(float(row[token]))
        choice: Json = {"index": index, "text": "".join(names), "finish_reason": "length"}
        shown = asked.get("logprobs") and self.shape != "tgi"
        logprobs = {"tokens": names, "token_logprobs": values, "top_logprobs": None}
        return {**choice, "logprobs": logprobs if shown else None}


def _mix(values: NDArray[np.float64], decay: float = 1.0) -> NDArray[np.float64]:
    """What tokens leave, summed over all up to each one, the nearer the more."""
    places = np.arange(len(values))
    back = np.maximum(places[:, None] - places[None, :], 0)
    mixed: NDArray[np.float64] = np.tril((1.0 + back) ** -decay) @ values
    return mixed


def client_arguments(url: str, tokenizer: Path, **more: Any) -> dict[str, Any]:
    """model_args by which lm-eval's client asks a server that signs as "served"."""
    return {
        "base_url": url,
        "model": "served",
        "tokenizer": str(tokenizer),
        "tokenizer_backend": "huggingface",
        "max_retries": 1,
        **more,
    }


@contextmanager
def serving(stub: Stub) -> Iterator[str]:
    """Run a stub; yields the URL of its completions (of SGLang: of its own endpoint)."""
    handler = type("Handler", (_Handler,), {"stub": stub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    paths = {"sglang": "generate", "chat": "v1/chat/completions"}
    path = paths.get(stub.shape, "v1/completions")
    try:
        yield f"http://127.0.0.1:{server.server_port}/{path}"
    finally:
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    stub: Stub
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.stub.lock:
            self.stub.asked.append(asked)
            answer = self.stub.answer(asked)
        if self.stub.edit is not None:
            answer = self.stub.edit(self.stub, asked, answer)
        status, headers, body = (self.stub.reply or send_json)(self.stub, asked, answer)
        if status == 0:  # it dies over the request
            self.close_connection = True
            self.connection.close()
            return
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        if self.path == "/metrics" and "hits" in self.stub.notes:
            text = (
                "# TYPE vllm:prefix_cache_hits_total counter\n"
                f'vllm:prefix_cache_hits_total{{engine="0"}} {float(self.stub.notes["hits"])}\n'
                'vllm:prefix_cache_hits_created{engine="0"} 1.79e+09\n'
            ).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)
            return
        if self.path == "/v1/models" and "model" in self.stub.notes:
            body = json.dumps({"data": [{"id": self.stub.notes["model"]}]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return
        self.send_error(404)

    def log_message(self, *_: Any) -> None:
        pass


def send_json(_stub: Stub, _asked: Json, answer: Json) -> tuple[int, Mapping[str, str], bytes]:
    """Send an answer as it is."""
    return 200, {}, json.dumps(answer).encode()
