"""A served model is asked what lm-eval asks, as many at a time as it may be, and kept to it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from completion_server import CompletionServer

from evalguard.core.scorer import Request, RequestKind, Response, ScoringPolicy
from evalguard.errors import EvaluationError
from evalguard.models.lm_scorer import LMScorer
from evalguard.models.loading import load_lm

# On a busy machine connections of an earlier test's server are collected while another test runs.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

GREEDY = {"until": ["."], "max_gen_toks": 4}
SAMPLED = {"until": ["\n"], "max_gen_toks": 6, "temperature": 0.7, "do_sample": True}
LONG = "mara carried the lantern down to the harbour because the fog had come in early " * 8


@pytest.fixture
def server() -> Iterator[CompletionServer]:
    made = CompletionServer().start()
    yield made
    made.stop()


@pytest.fixture
def load(tiny_llama: Path) -> Iterator[Callable[..., LMScorer]]:
    """Load a client; its queue is closed in the end."""
    opened: list[LMScorer] = []

    def made(url: str, kind: str = "local-completions", size: int = 1, **more: Any) -> LMScorer:
        policy = ScoringPolicy(batch_size=size)
        scorer = LMScorer(client(kind, url, tiny_llama, size, **more), policy, model_type=kind)
        opened.append(scorer)
        return scorer

    yield made
    for one in opened:
        one.close()


def client(kind: str, url: str, tokenizer: Path, size: int = 1, **more: Any) -> Any:
    arguments: dict[str, Any] = {"base_url": url, "model": "served", "max_length": 48, **more}
    if kind == "local-completions":
        arguments |= {"tokenizer": str(tokenizer), "tokenizer_backend": "huggingface"}
    return load_lm(
        kind, arguments, {}, ScoringPolicy(batch_size=size),
        trust_remote_code=False, allow_pickle=False,
    )  # fmt: skip


def requests_of(kind: RequestKind, number: int = 7, task: str = "t") -> list[Request]:
    arguments: dict[RequestKind, Callable[[int], tuple[Any, ...]]] = {
        "loglikelihood": lambda n: (
            ("", " fog came") if n == 3 else ((LONG if n == 2 else f"the fog {n} "), f" came {n}")
        ),
        "loglikelihood_rolling": lambda n: (LONG if n == 2 else f"a lantern {n} in the fog",),
        "generate_until": lambda n: (
            LONG if n == 2 else f"harbour {n}",
            SAMPLED if n % 2 else GREEDY,
        ),
    }
    return [
        Request(task=task, doc_id=n, index=0, kind=kind, arguments=arguments[kind](n))
        for n in range(number)
    ]


def lm_evals_own(lm: Any, requests: Sequence[Request]) -> list[Any]:
    """Answers of lm-eval's own method."""
    from lm_eval.api.instance import Instance

    kind = requests[0].kind
    instances = [
        Instance(request_type=kind, doc={}, arguments=one.arguments, idx=0, metadata=("t", n, 1))
        for n, one in enumerate(requests)
    ]
    return list(getattr(lm, kind)(instances))


def values(told: Sequence[Response], kind: RequestKind) -> list[Any]:
    if kind == "generate_until":
        return [one.text for one in told]
    if kind == "loglikelihood":
        return [(one.loglikelihood, one.is_greedy) for one in told]
    return [one.loglikelihood for one in told]


def sorted_payloads(payloads: Sequence[dict[str, Any]]) -> list[str]:
    return sorted(json.dumps(one, sort_keys=True) for one in payloads)


@pytest.mark.parametrize("concurrent", [1, 4])
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("kind", ["loglikelihood", "loglikelihood_rolling", "generate_until"])
def test_a_server_gets_what_lm_eval_sends_and_its_answers_are_lm_evals(
    kind: RequestKind, size: int, concurrent: int, server, load, tiny_llama: Path
) -> None:
    requests = requests_of(kind)
    more = {"num_concurrent": concurrent, "add_bos_token": True}
    theirs = lm_evals_own(
        client("local-completions", server.url, tiny_llama, size, **more), requests
    )
    sent = sorted_payloads(server.asked + server.others)
    server.asked.clear()
    told = load(server.url, size=size, **more).score(requests)
    assert values(told, kind) == theirs
    assert sorted_payloads(server.asked) == sent
    assert all(one.token_hash for one in told)


def test_a_conversation_is_sent_as_lm_eval_sends_it(server, load, tiny_llama: Path) -> None:
    kind = "local-chat-completions"
    own = client(kind, server.chat_url, tiny_llama, num_concurrent=3)
    talks = [[{"role": "user", "content": f"where is the fog, {n}?"}] for n in range(4)]
    theirs = lm_evals_own(
        own,
        [
            Request(
                task="t",
                doc_id=n,
                index=0,
                kind="generate_until",
                arguments=(own.apply_chat_template(talk), GREEDY),  # type: ignore[arg-type]
            )
            for n, talk in enumerate(talks)
        ],
    )
    sent = sorted_payloads(server.asked)
    server.asked.clear()
    scorer = load(server.chat_url, kind, num_concurrent=3)
    told = scorer.score(
        [
            Request(
                task="t",
                doc_id=n,
                index=0,
                kind="generate_until",
                arguments=(scorer.render_chat(talk, True), GREEDY),
            )
            for n, talk in enumerate(talks)
        ]
    )
    assert [one.text for one in told] == theirs
    assert sorted_payloads(server.asked) == sent


