"""Figures of a generated answer: what can be said of each one whatever its task, and their values.

Each is a number of one answer, or of two models' answers to one document. Where nobody can say it,
it is unknown (None): a text without an ending that anybody told is not one that was not cut.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from evalguard.core.expected_answers import ExpectedAnswer
from evalguard.core.generated_tokens import GeneratedTokens
from evalguard.core.reports.generations import FirstDifference
from evalguard.core.scorer import Ending
from evalguard.core.thinking import find_thinking, split_thinking
from evalguard.core.tool_calls import (
    ToolCall,
    calls_of_message,
    canonical_calls,
    message_fields,
)
from evalguard.stats.answers.first_difference import find_first_difference
from evalguard.stats.answers.loops import find_loop, find_token_loop
from evalguard.stats.answers.scripts import is_other_script
from evalguard.stats.answers.structure import judge_structure, written_calls


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFigure:
    """What a figure is.

    Attributes:
        worse: whether more or fewer of it are worse; None: neither.
        unit: "share": of an answer 0 or 1, of several the share of them.
        paired: it is of a candidate's answer beside the base's; of the base's own it is 1 where
            fewer are worse, else 0.
        per_filter: it is of what a task's filter finds in the answer, one value per filter.
        text: what it is, as a clause about an answer.
    """

    name: str
    worse: Literal["more", "fewer"] | None
    unit: Literal["share", "tokens"] = "share"
    paired: bool = False
    per_filter: bool = False
    text: str

    @property
    def of_base(self) -> float:
        """A paired figure of the base's answer beside itself."""
        return float(self.worse == "fewer")


