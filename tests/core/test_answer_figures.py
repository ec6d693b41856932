"""Figures of a generated answer: their registry, and the values that need no detector."""

from __future__ import annotations

import json

import pytest

from evalguard.answers.document_figures import (
    WrittenAnswer,
    find_differing_parts,
    measure_figure,
    measure_paired_figure,
)
from evalguard.core.expected_answers import ExpectedAnswer, Tool
from evalguard.core.figures import FIGURES
from evalguard.core.shown_tokens import GeneratedTokens

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


def calling(*calls: object, **more: object) -> WrittenAnswer:
    """An answer with calls: (name, arguments)."""
    told = [{"id": "a1", "function": {"name": n, "arguments": a}} for n, a in calls]  # type: ignore[misc]
    return WrittenAnswer(text="", message=json.dumps({"tool_calls": told, **more}))


ARGUMENTS = '{"city": "Zürich", "days": 100, "of": [1, 0.5, null]}'
ONE = calling(("f", ARGUMENTS))
# What is the same call, and in what else the answers differ.
SAME_CALLS = {
    "keys in another order": (calling(("f", '{"of":[1,0.5,null],"days":100,"city":"Zürich"}')), ""),
    "escapes": (calling(("f", ARGUMENTS.replace("ü", "\\u00fc"))), ""),
    "forms of numbers": (calling(("f", ARGUMENTS.replace("100", "1e2").replace("1,", "1.0,"))), ""),
    "an object": (calling(("f", json.loads(ARGUMENTS))), "form"),
    "another reason": (calling(("f", ARGUMENTS), finish_reason="tool_calls"), ""),
}
OTHER_CALLS = {
    "another name": (("g", ARGUMENTS),),
    "another number": (("f", ARGUMENTS.replace("100", "1e3")),),
    "a number beyond a double": (("f", ARGUMENTS.replace("100", "100.0000000000000000001")),),
    "true for 1": (("f", ARGUMENTS.replace("[1", "[true")),),
    "a text for a number": (("f", ARGUMENTS.replace("100", '"100"')),),
    "truncated": (("f", ARGUMENTS[:-1]),),
    "a text of the text": (("f", json.dumps(ARGUMENTS)),),
    "a list in another order": (("f", ARGUMENTS.replace("1, 0.5", "0.5, 1")),),
    "twice": (("f", ARGUMENTS), ("f", ARGUMENTS)),
    "none": (),
}


@pytest.mark.parametrize("kind", SAME_CALLS)
def test_calls_are_the_same_in_whatever_words(kind: str) -> None:
    other, differs = SAME_CALLS[kind]
    assert measure_paired_figure("same_call", ONE, other) == 1.0
    assert find_differing_parts(ONE, other) == ({differs} if differs else set())
    assert measure_paired_figure("same_answer", ONE, other) == float(not differs)


@pytest.mark.parametrize("kind", OTHER_CALLS)
def test_other_calls_are_other_answers(kind: str) -> None:
    other = calling(*OTHER_CALLS[kind])
    for pair in ((ONE, other), (other, ONE)):
        assert find_differing_parts(*pair) == {"calls"}
        assert measure_paired_figure("same_call", *pair) == 0.0
        assert measure_paired_figure("same_answer", *pair) == 0.0


def test_arguments_that_are_no_json_are_themselves() -> None:
    cut = calling(("f", ARGUMENTS[:-1]))
    assert measure_paired_figure("same_call", cut, cut) == 1.0


@pytest.mark.parametrize("number", ["1" + 5000 * "0", "1e999999999", "-0.0", "NaN"])
def test_numbers_of_any_size_are_compared(number: str) -> None:
    one, other = (calling(("f", f'{{"n": {of}}}')) for of in (number, "7"))
    assert measure_paired_figure("same_call", one, one) == 1.0
    assert measure_paired_figure("same_call", one, other) == 0.0


def test_calls_of_one_answer_have_no_order() -> None:
    both = [("f", "{}"), ("g", "{}")]
    assert not find_differing_parts(calling(*both), calling(*both[::-1]))


def answer(text: str, **message: object) -> WrittenAnswer:
    return WrittenAnswer(text=text, message=json.dumps(message) if message else "")


@pytest.mark.parametrize(
    ("base", "candidate", "parts"),
    [
        (answer("Four."), answer("Five."), {"text"}),
        (answer("Four.", reasoning_content="2 + 2"), answer("Four."), {"thinking"}),
        (
            answer("Four.", reasoning_content="2 + 2"),
            answer("<think>\n2 + 2\n</think>\n\nFour."),
            set(),
        ),
        (answer("", refusal="No."), answer("", refusal="Never."), {"text"}),
        (answer("A", finish_reason="stop"), answer("A", finish_reason="length"), {"ending"}),
        (answer("A", finish_reason="stop"), answer("A", finish_reason="eos"), set()),
        (answer("A", finish_reason="stop"), answer("A"), set()),
        (
            WrittenAnswer(text="A", ended="stop"),
            WrittenAnswer(text="A", ended="length"),
            {"ending"},
        ),
        (WrittenAnswer(text="A", ended="stop"), WrittenAnswer(text="A"), set()),
    ],
)
def test_an_answer_is_text_thinking_and_ending(
    base: WrittenAnswer, candidate: WrittenAnswer, parts: set[str]
) -> None:
    assert find_differing_parts(base, candidate) == parts


def test_calls_in_a_form_that_nobody_knows_make_no_answer_the_same() -> None:
    unknown = answer("A", tool_calls="unknown")
    assert measure_paired_figure("same_call", unknown, unknown) is None
    assert measure_paired_figure("same_answer", unknown, unknown) is None
    assert measure_paired_figure("same_answer", unknown, answer("B")) == 0.0
