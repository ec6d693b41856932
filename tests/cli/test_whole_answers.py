"""Whole answers of servers, from both to a verdict: text, tool calls, thinking and ending."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from chat_server import ChatServer, call, serving

from evalguard.comparison.compare import compare
from evalguard.comparison.result import CompareResult
from evalguard.report.first_screen import verdict_line

TOOL: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
OTHER: Any = {"type": "function", "function": {**TOOL["function"], "name": "get_news"}}
N = 12


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EVALGUARD_CACHE_DIR", str(tmp_path / "cache"))


def asked(**more: Any) -> Path:
    path = Path("asked.jsonl")
    lines = [
        {"messages": [{"role": "user", "content": f"Day {n}?"}], "max_tokens": 60, **more}
        for n in range(N)
    ]
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return path


Message = dict[str, Any]
Change = Callable[[Message, int], Message]


def server(message: Callable[[int], Message], **more: Any) -> ChatServer:
    def answer(given: Mapping[str, Any]) -> Any:
        said = given["messages"][-1]["content"]
        of_file = re.fullmatch(r"Day (\d+)\?", said)
        if of_file is not None:
            return message(int(of_file[1]))
        own = [f" {word}" for word in random.Random(said).choices(WORDS, k=20)]  # a probe's
        return with_odds("".join(own), own)

    return ChatServer(answer=answer, **more)


def compared(base: ChatServer, candidate: ChatServer, requests: Path, **more: Any) -> CompareResult:
    with ExitStack() as stack:
        sides = [stack.enter_context(serving(one)).url for one in (base, candidate)]
        return compare(*sides, requests=requests, quiet=True, bisect="never", **more)


def weather(day: int) -> Message:
    return dict(call("get_weather", json.dumps({"city": f"town {day}", "day": day})))


def changed(message: Message, **function: Any) -> Message:
    ((one,),) = [message["tool_calls"]]
    return {**message, "tool_calls": [{**one, "function": {**one["function"], **function}}]}


def in_other_words(message: Message, day: int) -> Message:
    """The same arguments: other order of keys, white space, escapes and numbers."""
    city = f"\\u0074own {day}"
    return changed(message, arguments=f'{{ "day":{day}.0,\n "city": "{city}"}}')


# kind -> what the candidate makes of the base's message, exit code, verdict, note
CALLS: dict[str, tuple[Change, int, str, str]] = {
    "other arguments": (
        lambda m, _: changed(m, arguments='{"city": "San"}'),
        3,
        "FAILED: asked same_call (text) gives no number: 0 of 12 calls are the base's",
        "0 of 12 calls are the base's; 0 of 12 answers",
    ),
    "another tool": (
        lambda m, _: changed(m, name="get_news"),
        3,
        "FAILED: asked same_call (text) gives no number: 0 of 12 calls are the base's",
        "0 of 12 calls are the base's; 0 of 12 answers",
    ),
    "every call twice": (
        lambda m, _: {**m, "tool_calls": 2 * m["tool_calls"]},
        3,
        "FAILED: asked same_call (text) gives no number: 0 of 12 calls are the base's",
        "0 of 12 calls are the base's; 0 of 12 answers",
    ),
    "a call of three is another": (
        lambda m, day: changed(m, arguments="{}") if day % 3 == 0 else m,
        0,
        "UNDECIDED: asked: 8 of 12 calls and 8 of 12 answers are the base's",
        "8 of 12 calls are the base's; 8 of 12 answers",
    ),
    "arguments as an object": (
        lambda m, day: changed(m, arguments={"day": day, "city": f"town {day}"}),
        0,
        "UNDECIDED: asked: 12 of 12 calls and 0 of 12 answers are the base's",
        "12 of 12 calls are the base's; 0 of 12 answers",
    ),
    "words beside the call": (
        lambda m, _: {**m, "content": "Let me see."},
        0,
        "UNDECIDED: asked: 12 of 12 calls and 0 of 12 answers are the base's",
        "12 of 12 calls are the base's; 0 of 12 answers",
    ),
    "other thoughts": (
        lambda m, _: {**m, "reasoning_content": "Hm."},
        0,
        "UNDECIDED: asked: 12 of 12 calls and 0 of 12 answers are the base's",
        "the thinking in 12",
    ),
    "another reason for the end": (
        lambda m, _: {**m, "finish_reason": "stop"},
        0,
        "UNDECIDED: asked: 12 of 12 calls and 0 of 12 answers are the base's",
        "why it ended in 12",
    ),
}


@pytest.mark.parametrize("kind", CALLS)
def test_answers_that_are_not_the_bases_are_counted_on_the_first_screen(kind: str) -> None:
    change, exit_code, verdict, note = CALLS[kind]
    base = server(weather)
    candidate = server(lambda day: change(weather(day), day))
    result = compared(base, candidate, asked(tools=[TOOL, OTHER]))
    report = result.report
    (found,) = [one for one in report.findings if one.kind == "answers_differ"]
    assert (report.exit_code, verdict_line(report)[: len(verdict)]) == (exit_code, verdict)
    assert note in found.text
    assert not any(c.bit_identical for c in report.comparisons)
    said = result.render(width=100)
    assert "bit-identical" not in said
    assert "nothing to do" not in said


# What differs and is no part of an answer.
HEALTHY: dict[str, Change] = {
    "nothing": lambda m, _: m,
    "another id": lambda m, day: {
        **m, "tool_calls": [{**one, "id": f"call-{day + 77}"} for one in m["tool_calls"]]
    },
    "the same arguments in other words": in_other_words,
    "no content for an empty one": lambda m, _: {**m, "content": ""},
    "the call in OpenAI's former words": lambda m, _: {
        "role": "assistant", "content": None, "function_call": m["tool_calls"][0]["function"],
        "finish_reason": "function_call",
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", HEALTHY)
def test_the_same_answers_stay_bit_identical(kind: str) -> None:
    candidate = server(lambda day: HEALTHY[kind](weather(day), day))
    report = compared(server(weather), candidate, asked(tools=[TOOL])).report
    assert verdict_line(report).startswith("PASSED: every score is bit-identical"), kind
    assert not [one for one in report.findings if one.kind == "answers_differ"]


def two_calls(message: Message, **other: Any) -> Message:
    (one,) = message["tool_calls"]
    second = {**one, "id": "call-2", "function": {"name": "get_news", "arguments": "{}"}}
    both = [second, one] if other.get("turned") else [one, second]
    return {**message, "tool_calls": both}


def test_calls_side_by_side_have_no_order() -> None:
    base = server(lambda day: two_calls(weather(day)))
    candidate = server(lambda day: two_calls(weather(day), turned=True))
    report = compared(base, candidate, asked(tools=[TOOL, OTHER])).report
    assert verdict_line(report).startswith("PASSED: every score is bit-identical")


@pytest.mark.parametrize(
    ("gate", "state"),
    [
        ({"same_call": 0.9}, "regressed"),
        ({"asked/same_call": "99%"}, "regressed"),
        ({"same_call": None}, "regressed"),
        ({"same_call": "5pp"}, "regressed"),
        ({"same_answer": 0.5}, "regressed"),
        ({"same_answer": None}, "regressed"),
    ],
)
def test_calls_and_answers_are_held_to_the_bases(gate: dict[str, Any], state: str) -> None:
    candidate = server(lambda _: dict(call("get_weather", '{"city": "San"}')))
    report = compared(server(weather), candidate, asked(tools=[TOOL]), gate_limits=gate).report
    assert (report.gate.state, report.exit_code) == (state, 1)


def test_calls_that_are_drawn_are_not_expected_to_be_the_same() -> None:
    candidate = server(lambda _: dict(call("get_weather", '{"city": "San"}')))
    requests = asked(tools=[TOOL], temperature=0.7)
    report = compared(server(weather), candidate, requests).report
    assert report.gate.state == "undecided"
    assert not [one for one in report.findings if one.kind == "answers_differ"]


WORDS = ("the", "old", "road", "went", "down", "over", "a", "green", "bridge", "to", "it", "and")


def spoken(day: int) -> list[str]:
    turned = WORDS[day % len(WORDS) :] + WORDS[: day % len(WORDS)]
    return [f" {word}" for word in (*turned, day)]


def with_odds(
    text: str, tokens: Sequence[str], margin: float = 3.0, at: int = -1, other: float = math.nan
) -> Message:
    """An answer that shows its tokens, each preferred by ``margin``, that at a place by another."""
    content = []
    for place, token in enumerate(tokens):
        ahead = other if place == at else margin
        chosen, beside = (-0.05, -0.05 - ahead) if ahead >= 0.0 else (-0.05 + ahead, -0.05)
        second = " y" if token == " x" else " x"
        tops = [{"token": token, "logprob": chosen}, {"token": second, "logprob": beside}]
        content.append({"token": token, "logprob": chosen, "top_logprobs": tops})
    return {"role": "assistant", "content": text, "logprobs": {"content": content}}


def whole(day: int) -> Message:
    return with_odds("".join(spoken(day)), spoken(day))


def without(day: int, at: int = 5) -> list[str]:
    words = spoken(day)
    return words[:at] + words[at + 1 :]


def instead(day: int, at: int = 5) -> list[str]:
    words = spoken(day)
    return [*words[:at], " x", *words[at + 1 :]]


# kind -> the candidate's answer, and the share of documents beyond near ties that it comes to
DAMAGED: dict[str, tuple[Callable[[int], Message], float]] = {
    "a piece of the stream is lost": (
        lambda day: with_odds("".join(without(day)), spoken(day)), 1.0
    ),
    "a piece is lost with its log-probability": (
        lambda day: with_odds("".join(without(day)), without(day)), 1.0
    ),
    "a piece came twice": (
        lambda day: with_odds("".join([*spoken(day)[:4], *spoken(day)[3:]]), spoken(day)), 1.0
    ),
    "a less probable token was chosen": (
        lambda day: with_odds("".join(instead(day)), instead(day), at=5, other=-2.0), 1.0
    ),
    "some answers lose a piece": (
        lambda day: with_odds("".join(without(day) if day % 2 else spoken(day)), spoken(day)), 0.5
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", DAMAGED)
def test_damaged_texts_are_beyond_near_ties(kind: str) -> None:
    candidate, share = DAMAGED[kind]
    args = {"top_logprobs": 2}
    report = compared(
        server(whole), server(candidate), asked(), base_model_args=args, cand_model_args=args
    ).report
    (of,) = report.generations
    beyond = {one.name: one.figure for one in of.figures}["first_difference_beyond_ties"]
    assert (beyond.candidate.value, beyond.n) == (share, N)
    (found,) = [one for one in report.findings if one.kind == "answers_differ"]
    assert found.values["same"] == N - share * N
    assert report.gate.state == ("regressed" if share == 1.0 else "undecided")


def test_a_server_that_chooses_against_its_own_odds_is_told_so() -> None:
    args = {"top_logprobs": 2}
    candidate = server(DAMAGED["a less probable token was chosen"][0])
    report = compared(
        server(whole), candidate, asked(), base_model_args=args, cand_model_args=args
    ).report
    (found,) = [one for one in report.findings if one.kind == "chosen_against_odds"]
    assert found.values == {"side": "candidate", "documents": N, "shown": N}


@pytest.mark.parametrize(
    "more",
    [
        {"temperature": 0.8},
        {"frequency_penalty": 0.5},
        {"logit_bias": {"5": -100}},
        {"response_format": {"type": "json_object"}},
    ],
    ids=lambda more: next(iter(more)),
)
def test_whatever_else_chooses_tokens_excuses_it(more: dict[str, Any]) -> None:
    args = {"top_logprobs": 2}
    candidate = server(DAMAGED["a less probable token was chosen"][0])
    report = compared(
        server(whole), candidate, asked(**more), base_model_args=args, cand_model_args=args
    ).report
    assert not [one for one in report.findings if one.kind == "chosen_against_odds"]


def test_a_noisy_server_differs_at_ties_alone() -> None:
    def noisy(day: int) -> Message:
        if day % 2:
            return with_odds("".join(spoken(day)), spoken(day), at=5, other=0.1)
        return with_odds("".join(instead(day)), instead(day), at=5, other=0.1)

    def tied(day: int) -> Message:
        return with_odds("".join(spoken(day)), spoken(day), at=5, other=0.1)

    args = {"top_logprobs": 2}
    report = compared(
        server(tied), server(noisy), asked(), base_model_args=args, cand_model_args=args
    ).report
    (of,) = report.generations
    beyond = {one.name: one.figure for one in of.figures}["first_difference_beyond_ties"]
    assert (beyond.candidate.value, report.gate.state) == (0.0, "undecided")
    assert verdict_line(report).startswith("UNDECIDED: asked: 6 of 12 answers are the base's")
    assert not [one for one in report.findings if one.kind == "chosen_against_odds"]
