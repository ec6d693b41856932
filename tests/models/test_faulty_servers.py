"""A faulty server is refused with the reason, or gives the scores that a sound one gives."""

from __future__ import annotations

import base64
import functools
import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from served_stubs import Edit, Reply, Stub, send_json, serving

from evalguard.core.scorer import Request, Response, ScoringPolicy
from evalguard.errors import EvalguardError, EvaluationError, UsageError
from evalguard.models.lm_scorer import LMScorer
from evalguard.models.loading import load_lm

TEXTS = [
    "mara carried the lantern down to harbour because",
    "fog had come in early nobody saw mara",
    "the fog had come down to harbour early",
    "nobody saw the lantern because fog had come",
]


def requests_of(kind: str, number: int = 4) -> list[Request]:
    options = {"until": ["."], "max_gen_toks": 4, "temperature": 0}
    arguments: dict[str, Callable[[str], tuple[Any, ...]]] = {
        "loglikelihood": lambda text: (text, " fog"),
        "loglikelihood_rolling": lambda text: (text,),
        "generate_until": lambda text: (text, options),
    }
    return [
        Request(task="t", doc_id=doc, index=0, kind=kind, arguments=arguments[kind](text))  # type: ignore[arg-type]
        for doc, text in enumerate(TEXTS[:number])
    ]


def ask_stub(
    tokenizer: Path,
    kind: str = "loglikelihood",
    *,
    model_type: str = "",
    batch_size: int = 2,
    arguments: dict[str, Any] | None = None,
    before: str = "",
    **stub: Any,
) -> list[Response]:
    """Score requests of one kind by a stub."""
    made = Stub(tokenizer=tokenizer, **stub)
    with serving(made) as url:
        given = {
            "base_url": url,
            "model": "served",
            "tokenizer": str(tokenizer),
            "tokenizer_backend": "huggingface",
            "max_retries": 2,
            **(arguments or {}),
        }
        model_type = model_type or (
            "sglang-generate" if made.shape == "sglang" else "local-completions"
        )
        policy = ScoringPolicy(batch_size=batch_size)
        lm = load_lm(model_type, given, {}, policy, trust_remote_code=False, allow_pickle=False)
        scorer = LMScorer(lm, policy, model_type=model_type)
        requests = [
            replace(one, arguments=(before + one.arguments[0], *one.arguments[1:]))
            for one in requests_of(kind)
        ]
        scorer.probe(requests)
        return scorer.score(requests)


@pytest.fixture
def ask(tiny_llama: Path) -> Callable[..., list[Response]]:
    return functools.partial(ask_stub, tiny_llama)


@pytest.fixture(scope="module")
def sound(tiny_llama: Path) -> dict[str, list[Response]]:
    """What a sound server's answers count as, by kind of request."""
    kinds = ("loglikelihood", "loglikelihood_rolling")
    return {kind: ask_stub(tiny_llama, kind) for kind in kinds}


def of_logprobs(change: Callable[[list[Any], list[Any]], tuple[Any, Any]]) -> Edit:
    """Change token_logprobs and top_logprobs of every choice."""

    def edit(_stub: Stub, _asked: Any, answer: Any) -> Any:
        for choice in answer["choices"]:
            logprobs = choice["logprobs"]
            if logprobs is not None:
                logprobs["token_logprobs"], logprobs["top_logprobs"] = change(
                    logprobs["token_logprobs"], logprobs["top_logprobs"]
                )
        return answer

    return edit


def scaled(factor: float) -> Edit:
    def change(values: list[Any], tops: list[Any]) -> tuple[Any, Any]:
        return (
            [None if one is None else one * factor for one in values],
            [None if one is None else {k: v * factor for k, v in one.items()} for one in tops],
        )

    return of_logprobs(change)


def all_the_same(value: float) -> Edit:
    return of_logprobs(
        lambda values, tops: ([None, *[value] * (len(values) - 1)], [{"x": value}] * len(tops))
    )


def with_number(make: Callable[[float], Any]) -> Edit:
    return of_logprobs(
        lambda values, tops: ([None if one is None else make(one) for one in values], tops)
    )


