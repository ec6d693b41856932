"""Figures of a generated answer: their registry, and the values that need no detector."""

from __future__ import annotations

import json

import pytest

from evalguard.core.answer_figures import (
    FIGURES,
    WrittenAnswer,
    measure_figure,
    measure_paired_figure,
)
from evalguard.core.expected_answers import ExpectedAnswer, Tool
from evalguard.core.generated_tokens import GeneratedTokens

CALL = json.dumps({"tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]})


def test_every_figure_can_be_measured_in_the_way_that_it_says() -> None:
    one = WrittenAnswer(text="Four.")
    for name, figure in FIGURES.items():
        assert figure.name == name
        if figure.paired:
            measure_paired_figure(name, one, one)
        else:
            measure_figure(name, one)


def test_what_nobody_says_is_unknown() -> None:
    answer = WrittenAnswer(text="Four.")
    assert [measure_figure(name, answer) for name in ("tokens", "cut", "refused", "no_answer")] == [
        None
    ] * 4


def test_a_length_is_that_of_the_tokens_that_are_shown_or_counted() -> None:
    shown = GeneratedTokens.of([5, 6, 2])
    assert measure_figure("tokens", WrittenAnswer(text="a b", tokens=shown)) == 3.0
    assert measure_figure("tokens", WrittenAnswer(text="a b", n_tokens=2)) == 2.0


@pytest.mark.parametrize(("ended", "cut"), [("stop", 0.0), ("length", 1.0)])
def test_an_answer_is_cut_where_its_backend_says_so(ended: str, cut: float) -> None:
    assert measure_figure("cut", WrittenAnswer(text="a", ended=ended)) == cut  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["", " \n\t", "\u00a0\u3000"])
def test_white_space_of_any_kind_is_empty_unless_a_tool_is_called(text: str) -> None:
    assert measure_figure("empty", WrittenAnswer(text=text)) == 1.0
    assert measure_figure("empty", WrittenAnswer(text=text, message=CALL)) == 0.0


def test_a_server_says_that_it_refused_by_a_refusal_or_a_filter() -> None:
    def refused(**message: object) -> float | None:
        return measure_figure("refused", WrittenAnswer(text="", message=json.dumps(message)))

    assert refused(refusal="I cannot.") == refused(finish_reason="content_filter") == 1.0
    assert refused(finish_reason="stop") == refused(refusal=None, finish_reason="length") == 0.0


def test_a_loop_may_be_in_the_text_in_thoughts_that_no_text_follows_or_in_a_call() -> None:
    loop = "I am not sure. " * 20

    def loops(text: str = "", **message: object) -> float | None:
        answer = WrittenAnswer(text=text, ended="length", message=json.dumps(message))
        return measure_figure("loops", answer)

    called = {"function": {"name": "f", "arguments": '{"a": "' + loop}}
    assert loops(loop) == loops(reasoning_content=loop) == loops(tool_calls=[called]) == 1.0
    assert loops() == loops("Four.", reasoning_content=loop) == 0.0


def test_a_text_that_shows_nothing_loops_where_its_tokens_do() -> None:
    answer = WrittenAnswer(text=" ", ended="length", tokens=GeneratedTokens.of([9] * 60))
    assert measure_figure("loops", answer) == 1.0


def test_structure_is_known_where_somebody_says_what_it_is() -> None:
    answer = WrittenAnswer(text='{"a": 1}')
    assert measure_figure("valid_json", answer) is None
    assert measure_figure("valid_json", answer, ExpectedAnswer(json=True)) == 1.0
    assert measure_figure("valid_schema", answer, ExpectedAnswer(schema={"type": "array"})) == 0.0
    assert measure_figure("valid_pattern", answer, ExpectedAnswer(pattern=".*")) == 1.0
    tool: Tool = {"type": "function", "function": {"name": "f"}}
    called = WrittenAnswer(text="", message=CALL)
    for name in ("valid_tool_call", "tool_call"):
        assert measure_figure(name, called) is None
        assert measure_figure(name, called, ExpectedAnswer(tools=(tool,))) == 1.0
    assert measure_figure("tool_call", answer, ExpectedAnswer(tools=(tool,))) == 0.0
    assert (
        measure_figure("tool_call", answer, ExpectedAnswer(tools=(tool,), call="forbidden")) is None
    )


def test_an_answer_differs_beyond_ties_or_at_one_or_nobody_knows() -> None:
    def written(text: str, ids: list[int], margin: float, other: int) -> WrittenAnswer:
        tokens = GeneratedTokens.of(ids, [margin] * len(ids), [other] * len(ids))
        return WrittenAnswer(text=text, ended="stop", tokens=tokens)

    base = written("a b", [5, 6, 2], 3.0, 7)
    other, tie = written("a c", [5, 7, 2], 3.0, 6), written("a c", [5, 7, 2], 0.1, 6)
    near = written("a b", [5, 6, 2], 0.1, 7)
    assert measure_paired_figure("first_difference", base, other) == 1.0
    assert measure_paired_figure("first_difference", base, base) is None
    assert measure_paired_figure("first_difference_beyond_ties", base, other) == 1.0
    assert measure_paired_figure("first_difference_beyond_ties", near, tie) == 0.0
    assert measure_paired_figure("first_difference_beyond_ties", base, base) == 0.0
    unknown = WrittenAnswer(text="a c")
    assert measure_paired_figure("first_difference_beyond_ties", base, unknown) is None
