"""How much a server reads is asked of it, and nothing is cut to nothing on the way to it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from served_stubs import Stub

from evalguard.core.scorer import Request, ScoringPolicy
from evalguard.errors import EvaluationError
from evalguard.models.lm_scorer import LMScorer
from evalguard.models.loading import load_lm
from evalguard.models.served.server_facts import read_context_length

WORDS = "mara carried the lantern down to the harbour because the fog had come in early "


@contextmanager
def telling(stub: Stub, pages: dict[str, Any]) -> Iterator[str]:
    """A stub that has pages about itself; yields its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.say(pages.get(self.path), 200 if self.path in pages else 404)

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with stub.lock:
                stub.asked.append(asked)
                answer = stub.answer(asked)
            self.say(answer, 200)

        def say(self, what: Any, status: int) -> None:
            text = json.dumps(what).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


Opening = Callable[..., tuple[LMScorer, Stub]]


@pytest.fixture
def open_served(tiny_llama: Path) -> Iterator[Opening]:
    with ExitStack() as stack:

        def opened(
            pages: dict[str, Any] | None = None,
            *,
            shape: str = "vllm",
            path: str = "/v1/completions",
            kind: str = "local-completions",
            most: int | None = None,
            **arguments: Any,
        ) -> tuple[LMScorer, Stub]:
            stub = Stub(tokenizer=tiny_llama, shape=shape)
            root = stack.enter_context(telling(stub, pages or {}))
            given = {"base_url": root + path, "model": "served", "max_retries": 1, **arguments}
            if "chat" not in kind:
                given |= {"tokenizer": str(tiny_llama), "tokenizer_backend": "huggingface"}
            policy = ScoringPolicy(max_gen_toks=most)
            lm = load_lm(kind, given, {}, policy, trust_remote_code=False, allow_pickle=False)
            return LMScorer(lm, policy, model_type=kind, model_args=given), stub

        yield opened


def generating(text: str = WORDS, **options: Any) -> Request:
    return Request(
        task="t", doc_id=3, index=0, kind="generate_until",
        arguments=(text, {"until": ["."], **options}),
    )  # fmt: skip


def models(**entry: Any) -> dict[str, Any]:
    return {"data": [{"id": "other", "max_model_len": 7}, {"id": "served", **entry}]}


TELLING: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "vLLM": ({"/v1/models": models(max_model_len=300)}, {}),
    "a hosted service": ({"/v1/models": models(context_length=300)}, {}),
    "llama.cpp": ({"/props": {"default_generation_settings": {"n_ctx": 300, "id": 1}}}, {}),
    "SGLang": (
        {"/v1/models": models(max_model_len=300), "/get_server_info": {"context_length": None}},
        {"path": "/generate", "kind": "sglang-generate"},
    ),
    "SGLang, with a flag": (
        {"/get_server_info": {"context_length": 300, "max_req_input_len": 294}},
        {"path": "/generate", "kind": "sglang-generate"},
    ),
    "TGI": ({"/info": {"max_input_tokens": 250, "max_total_tokens": 300}}, {}),
    "an adapter": (
        {
            "/v1/models": {
                "data": [{"id": "whole", "max_model_len": 300}, {"id": "served", "parent": "whole"}]
            }
        },
        {},
    ),
    "two pages": (
        {"/v1/models": models(max_model_len=4096), "/info": {"max_total_tokens": 300}}, {}
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TELLING)
def test_the_context_length_is_asked_of_the_server(name: str, open_served: Opening) -> None:
    pages, more = TELLING[name]
    scorer, _ = open_served(pages, **more)
    described = scorer.describe()
    assert described.max_length == 299  # one place is the generated token's
    assert not [one for one in described.caveats if "tokens" in one]


def test_a_length_that_is_unknown_is_said_once_with_what_to_write(open_served: Opening) -> None:
    scorer, _ = open_served()
    (said,) = [one for one in scorer.describe().caveats if "lm-eval's 2,048" in one]
    assert "model_args: {max_length: N}" in said
    given, _ = open_served(max_length=512)
    assert given.describe().max_length == 511
    assert not [one for one in given.describe().caveats if "lm-eval's" in one]


def test_a_chat_endpoint_is_sent_whole_conversations_whatever_it_reads(
    open_served: Opening,
) -> None:
    scorer, _ = open_served(kind="local-chat-completions", path="/v1/chat/completions")
    assert not [one for one in scorer.describe().caveats if "lm-eval's" in one]