def test_as_many_are_in_flight_as_may_be_across_blocks_kinds_and_arguments(server, load) -> None:
    # Nobody gets an answer until as many ask as may, or nobody else is left.
    concurrent, blocks = 5, []
    for task in ("one", "two"):
        for kind in ("loglikelihood", "generate_until"):
            requests = requests_of(kind, 6, task)
            blocks += [requests[:3], requests[3:]]
    total = sum(map(len, blocks))

    async def hold(server: CompletionServer, *_: Any) -> None:
        await server.until(lambda: server.in_flight >= concurrent or len(server.asked) == total)

    server.hook = hold
    scorer = load(server.url, num_concurrent=concurrent)
    scorer.ask_ahead(blocks)
    told = [scorer.score(block) for block in blocks]
    assert [len(of) for of in told] == [3] * 8
    assert server.peak == concurrent
    assert len(server.asked) == total


def test_what_was_asked_ahead_is_not_asked_again(server, load) -> None:
    scorer = load(server.url, num_concurrent=4)
    requests = requests_of("generate_until")
    scorer.ask_ahead([requests])
    assert scorer.score(requests) == scorer.score(requests)
    assert len(server.asked) == len(requests)


def test_a_storm_of_429_is_outlasted(server, load) -> None:
    async def storm(server: CompletionServer, *_: Any) -> web.Response | None:
        if len(server.asked) > 30:
            return None
        return web.Response(status=429, headers={"Retry-After": "0"}, text="slow down")

    server.hook = storm
    requests = requests_of("generate_until", 12)
    told = load(server.url, num_concurrent=6, max_retries=2).score(requests)
    assert all(one.text for one in told)
    assert len(server.answered) == 12


def test_a_server_that_only_ever_refuses_is_given_up_with_its_words(server, load) -> None:
    async def refuse(*_: Any) -> web.Response:
        return web.Response(status=429, headers={"Retry-After": "1000"}, text="quota is used up")

    server.hook = refuse
    with pytest.raises(EvaluationError, match="quota is used up") as error:
        load(server.url, num_concurrent=2, timeout=5).score(requests_of("generate_until"))
    assert server.url in str(error.value)
    assert "task 't', document" in str(error.value)
    assert "num_concurrent" in error.value.hint


@pytest.mark.parametrize("fault", ["half a JSON", "500", "closed"])
def test_a_fault_that_passes_costs_another_try(fault: str, server, load) -> None:
    async def once(
        server: CompletionServer, request: web.Request, _: dict[str, Any]
    ) -> web.Response | None:
        if len(server.asked) > 1:
            return None
        if fault == "closed":
            assert request.transport is not None
            request.transport.close()
        if fault == "500":
            return web.Response(status=500, text="warming up")
        return web.Response(text='{"choices": [{"index": 0, "te', content_type="application/json")

    server.hook = once
    requests = requests_of("generate_until", 3)
    told = load(server.url, num_concurrent=1, max_retries=2).score(requests)
    assert len(told) == len(server.answered) == 3
    assert len(server.asked) == 4


def test_a_request_that_is_refused_is_named_at_its_block_and_the_others_stand(server, load) -> None:
    async def picky(
        _: CompletionServer, __: web.Request, asked: dict[str, Any]
    ) -> web.Response | None:
        wrong = asked["max_tokens"] == 6
        return web.Response(status=400, text="max_tokens is too large") if wrong else None

    server.hook = picky
    scorer = load(server.url, num_concurrent=1)
    requests = requests_of("generate_until", 8)
    first, second = requests[::2], requests[1::2]
    scorer.ask_ahead([first, second])
    assert len(scorer.score(first)) == 4
    with pytest.raises(
        EvaluationError, match=r"task 't', document 1: .*400 Bad Request\nmax_tokens is too large"
    ):
        scorer.score(second)
    assert len(server.asked) == 5


def test_a_server_that_dies_midway_is_an_error_of_the_first_block_that_it_owes(
    server, load
) -> None:
    scorer = load(server.url, num_concurrent=2, max_retries=1)
    requests = requests_of("generate_until", 8)
    assert len(scorer.score(requests[:4])) == 4
    server.stop()
    scorer.ask_ahead([requests[4:]])
    assert len(scorer.score(requests[:4])) == 4
    with pytest.raises(EvaluationError) as error:
        scorer.score(requests[4:])
    assert "is the server running" in error.value.hint


def test_answers_of_two_servers_behind_one_address_are_refused(server, load) -> None:
    async def another(server: CompletionServer, *_: Any) -> None:
        server.fingerprint = "fp_one" if len(server.asked) < 4 else "fp_two"

    server.hook = another
    with pytest.raises(EvaluationError, match="system_fingerprint was fp_one and is fp_two"):
        load(server.url).score(requests_of("generate_until"))


