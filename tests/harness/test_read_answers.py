"""What rows of documents say of their generated answers, beside the texts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from evalguard.answers.document_figures import DocumentAnswers, figure_value
from evalguard.answers.figure_tables import read_answers
from evalguard.core.chat import PLACE, ChatRequest
from evalguard.core.generation_comparison import GeneratedDocument

TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f"}}


def answers(
    text: str,
    *,
    prompt: str = "",
    doc: Any = None,
    message: str = "",
    options: dict[str, Any] | None = None,
) -> DocumentAnswers:
    row: dict[str, Any] = {
        "doc_id": 0,
        "doc_hash": "a",
        "doc": json.dumps(doc or {}),
        "arguments": [json.dumps([prompt, options or {}])],
        "text": [text],
        "generated": GeneratedDocument(ended=("length",), messages=(message,)).written,
    }
    (found,) = read_answers("t", (row,))
    assert found is not None
    return found.answers


def test_a_prompt_that_ends_in_a_thinking_part_opens_the_answers() -> None:
    asked = "<|im_start|>assistant\n<think>\n"
    assert figure_value("unclosed_thinking", answers("Hm. So", prompt=asked)) == 1.0
    assert figure_value("unclosed_thinking", answers("Hm.\n</think>\n4", prompt=asked)) == 0.0
    assert figure_value("unclosed_thinking", answers("Four.", prompt="2 + 2?")) is None


@pytest.mark.parametrize(
    ("options", "drawn"),
    [
        ({}, False),
        ({"do_sample": False, "temperature": 0.8}, False),
        ({"do_sample": True, "temperature": 0.0}, False),
        ({"temperature": 0.8}, True),
        ({"do_sample": True}, True),
    ],
)
def test_answers_at_a_temperature_above_0_are_drawn(options: dict[str, Any], drawn: bool) -> None:
    assert answers("Four.", options=options).drawn == drawn


@pytest.mark.parametrize(
    ("text", "until", "left"),
    [
        ("Four.", ["."], "Four"),
        ("Four.", ".", "Four"),
        ("Four\n\n", ["\n", "\n\n"], "Four"),
        ("Four..", ["."], "Four."),
        ("Four. Five", ["."], "Four. Five"),  # a server that goes on is another fault
        ("Four", [], "Four"),
        ("Four", ["", None], "Four"),
        ("Four.", None, "Four."),
    ],
)
def test_a_stop_sequence_at_the_end_is_no_part_of_an_answer(
    text: str, until: Any, left: str
) -> None:
    found = answers(text, options={"until": until})
    assert (list(found.texts), found.ends_in_stop) == ([left], left != text)


def test_a_chat_request_says_by_itself_what_is_expected() -> None:
    say = {"role": "user", "content": "Hi"}
    request = ChatRequest(messages=(say,), tools=(TOOL,), tool_choice="required")
    call = json.dumps({"tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]})
    doc = {PLACE: 0, **request.document}
    called = answers("", doc=doc, message=call)
    assert figure_value("valid_tool_call", called) == 1.0
    said = answers("Hello.", doc=doc)
    assert figure_value("valid_tool_call", said) == 0.0
    assert figure_value("valid_json", said) is None