def not_echoing(_stub: Stub, _asked: Any, answer: Any) -> Any:
    for choice in answer["choices"]:
        choice["logprobs"] = {key: of[-1:] for key, of in choice["logprobs"].items()}
    return answer


def permuted(_stub: Stub, _asked: Any, answer: Any) -> Any:
    last = len(answer["choices"]) - 1
    for choice in answer["choices"]:
        choice["index"] = last - choice["index"]
    return answer


def exchanging(stub: Stub, asked: Any, answer: Any) -> Any:
    """Requests that are there at the same time get each other's answers, two by two.

    Those with the probe's first prompts come one by one; of others it asks two alone and then
    all four together.
    """
    with stub.lock:
        batch = len(asked["prompt"]) > 1
        stub.notes["since"] = 0 if batch else stub.notes.get("since", -9) + 1
        if stub.notes["since"] <= 2:
            return answer
        waiting = stub.notes.setdefault("waiting", [])
        partner = waiting.pop() if waiting else None
        mine: dict[str, Any] = {"answer": answer, "there": threading.Event()}
        if partner is None:
            waiting.append(mine)
    if partner is None:
        mine["there"].wait(300)
        return mine["answer"]
    theirs, partner["answer"] = partner["answer"], answer
    partner["there"].set()
    return theirs


def edited(change: Callable[[Any], Any]) -> Edit:
    return lambda _stub, _asked, answer: change(answer)


def sent(status: int, body: bytes = b"", **headers: str) -> Reply:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda _stub, _asked, _answer: (status, names, body)


def first_times(number: int, reply: Reply) -> Reply:
    """Let the first requests go wrong."""

    def replying(stub: Stub, asked: Any, answer: Any) -> Any:
        return (reply if len(stub.asked) <= number else send_json)(stub, asked, answer)

    return replying


def after(number: int, reply: Reply) -> Reply:
    def replying(stub: Stub, asked: Any, answer: Any) -> Any:
        return (send_json if len(stub.asked) <= number else reply)(stub, asked, answer)

    return replying


def with_usage(more: int) -> Edit:
    def change(answer: Any) -> Any:
        answer["usage"]["prompt_tokens"] += more
        return answer

    return edited(change)


def cut_without_a_word(stub: Stub, asked: Any, _answer: Any) -> Any:
    return stub.answer({**asked, "prompt": [ids[-4:] for ids in asked["prompt"]]})


def with_bos(stub: Stub, asked: Any, _answer: Any) -> Any:
    return stub.answer({**asked, "prompt": [[1, *ids] for ids in asked["prompt"]]})


def with_prompt_ids_of_bos(_stub: Stub, _asked: Any, answer: Any) -> Any:
    for choice in answer["choices"]:
        choice["prompt_token_ids"] = [1, *choice["prompt_token_ids"]]
    return answer


