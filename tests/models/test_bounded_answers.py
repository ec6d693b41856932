"""Answers of servers are bounded in size and time, and what goes wrong is told in words."""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from completion_server import CompletionServer

from evalguard.core.scorer import Request, ScoringPolicy
from evalguard.errors import EvaluationError, UsageError
from evalguard.models.lm_scorer import LMScorer
from evalguard.models.loading import load_lm
from evalguard.models.served import exchange, probe
from evalguard.models.served.exchange import ask_server, check_address, explain_exchange

REQUESTS = [
    Request(task="t", doc_id=0, index=0, kind="generate_until",
            arguments=("the fog", {"until": ["."], "max_gen_toks": 4}))
]  # fmt: skip


@pytest.fixture
def server() -> Iterator[CompletionServer]:
    made = CompletionServer().start()
    yield made
    made.stop()


@pytest.fixture
def client(tiny_llama: Path) -> Callable[..., Any]:
    def made(url: str, **more: Any) -> Any:
        arguments = {
            "base_url": url, "model": "served", "max_length": 48, "tokenizer": str(tiny_llama),
            "tokenizer_backend": "huggingface", "num_concurrent": 1, "max_retries": 1, **more,
        }  # fmt: skip
        return load_lm(
            "local-completions", arguments, {}, ScoringPolicy(batch_size=1),
            trust_remote_code=False, allow_pickle=False,
        )  # fmt: skip

    return made


def told(lm: Any) -> EvaluationError:
    """What scoring says of a server that gives no answer."""
    scorer = LMScorer(lm, ScoringPolicy(batch_size=1), model_type="local-completions")
    try:
        with pytest.raises(EvaluationError) as error:
            scorer.score(REQUESTS)
    finally:
        scorer.close()
    return error.value


# The server's hook sees only what asks as scores are asked for.
AS_SCORES = {"User-Agent": "aiohttp"}


def asked(url: str, **more: Any) -> Any:
    return SimpleNamespace(
        base_url=url, header=AS_SCORES, ca_cert_path=None, verify_certificate=True, **more
    )


async def endless(_: CompletionServer, request: web.Request, __: Any) -> web.Response:
    answer = web.StreamResponse()
    await answer.prepare(request)
    try:
        while True:
            await answer.write(b" " * 2**16)
    except (ConnectionError, asyncio.CancelledError):
        return answer  # type: ignore[return-value]


async def dripping(_: CompletionServer, request: web.Request, __: Any) -> web.Response:
    answer = web.StreamResponse()
    await answer.prepare(request)
    try:
        while True:
            await answer.write(b" ")
            await asyncio.sleep(0.05)
    except (ConnectionError, asyncio.CancelledError):
        return answer  # type: ignore[return-value]


async def nested(*_: Any) -> web.Response:
    return web.Response(text="[" * 200_000 + "]" * 200_000, content_type="application/json")


async def cut(_: CompletionServer, request: web.Request, __: Any) -> web.Response:
    answer = web.StreamResponse(headers={"Content-Length": "1000"})
    await answer.prepare(request)
    await answer.write(b'{"choices": [')
    assert request.transport is not None
    request.transport.close()
    return answer  # type: ignore[return-value]