FIGURES = {
    figure.name: figure
    for figure in (
        AnswerFigure(name="tokens", worse=None, unit="tokens", text="its length in tokens"),
        AnswerFigure(name="cut", worse="more", text="it was cut at the token limit"),
        AnswerFigure(name="empty", worse="more", text="it is nothing but white space"),
        AnswerFigure(
            name="no_answer", worse="more", per_filter=True, text="the filter finds no answer in it"
        ),
        AnswerFigure(name="loops", worse="more", text="it repeats itself until its end"),
        AnswerFigure(name="unclosed_thinking", worse="more", text="its thinking part has no end"),
        AnswerFigure(name="refused", worse="more", text="the server says that it refused"),
        AnswerFigure(
            name="other_script",
            worse="more",
            paired=True,
            text="most of its letters are of another script than the base's",
        ),
        AnswerFigure(name="valid_json", worse="fewer", text="it is JSON"),
        AnswerFigure(name="valid_schema", worse="fewer", text="it is JSON that the schema allows"),
        AnswerFigure(name="valid_pattern", worse="fewer", text="all of it matches the pattern"),
        AnswerFigure(
            name="valid_tool_call",
            worse="fewer",
            text="it calls tools as the request allows: known ones, with valid arguments",
        ),
        AnswerFigure(name="tool_call", worse="fewer", text="it calls a tool"),
        AnswerFigure(
            name="first_difference",
            worse=None,
            unit="tokens",
            paired=True,
            text="the token, from 0, at which it first differs from the base's; of those that do",
        ),
        AnswerFigure(
            name="first_difference_beyond_ties",
            worse="more",
            paired=True,
            text="it first differs from the base's at a token that was no near tie",
        ),
        AnswerFigure(
            name="same_answer",
            worse="fewer",
            paired=True,
            text="all of it is the base's: text, tool calls, thinking, and how it ended",
        ),
        AnswerFigure(
            name="same_call", worse="fewer", paired=True, text="it calls what the base's calls"
        ),
    )
}
"""By name, in the order in which they are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenAnswer:
    """One answer, and what is known beside its text.

    Attributes:
        ended: why the text ended; "" where nobody says.
        message: what a chat server answered beside it (``Response.message``); "" where nothing.
        tokens: that were generated; None where they are not shown.
        n_tokens: how many there are; None where that is not known.
        thinking_open: whether its prompt ends in a thinking part that the text has to close.
        greedy: each token was to be the most probable one by the model's own numbers.
    """

    text: str
    ended: Ending = ""
    message: str = ""
    tokens: GeneratedTokens | None = None
    n_tokens: int | None = None
    thinking_open: bool = False
    greedy: bool = False


def measure_figure(
    name: str, answer: WrittenAnswer, expected: ExpectedAnswer | None = None
) -> float | None:
    """A figure of one answer; None where it is not known.

    Figures of filters are what the filter says, and known elsewhere.

    Args:
        expected: structure that the answer has to have; None: nobody says.

    Raises:
        KeyError: there is no such unpaired figure.
    """
    return _UNPAIRED[name](answer, _NOTHING if expected is None else expected)


def measure_paired_figure(
    name: str,
    base: WrittenAnswer,
    candidate: WrittenAnswer,
    expected: ExpectedAnswer | None = None,
) -> float | None:
    """A figure of the candidate's answer beside the base's; None where it is not known.

    Args:
        expected: structure that both have to have; None: nobody says.

    Raises:
        KeyError: there is no such paired figure.
    """
    return _PAIRED[name](base, candidate, _NOTHING if expected is None else expected)


# text      what was said, refusals among it
# calls     which tools are called, with which arguments
# thinking  what was thought before
# ending    why it ended
# form      arguments of calls came as a text of one side, as an object of the other
AnswerPart = Literal["text", "calls", "thinking", "ending", "form"]


def find_differing_parts(
    base: WrittenAnswer, candidate: WrittenAnswer, expected: ExpectedAnswer | None = None
) -> frozenset[AnswerPart]:
    """The parts in which the candidate's answer is not the base's; what nobody says differs not."""
    said = _NOTHING if expected is None else expected
    calls = _calls(base, said), _calls(candidate, said)
    ours, theirs = _said(base), _said(candidate)
    differing: dict[AnswerPart, bool] = {
        "text": ours[0] != theirs[0],
        "calls": None not in calls
        and canonical_calls(calls[0] or ()) != canonical_calls(calls[1] or ()),
        "thinking": ours[1] != theirs[1],
        "ending": _endings_differ(base, candidate),
        "form": _forms(calls[0]) != _forms(calls[1]) and bool(calls[0]) and bool(calls[1]),
    }
    return frozenset(part for part, differs in differing.items() if differs)


def calls_tools(answer: WrittenAnswer, expected: ExpectedAnswer | None = None) -> bool:
    """Whether an answer calls a tool, as far as that is known."""
    return bool(_calls(answer, _NOTHING if expected is None else expected))


_NOTHING = ExpectedAnswer()


def _tokens(answer: WrittenAnswer, _: ExpectedAnswer) -> float | None:
    if answer.n_tokens is not None:
        return float(answer.n_tokens)
    return None if answer.tokens is None else float(len(answer.tokens))


def _cut(answer: WrittenAnswer, _: ExpectedAnswer) -> float | None:
    return float(answer.ended == "length") if answer.ended else None


def _empty(answer: WrittenAnswer, _: ExpectedAnswer) -> float | None:
    return float(not answer.text.strip() and not calls_of_message(answer.message))


def _refused(answer: WrittenAnswer, _: ExpectedAnswer) -> float | None:
    """Unknown of a model that has no server to say so."""
    told = message_fields(answer.message)
    if told.keys().isdisjoint({"refusal", "finish_reason"}):
        return None
    return float(bool(told.get("refusal")) or told.get("finish_reason") == "content_filter")


def _loops(answer: WrittenAnswer, _: ExpectedAnswer) -> float | None:
    """Of what was written last: calls of tools, the text, or thoughts that no text follows."""
    calls = calls_of_message(answer.message) or ()
    thought = message_fields(answer.message).get("reasoning_content")
    written = calls[-1].arguments if calls else answer.text
    if not written.strip() and isinstance(thought, str) and thought:
        written = thought
    found = find_loop(written, answer.ended)
    if found is None and not written.strip() and answer.tokens is not None:
        found = find_token_loop(answer.tokens.ids.tolist(), answer.ended)
    return float(found is not None)


def _unclosed_thinking(answer: WrittenAnswer, _: ExpectedAnswer) -> float | None:
    """A server that sends thoughts apart has closed them, unless nothing came after them."""
    if message_fields(answer.message).get("reasoning_content"):
        return float(answer.ended == "length" and _empty(answer, _) == 1.0)
    part = find_thinking(answer.text, is_open=answer.thinking_open)
    return None if part is None else float(not part.is_closed)


def _structure(name: str) -> Callable[[WrittenAnswer, ExpectedAnswer], float | None]:
    def measure(answer: WrittenAnswer, expected: ExpectedAnswer) -> float | None:
        if expected is _NOTHING:
            return None
        verdict = judge_structure(name, answer.text, answer.message, expected)
        return None if verdict is None else verdict.share

    return measure


def _tool_call(answer: WrittenAnswer, expected: ExpectedAnswer) -> float | None:
    if expected is _NOTHING or "tool_call" not in expected.figures:
        return None
    calls = written_calls(answer.text, answer.message, expected)
    return None if calls is None else float(bool(calls))


def _other_script(base: WrittenAnswer, candidate: WrittenAnswer, _: Any) -> float | None:
    is_other = is_other_script(base.text, candidate.text)
    return None if is_other is None else float(is_other)


def _of_filters(answer: WrittenAnswer, _: ExpectedAnswer) -> float | None:  # noqa: ARG001
    return None


def _calls(answer: WrittenAnswer, expected: ExpectedAnswer) -> tuple[ToolCall, ...] | None:
    return written_calls(answer.text, answer.message, expected)


def _forms(calls: tuple[ToolCall, ...] | None) -> frozenset[bool]:
    return frozenset(call.as_text for call in calls or ())


def _said(answer: WrittenAnswer) -> tuple[str, str]:
    """An answer's text and its thinking, whether a server has parted them or not."""
    fields = message_fields(answer.message)
    thought, refusal = fields.get("reasoning_content"), fields.get("refusal")
    text, thinking = answer.text, str(thought or "").strip()
    if not thinking:
        thinking, text = split_thinking(text, is_open=answer.thinking_open)
    return f"{text}{refusal or ''}", thinking


