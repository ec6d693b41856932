"""Chat requests to a server: what it is sent, and what its answers become."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from chat_server import ChatServer, call, serving

from evalguard.config.inline_models import inline_variant
from evalguard.core.chat import ChatRequest
from evalguard.core.scorer import Request, Response, ScoringPolicy
from evalguard.errors import EvaluationError, UsageError
from evalguard.models.lm_scorer import LMScorer
from evalguard.models.loading import load_lm
from evalguard.models.served.exchange import BrokenStreamError, join_stream

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL: Any = {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}
SAY: Any = {"role": "user", "content": "Weather in Paris?"}


def request(number: int = 0, **given: Any) -> Request:
    made = ChatRequest(**{"messages": (SAY,), **given})
    return Request(
        task="calls", doc_id=number, index=0, kind="generate_until", arguments=made.arguments
    )


@pytest.fixture
def opened() -> Iterator[Callable[[ChatServer], LMScorer]]:
    with ExitStack() as stack:

        def open_server(server: ChatServer, **more: Any) -> LMScorer:
            stack.enter_context(serving(server))
            variant = inline_variant(
                server.url, model="hf", model_args=more, cwd=Path.cwd(), chat=True
            )
            policy = ScoringPolicy()
            lm = load_lm(
                variant.model,
                variant.model_args,
                {},
                policy,
                trust_remote_code=False,
                allow_pickle=False,
            )
            scorer = LMScorer(lm, policy, model_type=variant.model)
            stack.callback(scorer.close)
            return scorer

        yield open_server


def message(response: Response) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(response.message)
    return found


ANSWERS: dict[str, Mapping[str, Any]] = {
    "valid": call("get_weather", '{"city": "Paris, 18°"}'),
    "wrong name": call("get_wether", '{"city": "Paris"}'),
    "wrong type": call("get_weather", '{"city": 3}'),
    "broken": call("get_weather", '{"city": '),
    "missing": {"role": "assistant", "content": "It is warm."},
    "extra text": {**call("get_weather", '{"city": "Paris"}'), "content": "Let me look."},
    "thought": {"role": "assistant", "content": "18", "reasoning_content": "It is in France."},
    "refused": {"role": "assistant", "content": None, "refusal": "I cannot say."},
}


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "in pieces"])
@pytest.mark.parametrize("kind", ANSWERS)
def test_an_answer_is_its_text_and_its_message(
    opened: Callable[..., LMScorer], kind: str, streams: bool
) -> None:
    given = ANSWERS[kind]
    scorer = opened(ChatServer(answer=lambda asked: given, streams=streams))
    (found,) = scorer.score([request(tools=(TOOL,))])
    assert found.text == (given["content"] or "")
    told = message(found)
    assert told.get("tool_calls") == given.get("tool_calls")
    assert told.get("reasoning_content") == given.get("reasoning_content")
    assert told.get("refusal") == given.get("refusal")
    assert told["finish_reason"] == ("tool_calls" if "tool_calls" in given else "stop")
    assert found.ended == "stop"


def test_a_request_is_sent_as_it_is_written(opened: Callable[..., LMScorer]) -> None:
    server = ChatServer(answer=lambda asked: None)
    history = (
        {"role": "developer", "content": "Be short."},
        SAY,
        call("get_weather", "{}"),
        {"role": "tool", "tool_call_id": "call-1", "content": "18"},
    )
    parameters = {"max_tokens": 9, "top_k": 4, "chat_template_kwargs": {"enable_thinking": False}}
    opened(server).score(
        [request(messages=history, tools=(TOOL,), tool_choice="auto", parameters=parameters)]
    )
    sent = server.asked[-1]
    assert sent["messages"] == list(history)
    assert sent["tools"] == [TOOL]
    assert sent["tool_choice"] == "auto"
    assert (sent["max_tokens"], sent["temperature"], sent["top_k"]) == (9, 0.0, 4)
    assert sent["chat_template_kwargs"] == {"enable_thinking": False}
    assert sent["model"] == "stub"
    assert "stop" not in sent
    assert not {"chat", "do_sample", "until"} & sent.keys()


def test_the_newer_name_of_the_length_is_sent_where_it_is_written(
    opened: Callable[..., LMScorer],
) -> None:
    server = ChatServer(answer=lambda asked: None)
    opened(server).score([request(parameters={"max_completion_tokens": 5, "seed": 7})])
    assert server.asked[-1]["max_completion_tokens"] == 5
    assert server.asked[-1]["seed"] == 7
    assert "max_tokens" not in server.asked[-1]


def test_a_server_without_stop_reasons_does_not_say_what_was_cut(
    opened: Callable[..., LMScorer],
) -> None:
    scorer = opened(ChatServer(answer=lambda asked: None, reasons=False))
    (found,) = scorer.score([request()])
    assert (found.ended, found.message) == ("", "")


@pytest.mark.parametrize("status", [400, 422, 501])
def test_a_server_that_refuses_tools_is_told_from_one_that_answers_nothing(
    opened: Callable[..., LMScorer], status: int
) -> None:
    scorer = opened(ChatServer(answer=lambda asked: status if "tools" in asked else None))
    with pytest.raises(EvaluationError, match="refuses requests with tools") as error:
        scorer.score([request(), request(1, tools=(TOOL,))])
    assert "--enable-auto-tool-choice" in error.value.hint
    silent = opened(ChatServer(answer=lambda asked: 400))
    with pytest.raises(EvaluationError, match="HTTP 400"):
        silent.score([request(tools=(TOOL,))])


def test_one_request_that_is_refused_names_its_document(opened: Callable[..., LMScorer]) -> None:
    def answer(asked: Mapping[str, Any]) -> int | None:
        return 400 if asked["messages"][-1]["content"] == "too much" else None

    bad: Any = {"role": "user", "content": "too much"}
    scorer = opened(ChatServer(answer=answer))
    with pytest.raises(EvaluationError, match="task 'calls', document 1: the server refuses: 400"):
        scorer.score([request(), request(1, messages=(bad,))])


def test_the_one_model_of_a_server_need_not_be_named(opened: Callable[..., LMScorer]) -> None:
    with pytest.raises(UsageError, match="lists 2: a, b") as error:
        opened(ChatServer(answer=lambda asked: None, names=("a", "b")))
    assert "model=NAME" in error.value.hint
    with pytest.raises(UsageError, match="lists none"):
        opened(ChatServer(answer=lambda asked: None, names=()))
    named = opened(ChatServer(answer=lambda asked: None, names=("a", "b")), model="b")
    assert named.score([request()])[0].text == "to Weather in Paris?"


@pytest.mark.parametrize(
    ("typed", "model", "url", "name"),
    [
        ("http://h:1", "hf", "http://h:1/v1/chat/completions", "h:1"),
        ("http://h:1/v1/", "hf", "http://h:1/v1/chat/completions", "h:1"),
        ("http://h:1/v1/chat/completions", "hf", "http://h:1/v1/chat/completions", "h:1"),
        (
            "https://user:word@h/api/v1",
            "hf",
            "https://user:word@h/api/v1/chat/completions",
            "h/api",
        ),
        ("http://h:1/v1/completions", "hf", "http://h:1/v1/completions", "h:1"),
        ("http://h:1/v1", "local-completions", "http://h:1/v1/completions", "h:1"),
        ("http://h:1/generate", "sglang-generate", "http://h:1/generate", "h:1/generate"),
    ],
)
def test_an_address_leads_to_the_endpoint(typed: str, model: str, url: str, name: str) -> None:
    found = inline_variant(typed, model=model, model_args={}, cwd=Path.cwd(), chat=True)
    assert found.model_args == {"base_url": url}
    assert found.name == name
    chat = "chat-" if "chat" in url else ""
    assert found.model == (f"local-{chat}completions" if model == "hf" else model)


@pytest.mark.parametrize("typed", ["http://h:1", "http://h:1/v1", "http://h:1/v1/completions"])
def test_an_address_is_asked_for_completions_where_nothing_is_put_as_a_conversation(
    typed: str,
) -> None:
    found = inline_variant(typed, model="hf", model_args={}, cwd=Path.cwd())
    assert found.model == "local-completions"
    assert found.model_args == {"base_url": "http://h:1/v1/completions"}
    whole = inline_variant(
        "http://h:1/v1/chat/completions", model="hf", model_args={}, cwd=Path.cwd()
    )
    assert whole.model == "local-chat-completions"


def test_openais_own_address_is_asked_as_openai_wants_it() -> None:
    found = inline_variant("https://api.openai.com/v1", model="hf", model_args={}, cwd=Path.cwd())
    assert found.model == "openai-chat-completions"
    named = "https://api.openai.com/v1/completions"
    found = inline_variant(named, model="hf", model_args={}, cwd=Path.cwd())
    assert (found.model, dict(found.model_args)) == ("openai-completions", {"base_url": named})


@pytest.mark.parametrize("typed", ["http://", "http://h:port/v1"])
def test_what_is_no_address_is_refused(typed: str) -> None:
    with pytest.raises(UsageError, match=r"address|names no server"):
        inline_variant(typed, model="hf", model_args={}, cwd=Path.cwd())


def test_an_address_without_its_scheme_is_led_to_it() -> None:
    with pytest.raises(UsageError) as error:
        inline_variant("127.0.0.1:8000", model="hf", model_args={}, cwd=Path.cwd())
    assert error.value.hint == "a server is http://HOST:PORT/v1"


def events(*pieces: Any) -> str:
    return "".join(f"data: {json.dumps(piece)}\n\n" for piece in pieces)


def piece(reason: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}


def test_pieces_of_two_calls_are_put_together_by_their_index() -> None:
    def part(index: int, arguments: str, **more: Any) -> dict[str, Any]:
        return {"index": index, "function": {"arguments": arguments, **more}}

    found = join_stream(
        events(
            piece(role="assistant", content=""),
            piece(tool_calls=[part(0, '{"a"', name="f"), part(1, "{", name="g")]),
            piece(tool_calls=[part(1, "}")]),
            piece(tool_calls=[part(0, ": 1}")]),
            piece("tool_calls"),
        )
    )
    calls = found["choices"][0]["message"]["tool_calls"]
    assert [one["function"] for one in calls] == [
        {"name": "f", "arguments": '{"a": 1}'},
        {"name": "g", "arguments": "{}"},
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (events(piece(content="It")), "ends before its answer does"),
        (events(piece(content="It"), {"error": {"message": "out of memory"}}), "out of memory"),
        ("data: [DONE]\n\n", "has no answer in it"),
        (": ping\n\n", "has no answer in it"),
    ],
)
def test_a_stream_that_does_not_end_is_no_answer(text: str, told: str) -> None:
    with pytest.raises(BrokenStreamError, match=told):
        join_stream(text)


def test_a_server_need_not_say_done_nor_why() -> None:
    assert join_stream(events(piece(content="a"), piece("stop")))["choices"][0]["message"]
    found = join_stream(events(piece(content="a")) + "data: [DONE]\n\n")
    assert "finish_reason" not in found["choices"][0]
