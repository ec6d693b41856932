"""A thinking part is found by the marks of common templates, and has an end or none."""

from __future__ import annotations

import json

import pytest

from evalguard.answers.document_figures import WrittenAnswer, measure_figure
from evalguard.core.chat import MARKS, find_answer_after_thoughts, find_thinking, thinking_of


@pytest.mark.parametrize(("opening", "closing"), MARKS)
def test_a_part_is_closed_by_the_mark_of_the_one_that_opened_it(opening: str, closing: str) -> None:
    closed = find_thinking(f"{opening}\nHm.\n{closing}\n\nFour.")
    assert closed is not None
    assert (closed.is_closed, closed.rest) == (True, "\n\nFour.")
    unclosed = find_thinking(f"{opening}\nHm. Four.")
    assert unclosed is not None
    assert not unclosed.is_closed


def test_a_prompt_that_ends_in_an_opening_mark_opens_the_part() -> None:
    prompt = "<|im_start|>user\nWhat is 2 + 2?<|im_end|>\n<|im_start|>assistant\n<think>\n"
    assert thinking_of(prompt) == "open"
    part = find_thinking("Hm. So four", is_open=True)
    assert part is not None
    assert not part.is_closed


def test_a_closing_mark_alone_closes_what_the_prompt_opened() -> None:
    part = find_thinking("Hm.\n</think>\n\nFour.")
    assert part is not None
    assert (part.is_closed, part.rest) == (True, "\n\nFour.")


@pytest.mark.parametrize("text", ["Four.", "", "The tag <think> opens it.", "a </think> b"])
def test_a_text_without_a_part_has_none(text: str) -> None:
    assert find_thinking(text) is None
    assert measure_figure("unclosed_thinking", WrittenAnswer(text=text)) is None


def test_a_server_that_sends_thoughts_apart_has_closed_them_unless_nothing_came_after() -> None:
    message = json.dumps({"reasoning_content": "Hm."})

    def unclosed(text: str, ended: str) -> float | None:
        answer = WrittenAnswer(text=text, message=message, ended=ended)  # type: ignore[arg-type]
        return measure_figure("unclosed_thinking", answer)

    assert unclosed("Four.", "stop") == unclosed("Four, or", "length") == 0.0
    assert unclosed("", "length") == 1.0


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("42", None),
        ("Write <think> first, then the answer.", None),
        ("<think>It is 42", ""),
        ("<think>It is 42</think>\n", ""),
        ("<think>It is</think>42", "42"),
        ("<think>It</think><think>is</think>42", "42"),
        ("<think>It</think><think>is", ""),
        ("<my_think>It is", ""),
        ("<my_think>It is</my_think> 42", "42"),
        ("Sure.\n<thinking>\nIt is", ""),
        ("<|channel|>analysis<|message|>It is", ""),
        (
            "<|channel|>analysis<|message|>It<|end|><|start|>assistant<|channel|>final<|message|>42",
            "42",
        ),
        ("analysisWe see it.assistantfinal42", "42"),
        ("analysisWe see it.", ""),
        ("analysis of variance", None),
    ],
)
def test_what_follows_all_thoughts_is_the_answer(text: str, answer: str | None) -> None:
    assert find_answer_after_thoughts(text) == answer
