"""Figures of answers to chat requests: those that the gate holds to where nobody names any."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from evalguard.core.chat import ChatRequest
from evalguard.core.expected_answers import ExpectedAnswer
from evalguard.core.figures import FIGURES
from evalguard.core.gate import Gate

# Of any answer, and more of them is a change for the worse.
_OF_ALL = ("empty", "loops")
# Likewise, where somebody says why an answer ended; and where both models show their tokens: else
# only answers that are the same would count.
_WHERE_SAID, _OF_TOKENS = ("cut",), ("first_difference_beyond_ties",)


def gate_chat_figures(
    gate: Gate, chats: Mapping[str, Sequence[ChatRequest]], *, tokens_shown: bool
) -> Gate:
    """Return a gate that is held to every figure that requests make known, of answers to them.

    Args:
        chats: requests by the name of the task that they are.
        tokens_shown: whether both models show the tokens that they write.
    """
    known, perhaps = list(gate.figures), list(gate.figures_where_known)
    for task, requests in chats.items():
        asked = {name for one in requests for name in ExpectedAnswer.of_request(one).figures}
        known += [f"{task}/{name}" for name in FIGURES if name in asked or name in _OF_ALL]
        more = _OF_TOKENS if tokens_shown else ()
        perhaps += [f"{task}/{name}" for name in (*_WHERE_SAID, *more)]
    return replace(
        gate,
        figures=tuple(dict.fromkeys(known)),
        figures_where_known=tuple(dict.fromkeys(perhaps)),
    )
