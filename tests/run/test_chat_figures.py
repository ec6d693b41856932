"""Which figures of answers to chat requests the gate holds to where nobody names any."""

from __future__ import annotations

from typing import Any

import pytest

from evalguard.core.chat import ChatRequest
from evalguard.core.gate import Gate
from evalguard.engine.choices import gate_chat_figures

TOOL: Any = {"type": "function", "function": {"name": "f"}}
SAY: Any = {"role": "user", "content": "hello"}


def gated(*requests: ChatRequest, tokens_shown: bool = False, **given: Any) -> Gate:
    return gate_chat_figures(Gate(**given), {"calls": requests}, tokens_shown=tokens_shown)


def request(**given: Any) -> ChatRequest:
    return ChatRequest(messages=(SAY,), **given)


@pytest.mark.parametrize(
    ("given", "more"),
    [
        ({}, []),
        ({"tools": (TOOL,)}, ["calls/valid_tool_call", "calls/tool_call"]),
        ({"response_format": {"type": "json_object"}}, ["calls/valid_json"]),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
            ["calls/valid_schema"],
        ),
    ],
)
def test_a_figure_is_gated_where_a_request_makes_it_known(
    given: dict[str, Any], more: list[str]
) -> None:
    gate = gated(request(), request(**given))
    assert set(gate.figures) == {"calls/empty", "calls/loops", *more}
    assert gate.figures_where_known == ("calls/cut",)


def test_first_differences_need_the_tokens_of_both() -> None:
    gate = gated(request(), tokens_shown=True)
    assert "calls/first_difference_beyond_ties" in gate.figures_where_known


def test_what_the_gate_names_by_itself_stays() -> None:
    gate = gated(request(), figures=("gsm8k/loops", "calls/loops"), advisory=("calls/empty",))
    assert gate.figures == ("gsm8k/loops", "calls/loops", "calls/empty")
    assert not gate.covers("calls", "text", "empty")
    assert gate.covers("calls", "text", "cut")


def test_a_gate_without_requests_is_as_it_was() -> None:
    assert gate_chat_figures(Gate(), {}, tokens_shown=True) == Gate()