def test_a_smaller_length_that_is_given_stays_and_a_larger_one_does_not(
    open_served: Opening,
) -> None:
    pages = {"/v1/models": models(max_model_len=300)}
    assert open_served(pages, max_length=100)[0].describe().max_length == 99
    larger, _ = open_served(pages, max_length=301)
    assert larger.describe().max_length == 299
    (said,) = larger.describe().caveats
    assert said == "model_args.max_length is 301, and the server reads 300: 300 count"


@pytest.mark.parametrize("value", [0, 1, -5, True, "4096", 300.0, None, {"n": 1}, [300]])
def test_what_is_no_length_is_none(value: Any) -> None:
    assert read_context_length({"/models": {"max_model_len": value}}) is None
    assert read_context_length({"/models": value}) is None


NO_ROOM: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "the whole context": ({"max_gen_toks": 63}, {}),
    "more than the context": ({"max_gen_toks": 1000}, {}),
    "a little more": ({"max_gen_toks": 65}, {}),
    "by another name": ({"max_tokens": 80}, {}),
    "by Hugging Face's name": ({"max_new_tokens": 80}, {}),
    "the client's own": ({}, {"arguments": {"max_gen_toks": 70}}),
    "lm-eval's own, 256": ({}, {}),
    "short for the task, long for the client": (
        {"max_tokens": 8}, {"arguments": {"max_gen_toks": 70}}
    ),
}  # fmt: skip


@pytest.mark.parametrize("concurrent", [1, 4])
@pytest.mark.parametrize("name", NO_ROOM)
def test_a_prompt_that_would_be_cut_to_nothing_is_refused_before_anything_is_asked(
    name: str, concurrent: int, open_served: Opening
) -> None:
    options, more = NO_ROOM[name]
    arguments = {"max_length": 64, "num_concurrent": concurrent, **more.get("arguments", {})}
    scorer, stub = open_served(**arguments)
    for ask in (scorer.probe, scorer.score):
        with pytest.raises(EvaluationError, match="leaves no room for a context") as error:
            ask([generating(**options)])
        assert "--max-gen-toks" in error.value.hint
        assert "max_length" in error.value.hint
    assert stub.asked == []


def test_the_length_that_a_server_tells_leaves_no_room_either(open_served: Opening) -> None:
    pages = {"/v1/models": models(max_model_len=64)}
    for kind in ("local-completions", "local-chat-completions"):
        scorer, stub = open_served(pages, kind=kind)
        with pytest.raises(EvaluationError, match="leaves no room for a context"):
            scorer.score([generating(max_gen_toks=63)])
        assert stub.asked == []


def test_a_shorter_answer_leaves_room(open_served: Opening) -> None:
    scorer, stub = open_served(max_length=64, most=8)
    (told,) = scorer.score([generating(max_gen_toks=1000)])
    assert not told.truncated
    assert stub.asked[-1]["max_tokens"] == 8


@pytest.mark.parametrize(
    ("options", "more", "room"),
    [({"max_gen_toks": 50}, {}, 13), ({}, {"max_gen_toks": 40}, 23), ({"max_gen_toks": 62}, {}, 1)],
)
def test_a_prompt_that_is_cut_in_part_is_said_to_be(
    options: dict[str, Any], more: dict[str, Any], room: int, open_served: Opening
) -> None:
    scorer, stub = open_served(max_length=64, **more)
    (told,) = scorer.score([generating(WORDS * 4, **options)])
    assert told.truncated
    assert told.n_tokens == room == len(stub.asked[-1]["prompt"][0])


@pytest.mark.parametrize("concurrent", [1, 4])
def test_a_continuation_that_leaves_no_context_is_refused_with_its_document(
    concurrent: int, open_served: Opening
) -> None:
    scorer, stub = open_served(max_length=32, num_concurrent=concurrent)
    request = Request(
        task="t", doc_id=5, index=0, kind="loglikelihood", arguments=("the fog", " " + WORDS * 4)
    )
    with pytest.raises(EvaluationError, match=r"task 't', document 5.*leaves no context"):
        scorer.score([request])
    before = len(stub.asked)  # by the probe
    with pytest.raises(EvaluationError, match="leaves no context"):
        scorer.score([request])
    assert len(stub.asked) == before