def test_a_server_that_comes_back_as_another_one_is_refused(server, load) -> None:
    server.facts = {"root": "weights-1"}

    async def restart(server: CompletionServer, request: web.Request, _: dict[str, Any]) -> None:
        if len(server.asked) == 3:
            server.facts = {"root": "weights-2"}
            assert request.transport is not None
            request.transport.close()

    server.hook = restart
    with pytest.raises(EvaluationError, match=r"restarted as another one.*weights-1.*weights-2"):
        load(server.url, max_retries=3).score(requests_of("generate_until"))


def test_a_key_is_sent_and_never_shown(server, load, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(_: CompletionServer, request: web.Request, __: dict[str, Any]) -> web.Response:
        return web.Response(status=401, text=f"wrong: {request.headers['Authorization']}")

    server.hook = refuse
    monkeypatch.setenv("OPENAI_API_KEY", "plainword1")
    with pytest.raises(EvaluationError, match="401 Unauthorized") as error:
        load(server.url).score(requests_of("generate_until"))
    assert "Bearer plainword1" in server.headers[0].values()
    assert "plainword1" not in f"{error.value} {error.value.hint}"
    assert "OPENAI_API_KEY" in error.value.hint


def test_nothing_is_sent_on_to_where_a_redirection_leads(server, load) -> None:
    elsewhere = CompletionServer().start()

    async def send_on(*_: Any) -> web.Response:
        return web.Response(status=307, headers={"Location": elsewhere.url})

    server.hook = send_on
    try:
        with pytest.raises(EvaluationError, match="307 Temporary Redirect"):
            load(server.url, header={"api-key": "plainword2"}).score(requests_of("generate_until"))
    finally:
        elsewhere.stop()
    assert elsewhere.asked == elsewhere.others == []


def test_a_notebook_which_has_an_event_loop_can_ask(server, load) -> None:
    scorer, requests = load(server.url), requests_of("loglikelihood_rolling", 3)

    async def cell() -> list[Response]:
        return list(scorer.score(requests))

    assert len(asyncio.run(cell())) == 3


def test_the_client_itself_is_never_changed_by_planning_what_it_will_send(
    server, tiny_llama: Path
) -> None:
    """An interruption cannot leave it half changed, then, and sending what was being planned."""
    lm = client("local-completions", server.url, tiny_llama)
    encode, seen = lm.tok_encode, []

    def encode_and_look(*arguments: Any, **options: Any) -> Any:
        seen.append(dict(vars(lm)))
        return encode(*arguments, **options)

    lm.tok_encode = encode_and_look
    before = dict(vars(lm))
    scorer = LMScorer(lm, ScoringPolicy(batch_size=1), model_type="local-completions")
    try:
        scorer.score(requests_of("loglikelihood"))
    finally:
        scorer.close()
    methods = {"get_batched_requests", "_loglikelihood_tokens", "tok_encode", "_concurrent"}
    assert len(seen) >= 7
    for during in seen:
        assert {n: during.get(n) for n in methods} == {n: before.get(n) for n in methods}


def test_closing_gives_up_what_is_in_flight(server, load) -> None:
    async def never(server: CompletionServer, *_: Any) -> None:
        await server.until(lambda: False)

    server.hook = never
    scorer = load(server.url, num_concurrent=4)
    scorer.ask_ahead([requests_of("generate_until")])
    scorer.close()  # a hang would run into the limit of all tests
    with pytest.raises(EvaluationError, match="closed"):
        scorer.score(requests_of("generate_until"))


def test_who_waits_for_a_server_can_be_ended_by_another_thread(server, load) -> None:
    asked = threading.Event()

    async def never(server: CompletionServer, *_: Any) -> None:
        asked.set()
        await server.until(lambda: False)

    server.hook = never
    scorer = load(server.url, num_concurrent=4)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(scorer.score, requests_of("generate_until"))
        assert asked.wait(300)
        scorer.interrupt()
        with pytest.raises(EvaluationError, match="given up"):
            waiting.result(timeout=300)


def test_who_was_ended_before_or_between_two_questions_asks_nothing_any_more(server, load) -> None:
    """Whenever another thread ends it: nobody waits for a sender that started after the end."""
    others = set(threading.enumerate())
    asked = requests_of("generate_until")
    early = load(server.url)
    early.interrupt()
    with pytest.raises(EvaluationError, match="given up"):
        early.score(asked)
    between = load(server.url)
    queue, arguments = between._submit(asked[:2])
    queue.wait(asked[:2], arguments)
    queue.close()
    later = requests_of("generate_until", task="u")
    queue.submit(later[:2], arguments)
    with pytest.raises(EvaluationError, match="given up"):
        queue.wait(later[:2], arguments)
    senders = [one for one in set(threading.enumerate()) - others if "evalguard" in one.name]
    for sender in senders:
        sender.join(60)
    assert not any(sender.is_alive() for sender in senders)