KEY = "sk-aaaa1111bbbb2222cccc3333"
HTML = b"<html><body>Welcome to nginx</body></html>"
BARE: dict[str, Any] = {"shape": "bare"}

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no echo": ({"edit": not_echoing}, "it ignores echo"),
    "shifted to the left": (
        {**BARE, "edit": of_logprobs(lambda v, t: ([*v[1:], -1.0], [*t[1:], {"x": -1.0}]))},
        "its list is shifted",
    ),
    "shifted to the right": (
        {
            **BARE,
            "edit": of_logprobs(
                lambda v, t: ([None, -1.0, *v[1:-1]], [None, {"x": -1.0}, *t[1:-1]])
            ),
        },
        "its list is shifted",
    ),
    "log-probabilities shifted against the most probable tokens": (
        {"edit": of_logprobs(lambda v, t: ([*v[1:], -1.0], t))},
        "not of the same position|its list is shifted",
    ),
    "without the last token": (
        {"edit": of_logprobs(lambda v, t: (v[:-1], t[:-1]))},
        "log-probabilities for a prompt of",
    ),
    "top-k only": ({"edit": of_logprobs(lambda v, t: (None, t))}, "only top_logprobs"),
    "no top-k": ({"edit": of_logprobs(lambda v, t: (v, None))}, "does not give the most probable"),
    "no log-probabilities at all (TGI)": ({"shape": "tgi"}, "token_logprobs is none"),
    "those of generated tokens, as for a chat (llama.cpp)": (
        {"shape": "llama.cpp"},
        "it ignores echo, and gives those of generated tokens only",
    ),
    "zeros": ({**BARE, "edit": all_the_same(0.0)}, "the log-probability 0, which says nothing"),
    "a constant": ({**BARE, "edit": all_the_same(-2.5)}, "-2.5, which says nothing"),
    "NaN": ({"edit": with_number(lambda _: float("nan"))}, "gave NaN"),
    "null": ({"edit": with_number(lambda _: None)}, "no log-probability for a token"),
    "text in place of numbers": ({"edit": with_number(str)}, "no log-probability for a token"),
    "true in place of numbers": ({"edit": with_number(lambda _: True)}, "no log-probability for"),
    "base64 in place of a list": (
        {
            "edit": of_logprobs(
                lambda v, t: (base64.b64encode(np.array(v[1:]).tobytes()).decode(), t)
            )
        },
        "token_logprobs is str",
    ),
    "logits": ({"edit": with_number(lambda one: one + 9.0)}, "is above 0: a probability above 1"),
    "logarithms to base 10": (
        {"edit": scaled(1.0 / np.log(10.0)), "arguments": {"top_logprobs": 5}},
        "not natural logarithms",
    ),
    "cut without a word": ({**BARE, "edit": cut_without_a_word}, "read something else than it was"),
    "cut, says its usage": ({"edit": with_usage(-3)}, "cuts prompts without saying so"),
    "more tokens than sent, says its usage": ({"edit": with_usage(1)}, "it adds some of its own"),
    "BOS of its own": ({**BARE, "edit": with_bos}, "it reads a token of its own, BOS say"),
    "BOS of its own, with ids": (
        {"shape": "vllm", "edit": with_prompt_ids_of_bos},
        "read token 1 before the",
    ),
    "another model": (
        {"edit": edited(lambda answer: {**answer, "model": "other"})},
        "asked for model 'served' and answers as 'other'",
    ),
    "a batch in another order": ({**BARE, "edit": permuted}, "the answer to another"),
    "a batch in another order, echoed": (
        {"edit": permuted},
        "answered another prompt|to another",
    ),
    "answers exchanged between requests": (
        {**BARE, "edit": exchanging, "arguments": {"num_concurrent": 4}},
        "at the same time, the server gives one the answer to another",
    ),
    "the first answer for every prompt": (
        {
            **BARE,
            "edit": lambda stub, _asked, answer: stub.notes.setdefault(
                len(answer["choices"]), answer
            ),
        },
        "two different prompts the same log-probabilities",
    ),
    "no choices": ({"edit": edited(lambda a: {**a, "choices": []})}, "has no choices"),
    "an error with status 200": (
        {"edit": edited(lambda _: {"error": {"message": f"no such model {KEY}"}})},
        "has no choices\nno such model [^s]",
    ),
    "a choice too many": (
        {"edit": edited(lambda a: {**a, "choices": [*a["choices"], {**a["choices"][0]}]})},
        "choices are numbered",
    ),
    "half a JSON": (
        {"reply": lambda _s, _q, answer: (200, {}, json.dumps(answer).encode()[:-20])},
        "is not JSON",
    ),
    "a page of HTML with status 200": (
        {"reply": sent(200, HTML, Content_Type="text/html")},
        r"is not JSON \(text/html\)(.|\n)*nginx",
    ),
    "a redirect": (
        {"reply": sent(307, Location="https://elsewhere/v1")},
        "to https://elsewhere/v1",
    ),
    "not found": ({"reply": sent(404, b"no such page")}, "HTTP 404\nno such page"),
    "unauthorised": ({"reply": sent(401, b"bad key")}, r"refuses the request \(HTTP 401\)"),
    "busy for ever": (
        {"reply": sent(429, b"slow down", Retry_After="0")},
        "HTTP 429, asked 2 times\nslow down",
    ),
    "dead from the start": ({"reply": sent(0)}, "closed the connection and gave no answer"),
    "dead midway": ({"reply": after(12, sent(0))}, "/v1/completions: task 't', document"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_faulty_server_is_refused_with_the_reason(name: str, ask: Any) -> None:
    stub, reason = REFUSED[name]
    with pytest.raises(EvaluationError, match=reason) as error:
        ask(**stub)
    assert error.value.hint
    assert KEY not in str(error.value)


SURVIVED: dict[str, dict[str, Any]] = {
    "it shows nothing but log-probabilities": BARE,
    "it shows the prompt's ids": {"shape": "vllm"},
    "it is SGLang": {"shape": "sglang"},
    "busy for a while": {"reply": first_times(1, sent(429, b"", Retry_After="0"))},
    "several requests at a time": {"arguments": {"num_concurrent": 4}},
    "one prompt at a time": {"batch_size": 1},
    "it shows more tokens": {"arguments": {"top_logprobs": 5}},
    "it counts nothing": {"edit": edited(lambda a: {**a, "usage": {"prompt_tokens": 0}})},
    "its choices come in another order": {
        "edit": edited(lambda a: {**a, "choices": a["choices"][::-1]})
    },
}


@pytest.mark.parametrize("kind", ["loglikelihood", "loglikelihood_rolling"])
@pytest.mark.parametrize("name", SURVIVED)
def test_a_sound_answer_counts_whatever_its_shape(
    name: str, kind: str, ask: Any, sound: dict[str, list[Response]]
) -> None:
    expected, found = sound[kind], ask(kind, **SURVIVED[name])
    assert [one.loglikelihood for one in found] == [one.loglikelihood for one in expected]
    assert [one.is_greedy for one in found] == [one.is_greedy for one in expected]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one.token_logprobs, other.token_logprobs)
        assert one.token_hash == other.token_hash != ""


