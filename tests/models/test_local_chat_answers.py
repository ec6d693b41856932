"""Chat requests to a model in this process: its template, and its answers taken apart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from chat_models import HERMES, WITHOUT_TOOLS, render, save_chat_model, teach_replies
from tiny_models import save_t5
from transformers import AutoTokenizer

from evalguard.core.chat import ChatRequest
from evalguard.core.scorer import Request, Response, ScoringPolicy
from evalguard.errors import EvaluationError, UsageError
from evalguard.models.lm_scorer import LMScorer
from evalguard.models.loading import load_lm

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL: Any = {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}
CALL = '{"name": "get_weather", "arguments": {"city": "Paris"}}'
ANSWERS = {
    "Paris?": f"<tool_call>{CALL}</tool_call>",
    "Oslo?": f"Let me look. <tool_call>{CALL}</tool_call><tool_call>{{</tool_call>",
    "Bonn?": "It is warm.",
}


def say(text: str) -> Any:
    return {"role": "user", "content": text}


def request(*messages: Any, number: int = 0, **given: Any) -> Request:
    made = ChatRequest(messages=messages, **given)
    return Request(
        task="calls", doc_id=number, index=0, kind="generate_until", arguments=made.arguments
    )


def load(folder: Path, model_type: str = "hf", **more: Any) -> LMScorer:
    policy = ScoringPolicy()
    lm = load_lm(
        model_type,
        {"pretrained": str(folder), "dtype": "float32", **more},
        {},
        policy,
        trust_remote_code=False,
        allow_pickle=False,
    )
    return LMScorer(lm, policy, model_type=model_type)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_chat_model(tmp_path_factory.mktemp("chat") / "model")


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> LMScorer:
    folder = save_chat_model(tmp_path_factory.mktemp("chat") / "taught")
    return load(teach_replies(folder, ANSWERS, tools=[TOOL]))


def read(scorer: LMScorer, folder: Path, asked: Request) -> str:
    """The prompt that a request is put as, BOS included."""
    (ids,) = scorer.encode([asked])
    return str(AutoTokenizer.from_pretrained(folder).decode(ids)).removeprefix("<s>")


def answered(scorer: LMScorer, text: str) -> tuple[Response, dict[str, Any]]:
    (found,) = scorer.score([request(say(text), tools=(TOOL,), parameters={"max_tokens": 90})])
    return found, json.loads(found.message)


def test_a_request_is_rendered_with_its_tools_by_the_models_own_template(folder: Path) -> None:
    scorer = load(folder)
    with_tools, without, forbidden = (
        read(scorer, folder, request(say("Paris?"), **given))
        for given in ({"tools": (TOOL,)}, {}, {"tools": (TOOL,), "tool_choice": "none"})
    )
    assert with_tools == render(folder, say("Paris?"), tools=[TOOL])
    assert "get_weather" in with_tools
    assert without == forbidden == render(folder, say("Paris?"))


def test_arguments_of_earlier_calls_reach_the_template_as_an_object(folder: Path) -> None:
    function = {"name": "get_weather", "arguments": '{"city": "Paris"}'}
    call = {"id": "1", "type": "function", "function": function}
    said: Any = {"role": "assistant", "content": None, "tool_calls": [call]}
    found = read(load(folder), folder, request(say("Paris?"), said, tools=(TOOL,)))
    assert '"arguments": {"city": "Paris"}' in found
    assert "None" not in found


def test_a_developers_words_and_parts_of_texts_are_put_as_templates_know_them(
    folder: Path,
) -> None:
    parts = [{"type": "text", "text": "Be"}, {"type": "text", "text": "short."}]
    found = read(load(folder), folder, request({"role": "developer", "content": parts}))
    assert found == render(folder, {"role": "system", "content": "Be\nshort."})


def test_a_call_is_read_out_of_the_text_special_tokens_and_all(taught: LMScorer) -> None:
    found, message = answered(taught, "Paris?")
    (call,) = message["tool_calls"]
    assert call["function"]["name"] == "get_weather"
    assert json.loads(call["function"]["arguments"]) == {"city": "Paris"}
    assert (found.text, found.ended, message["finish_reason"]) == ("", "stop", "tool_calls")
    assert any("Hermes" in caveat for caveat in taught.describe().caveats)


def test_words_and_a_broken_call_beside_it_are_kept_apart(taught: LMScorer) -> None:
    found, message = answered(taught, "Oslo?")
    names = [call["function"]["name"] for call in message["tool_calls"]]
    assert (found.text, names) == ("Let me look.", ["get_weather", ""])


def test_an_answer_in_words_calls_nothing(taught: LMScorer) -> None:
    found, message = answered(taught, "Bonn?")
    assert (found.text, message) == ("It is warm.", {"finish_reason": "stop"})


def test_a_call_that_is_cut_has_its_text_whole(taught: LMScorer) -> None:
    asked = request(say("Paris?"), tools=(TOOL,), parameters={"max_tokens": 6})
    (found,) = taught.score([asked])
    assert found.ended == "length"
    assert (found.text or "").startswith("<tool_call>")
    assert json.loads(found.message)["finish_reason"] == "length"


def test_other_requests_of_the_same_model_keep_their_own_way(taught: LMScorer) -> None:
    text = "user: Bonn?\nassistant: "
    options: Any = {"until": ["\n"], "max_gen_toks": 8}
    plain = Request(task="t", doc_id=0, index=0, kind="generate_until", arguments=(text, options))
    (found,) = taught.score([plain])
    assert found.message == ""
    assert "</s>" not in (found.text or "")


def test_a_template_that_leaves_tools_out_is_refused(tmp_path: Path) -> None:
    scorer = load(save_chat_model(tmp_path / "model", WITHOUT_TOOLS))
    assert scorer.encode([request(say("Paris?"))])
    with pytest.raises(EvaluationError, match="leaves the tools of requests out"):
        scorer.score([request(say("Paris?"), tools=(TOOL,))])


def test_a_tokenizer_without_a_template_is_refused(tmp_path: Path) -> None:
    scorer = load(save_chat_model(tmp_path / "model", None))
    with pytest.raises(EvaluationError, match="has no chat template") as error:
        scorer.score([request(say("Paris?"))])
    assert "chat_template_args" in error.value.hint


def test_a_template_that_fails_says_how(tmp_path: Path) -> None:
    template = "{{ raise_exception('no system role') }}"
    scorer = load(save_chat_model(tmp_path / "model", template))
    with pytest.raises(EvaluationError, match="no system role"):
        scorer.encode([request(say("Paris?"))])


def test_calls_in_an_unknown_form_are_unknown_and_not_missing(tmp_path: Path) -> None:
    taught = '<tool_call>{"name": ..., "arguments": ...}</tool_call>'
    template = HERMES.replace(taught, "!call NAME").replace("<tool_call>", "!call ")
    scorer = load(save_chat_model(tmp_path / "model", template))
    asked = request(say("Paris?"), tools=(TOOL,), parameters={"max_tokens": 4})
    (found,) = scorer.score([asked])
    assert json.loads(found.message)["tool_calls"] == "unknown"
    assert any("is not known" in caveat for caveat in scorer.describe().caveats)


def test_words_that_name_a_tool_may_be_a_call_in_marks_that_nobody_knows(tmp_path: Path) -> None:
    folder = save_chat_model(tmp_path / "model", HERMES.replace("<tool_call>", "!call "))
    said = {"Paris?": f"!call {CALL}!", "Oslo?": CALL, "Bonn?": "It is warm."}
    scorer = load(teach_replies(folder, said, tools=[TOOL]))
    told = [answered(scorer, text)[1] for text in said]
    assert [one.get("tool_calls") == "unknown" for one in told] == [True, False, False]
    assert len(told[1]["tool_calls"]) == 1


def test_an_encoder_decoder_is_asked_no_chat_requests(tmp_path: Path) -> None:
    scorer = load(save_t5(tmp_path / "t5"))
    with pytest.raises(UsageError, match="cannot be asked chat requests"):
        scorer.score([request(say("Paris?"))])


def test_thoughts_that_the_prompt_opens_and_nothing_closes_are_no_answer(tmp_path: Path) -> None:
    """As servers with a parser of thoughts have it."""
    opening = HERMES + "{% if add_generation_prompt %}<think>\n{% endif %}"
    scorer = load(save_chat_model(tmp_path / "thinks", opening))
    (found,) = scorer.score([request(say("Paris?"), parameters={"max_tokens": 6})])
    message = json.loads(found.message)
    assert (found.text, found.ended) == ("", "length")
    assert message["reasoning_content"]
    assert message["finish_reason"] == "length"