FAULTS: dict[str, tuple[Any, str]] = {
    "an answer that never ends": (endless, "has more than 1 MiB"),
    "a byte now and then": (dripping, r"no answer within 2 s \(model_args.timeout\)"),
    "JSON nested without end": (nested, "nested too deeply"),
    "half an answer": (cut, "in the middle of an answer"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_server_is_given_up_in_bounded_time_and_space(
    fault: str, server, client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "MOST_BYTES", 2**20)
    server.hook, words = FAULTS[fault]
    error = told(client(server.url, timeout=2))
    assert error.hint
    with pytest.raises(EvaluationError, match=words):
        raise error


LOST = (RecursionError, aiohttp.ClientPayloadError)


@pytest.mark.parametrize("fault", FAULTS)
def test_one_question_is_bounded_as_well(
    fault: str, server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "MOST_BYTES", 2**20)
    server.hook, words = FAULTS[fault]
    payload = {"model": "m", "prompt": [[1, 2]], "max_tokens": 4, "temperature": 0, "seed": 1}
    with pytest.raises((EvaluationError, TimeoutError, ValueError, *LOST)) as raised:
        json.loads(ask_server(asked(server.url), server.url, payload=payload, seconds=2).text)
    assert re.search(words, str(explain_exchange(raised.value, seconds=2)))


def test_a_notebook_can_ask(server) -> None:
    async def cell() -> int:
        return ask_server(asked(server.url), server.url, seconds=60).status

    assert asyncio.run(cell()) in (404, 405)


KEY = {"Authorization": "Bearer sk-1234567890abcdef"}
ADDRESS = "http://me:hunter2secret@127.0.0.1:9/v1/completions"


def test_a_password_in_the_address_and_a_key_are_refused_and_neither_is_shown(
    client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1234567890abcdef")
    with pytest.raises(UsageError, match="user and password, and a key") as error:
        LMScorer(client(ADDRESS), ScoringPolicy(), model_type="local-completions")
    shown = f"{error.value} {error.value.hint}"
    assert "hunter2secret" not in shown
    assert "sk-1234567890abcdef" not in shown


def test_either_of_them_is_sent(server) -> None:
    seen = []

    async def note(_: CompletionServer, request: web.Request, __: Any) -> web.Response:
        seen.append(request.headers.get("Authorization"))
        return web.Response(text="{}")

    server.hook = note
    payload = {"model": "m", "prompt": [[1, 2]], "max_tokens": 4, "temperature": 0, "seed": 1}
    with_password = server.url.replace("http://", "http://me:pass@")
    for url, header in ((server.url, KEY), (with_password, {"Authorization": "Bearer "})):
        lm = asked(url)
        lm.header = {**AS_SCORES, **header}
        check_address(lm)
        ask_server(lm, url, payload=payload, seconds=60)
    assert seen == [KEY["Authorization"], "Basic bWU6cGFzcw=="]


ERRORS: dict[str, tuple[BaseException, str]] = {
    "time": (TimeoutError(), "no answer within 7 s"),
    "recursion": (RecursionError("maximum depth"), "nested too deeply"),
    "no JSON": (json.JSONDecodeError("Expecting value", "x", 0), "is not JSON, or was cut"),
    "half an answer": (asyncio.IncompleteReadError(b"x", 9), "in the middle of an answer"),
    "a broken chunk": (aiohttp.ClientPayloadError("chunk"), "in the middle of an answer"),
    "a certificate": (ssl.SSLCertVerificationError("self-signed"), "no secure connection"),
    "no address": (aiohttp.InvalidURL("x"), "base_url is no address"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_what_libraries_raise_is_a_sentence_with_a_hint(name: str) -> None:
    error, words = ERRORS[name]
    told = explain_exchange(error, seconds=7)
    assert words in str(told)
    assert told.hint


def test_the_probe_tries_again_what_passes(server, client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: None)
    broken = [cut, lambda *_: _half(), lambda *_: _busy()]

    async def at_first(*given: Any) -> web.Response | None:
        return await broken.pop()(*given) if broken else None

    lm = client(server.url, max_retries=4)
    lm.header = AS_SCORES
    server.hook = at_first
    payload = {"model": "m", "prompt": [[5, 6]], "max_tokens": 4, "temperature": 0, "seed": 1}
    assert "choices" in probe._post(lm, payload)  # a probe of its own asks too much to count tries
    assert not broken


async def _half() -> web.Response:
    return web.Response(text='{"choices": [', content_type="application/json")


async def _busy() -> web.Response:
    return web.Response(status=503, text="warming up")