@pytest.mark.parametrize("kind", ["loglikelihood", "loglikelihood_rolling"])
@pytest.mark.parametrize("shape", ["openai", "sglang"])
def test_the_tokens_of_a_log_likelihood_come_with_it(shape: str, kind: str, ask: Any) -> None:
    for response in ask(kind, shape=shape, arguments={"top_logprobs": 3}):
        assert response.token_logprobs.sum() == pytest.approx(response.loglikelihood, abs=1e-12)
        assert len(response.top_logprobs) == len(response.token_logprobs)
        for own, shown in zip(response.token_logprobs, response.top_logprobs, strict=True):
            assert len(shown) in (3, 4)
            assert own in shown.values()
            assert sum(np.exp(list(shown.values()))) < 1.0


@pytest.mark.parametrize("shape", ["openai", "vllm"])
def test_a_special_token_that_is_echoed_as_text_is_no_other_prompt(shape: str, ask: Any) -> None:
    # vLLM writes "<bos>", which the probe moves into the middle of a prompt
    one = ask(shape=shape, before="<s>", arguments={"num_concurrent": 2}, batch_size=1)
    assert [response.n_tokens for response in one] == [
        response.n_tokens + 1 for response in ask(shape=shape)
    ]


def test_a_text_in_several_windows_has_all_its_tokens(ask: Any) -> None:
    whole = ask("loglikelihood_rolling")
    cut = ask("loglikelihood_rolling", arguments={"max_length": 8})
    for one, other in zip(whole, cut, strict=True):
        assert len(one.token_logprobs) == len(other.token_logprobs)
        # the table reads one token back, so that windows change nothing
        np.testing.assert_allclose(one.token_logprobs, other.token_logprobs, rtol=0, atol=1e-12)


GENERATING: dict[str, tuple[dict[str, Any], str]] = {
    "no choices": ({"edit": edited(lambda a: {**a, "choices": []})}, "has no choices"),
    "one choice for two prompts": (
        {"edit": edited(lambda a: {**a, "choices": a["choices"][:1]})},
        "gave 1 answers to 2 prompts",
    ),
    "cut without a word": (
        {"edit": with_usage(-2), "batch_size": 1},
        "cuts prompts without saying so",
    ),
    "BOS of its own": ({"edit": with_usage(1)}, "it adds some of its own"),
    "another model": (
        {"edit": edited(lambda answer: {**answer, "model": "other"})},
        "answers as 'other'",
    ),
}


