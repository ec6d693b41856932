"""The tokens that a server shows of what it generated, with their margins."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from served_stubs import Stub, send_json, serving
from transformers import AutoTokenizer

from evalguard.answers.first_difference import find_first_difference
from evalguard.core.scorer import Request, Response, ScoringPolicy
from evalguard.core.shown_tokens import GeneratedTokens
from evalguard.errors import EvaluationError
from evalguard.models.generated_texts import GeneratedText, with_endings
from evalguard.models.lm_scorer import LMScorer
from evalguard.models.loading import load_lm
from evalguard.models.served.shown_logprobs import TokenNames

COMPLETION = {
    "tokens": ["token_id:5", "token_id:7"],
    "token_logprobs": [-0.5, -1.0],
    "top_logprobs": [{"token_id:5": -0.5, "token_id:9": -2.0}, {"token_id:8": -0.25}],
}
CHAT = {
    "content": [
        {
            "id": 5,
            "token": "a",
            "logprob": -0.5,
            "top_logprobs": [
                {"id": 5, "token": "a", "logprob": -0.5},
                {"id": 9, "token": "c", "logprob": -2.0},
            ],
        },
        {
            "id": 7,
            "token": "b",
            "logprob": -1.0,
            "top_logprobs": [{"id": 8, "token": "d", "logprob": -0.25}],
        },
    ]
}
SGLANG = {
    "output_token_logprobs": [[-0.5, 5, None], [-1.0, 7, None]],
    "output_top_logprobs": [[[-0.5, 5, None], [-2.0, 9, None]], [[-0.25, 8, None]]],
}
ANSWERS = {
    "completions": {"choices": [{"index": 0, "text": "ab", "logprobs": COMPLETION}]},
    "chat completions": {"choices": [{"index": 0, "message": {"content": "ab"}, "logprobs": CHAT}]},
    "sglang": {"text": "ab", "meta_info": SGLANG},
}


def shown(answer: Any, names: TokenNames | None = None) -> GeneratedTokens | None:
    return GeneratedText.of(with_endings(["ab"], answer, names)[0]).tokens


@pytest.mark.parametrize("form", ANSWERS)
def test_every_form_shows_tokens_with_the_margin_to_the_most_probable_other_one(form: str) -> None:
    found = shown(ANSWERS[form])
    # The second token was sampled: another one was more probable.
    assert found == GeneratedTokens.of([5, 7], [1.5, -0.75], [9, 8])


def test_a_token_without_others_beside_it_has_no_margin() -> None:
    alone = {"tokens": ["token_id:5"], "token_logprobs": [-0.5], "top_logprobs": None}
    found = shown({"choices": [{"index": 0, "text": "a", "logprobs": alone}]})
    assert found is not None
    assert found.ids.tolist() == [5]
    assert math.isnan(found.margins[0])


@pytest.mark.parametrize(
    "logprobs",
    [
        None,
        {},
        {"tokens": None},
        {"tokens": []},
        {"tokens": ["a"], "token_logprobs": []},
        {"tokens": ["a"], "token_logprobs": [None]},
        {"tokens": [1], "token_logprobs": [0.0]},
        {"content": [{"token": "a"}]},
        {"content": ["a"]},
        {"content": []},
        "none",
    ],
)
def test_a_form_that_nobody_knows_says_nothing(logprobs: Any) -> None:
    assert shown({"choices": [{"index": 0, "text": "a", "logprobs": logprobs}]}) is None


def by_text(texts: Sequence[str], names: TokenNames | None = None) -> GeneratedTokens | None:
    logprobs = {
        "tokens": list(texts),
        "token_logprobs": [-0.1] * len(texts),
        "top_logprobs": [{text: -0.1, "?": -3.0} for text in texts],
    }
    return shown({"choices": [{"index": 0, "text": "ab", "logprobs": logprobs}]}, names)


def test_texts_of_tokens_stand_for_them_beside_texts_and_not_beside_ids() -> None:
    one, other = by_text(["the", " fog"]), by_text(["the", " boat"])
    found = find_first_difference("the fog", "the boat", one, other)
    assert found is not None
    assert found.position == 1
    assert found.near_tie is False
    beside_ids = find_first_difference("the fog", "a boat", one, GeneratedTokens.of([1, 2]))
    assert beside_ids is not None
    assert beside_ids.position is None


def test_a_tokenizer_gives_texts_their_ids_where_one_token_has_them(tiny_llama: Path) -> None:
    class Client:
        tokenizer = AutoTokenizer.from_pretrained(tiny_llama)

    piece = Client.tokenizer.convert_ids_to_tokens(300)
    found = by_text([piece], TokenNames(Client()))
    assert found is not None
    assert found.ids.tolist() == [300]


def with_logprobs(stub: Stub, asked: Any, answer: Any) -> Any:
    """Show of each text two tokens, as OpenAI does where it is asked."""
    for choice in answer["choices"]:
        if stub.shape == "chat" and asked.get("logprobs") and asked.get("top_logprobs", 0) >= 2:
            choice["logprobs"] = CHAT
        elif stub.shape != "chat" and asked.get("logprobs", 0) >= 2 and not asked.get("echo"):
            choice["logprobs"] = COMPLETION
    return answer


def ask(stub: Stub, url: str, **arguments: Any) -> Response:
    kind = "local-chat-completions" if stub.shape == "chat" else "local-completions"
    given = {"base_url": url, "model": "served", "max_length": 64, **arguments}
    if kind == "local-completions":
        given |= {"tokenizer": str(stub.tokenizer), "tokenizer_backend": "huggingface"}
    policy = ScoringPolicy()
    lm = load_lm(kind, given, {}, policy, trust_remote_code=False, allow_pickle=False)
    scorer = LMScorer(lm, policy, model_type=kind)
    context = "the fog came in"
    if stub.shape == "chat":
        context = json.dumps([{"role": "user", "content": context}])
    request = Request(
        task="t", doc_id=0, index=0, kind="generate_until",
        arguments=(context, {"until": [], "max_gen_toks": 4, "temperature": 0.5}),
    )  # fmt: skip
    try:
        return scorer.score([request])[0]
    finally:
        scorer.close()


@pytest.mark.parametrize("shape", ["openai", "chat"])
def test_a_server_is_asked_for_them_where_the_model_says_so(shape: str, tiny_llama: Path) -> None:
    stub = Stub(tiny_llama, shape=shape, edit=with_logprobs)
    with serving(stub) as url:
        answer = ask(stub, url, top_logprobs=1)
        assert answer.generated == GeneratedTokens.of([5, 7], [1.5, -0.75], [9, 8])
        assert ask(stub, url).generated is None
        assert not any("logprobs" in asked for asked in stub.asked[-1:])


def test_a_server_that_refuses_them_is_told_with_the_argument_that_asks(tiny_llama: Path) -> None:
    def refuse(stub: Stub, asked: Any, answer: Any) -> Any:
        if not asked.get("logprobs"):
            return send_json(stub, asked, answer)
        return 400, {}, json.dumps({"error": "logprobs are not supported"}).encode()

    stub = Stub(tiny_llama, shape="chat", reply=refuse)
    with serving(stub) as url, pytest.raises(EvaluationError) as error:
        ask(stub, url, top_logprobs=2)
    assert "logprobs are not supported" in error.value.quotes[0].text
    assert "top_logprobs" in error.value.hint