# Reasons that mean the same, in the words of several servers.
_ENDINGS: Mapping[str, str] = {
    **dict.fromkeys(("eos", "eos_token", "end_turn", "stop_sequence"), "stop"),
    "function_call": "tool_calls",
    "max_tokens": "length",
}


def _endings_differ(base: WrittenAnswer, candidate: WrittenAnswer) -> bool:
    """Whether both say why they ended, and say something else."""
    ours, theirs = (message_fields(one.message).get("finish_reason") for one in (base, candidate))
    if not (isinstance(ours, str) and isinstance(theirs, str)):
        ours, theirs = base.ended, candidate.ended
    return bool(ours and theirs) and _ENDINGS.get(ours, ours) != _ENDINGS.get(theirs, theirs)


def _same_answer(
    base: WrittenAnswer, candidate: WrittenAnswer, expected: ExpectedAnswer
) -> float | None:
    """Unknown of one whose known parts are the same, and of whose calls nothing is known."""
    if find_differing_parts(base, candidate, expected):
        return 0.0
    known = None not in (_calls(base, expected), _calls(candidate, expected))
    return 1.0 if known else None


def _same_call(
    base: WrittenAnswer, candidate: WrittenAnswer, expected: ExpectedAnswer
) -> float | None:
    """Of two answers without any call it is 1: a call that nobody asked for would differ."""
    if None in (_calls(base, expected), _calls(candidate, expected)):
        return None
    return float("calls" not in find_differing_parts(base, candidate, expected))


def _first_differing(base: WrittenAnswer, candidate: WrittenAnswer) -> FirstDifference | None:
    return find_first_difference(
        base.text,
        candidate.text,
        base.tokens,
        candidate.tokens,
        greedy=base.greedy and candidate.greedy,
        ended=(base.ended, candidate.ended),
    )


def _first_difference(base: WrittenAnswer, candidate: WrittenAnswer, _: Any) -> float | None:
    """Of texts that are the same there is none."""
    found = _first_differing(base, candidate)
    return None if found is None or found.position is None else float(found.position)


def _beyond_ties(base: WrittenAnswer, candidate: WrittenAnswer, _: Any) -> float | None:
    found = _first_differing(base, candidate)
    if found is None:
        return 0.0
    return None if found.near_tie is None else float(not found.near_tie)


_UNPAIRED: dict[str, Callable[[WrittenAnswer, ExpectedAnswer], float | None]] = {
    "tokens": _tokens,
    "cut": _cut,
    "empty": _empty,
    "no_answer": _of_filters,
    "loops": _loops,
    "unclosed_thinking": _unclosed_thinking,
    "refused": _refused,
    "valid_json": _structure("valid_json"),
    "valid_schema": _structure("valid_schema"),
    "valid_pattern": _structure("valid_pattern"),
    "valid_tool_call": _structure("valid_tool_call"),
    "tool_call": _tool_call,
}
_PAIRED: dict[str, Callable[[WrittenAnswer, WrittenAnswer, ExpectedAnswer], float | None]] = {
    "other_script": _other_script,
    "first_difference": _first_difference,
    "first_difference_beyond_ties": _beyond_ties,
    "same_answer": _same_answer,
    "same_call": _same_call,
}