@pytest.mark.parametrize("concurrent", [1, 4])
@pytest.mark.parametrize("name", GENERATING)
def test_a_server_that_generates_other_than_asked_is_refused(
    name: str, concurrent: int, ask: Any
) -> None:
    stub, reason = GENERATING[name]
    with pytest.raises(EvaluationError, match=reason):
        ask("generate_until", arguments={"num_concurrent": concurrent}, **stub)


def test_a_server_that_generates_is_not_asked_for_log_probabilities(ask: Any) -> None:
    found = ask("generate_until", shape="tgi")
    assert all(one.text for one in found)


@pytest.mark.parametrize(
    ("model_type", "reason"),
    [
        ("local-chat-completions", "chat completions have none"),
        ("openai-completions", "OpenAI gives none for 'served', only for babbage-002"),
    ],
)
def test_a_client_that_has_no_log_probabilities_is_refused_before_any_request(
    model_type: str, reason: str, ask: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    more = {"tokenizer_backend": None} if "chat" in model_type else {}
    with pytest.raises(UsageError, match=reason) as error:
        ask(model_type=model_type, arguments=more)
    assert "local-completions" in error.value.hint
    assert isinstance(error.value, EvalguardError)


def test_a_prompt_that_is_sent_as_text_has_no_ids_that_were_read(ask: Any) -> None:
    as_ids = ask("generate_until", shape="tgi")
    as_text = ask("generate_until", shape="text", arguments={"tokenized_requests": False})
    assert all(one.token_hash and one.n_tokens for one in as_ids)
    assert not any(one.token_hash or one.n_tokens for one in as_text)
    assert all(one.text for one in as_text)


def chat_scorer(url: str) -> LMScorer:
    policy = ScoringPolicy()
    arguments = {"base_url": url, "model": "served", "max_retries": 1}
    lm = load_lm(
        "local-chat-completions", arguments, {}, policy, trust_remote_code=False, allow_pickle=False
    )
    return LMScorer(lm, policy, model_type="local-chat-completions")


def test_a_chat_endpoint_is_sent_conversations(tiny_llama: Path) -> None:
    stub = Stub(tokenizer=tiny_llama, shape="chat")
    with serving(stub) as url:
        scorer = chat_scorer(url)
        plain = requests_of("generate_until", 2)
        with pytest.raises(UsageError, match="needs conversations") as error:
            scorer.score(plain)
        assert "--apply_chat_template" in error.value.hint
        said = [{"role": "user", "content": "fog"}]
        asked = [
            Request(
                task="t",
                doc_id=one.doc_id,
                index=0,
                kind="generate_until",
                arguments=(scorer.render_chat(said, True), one.arguments[1]),
            )
            for one in plain
        ]
        assert [one.text for one in scorer.score(asked)] == ["to fog", "to fog"]
    assert all(one["messages"] == said for one in stub.asked)


@pytest.mark.parametrize("text", ["fog", "fog fog", "fog fog fog fog"])
def test_a_prompt_of_one_token_or_two_is_enough_for_a_sound_server(
    text: str, tiny_llama: Path
) -> None:
    stub = Stub(tokenizer=tiny_llama)
    request = Request(task="t", doc_id=0, index=0, kind="loglikelihood", arguments=(text, " came"))
    policy = ScoringPolicy(batch_size=2)
    with serving(stub) as url:
        arguments = {"base_url": url, "model": "served", "tokenizer": str(tiny_llama)}
        arguments |= {"tokenizer_backend": "huggingface", "num_concurrent": 4}
        lm = load_lm(
            "local-completions", arguments, {}, policy, trust_remote_code=False, allow_pickle=False
        )
        (told,) = LMScorer(lm, policy, model_type="local-completions").score([request])
    assert told.loglikelihood < 0.0
    assert len(stub.asked) <= 24


def test_a_server_that_adds_bos_to_texts_is_to_be_sent_ids(ask: Any) -> None:
    with pytest.raises(EvaluationError, match="reads a token of its own") as error:
        ask("loglikelihood", shape="text", arguments={"tokenized_requests": False})
    assert "tokenized_requests: false" in error.value.hint
