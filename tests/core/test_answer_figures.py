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
