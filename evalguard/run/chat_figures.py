"""Figures of answers to chat requests: those that the gate holds to where nobody names any."""

from __future__ import annotations

from collections.abc import Sequence

from evalguard.core.answer_figures import FIGURES
from evalguard.core.chat_requests import ChatRequest
from evalguard.core.expected_answers import ExpectedAnswer

# Of any answer, and more of them is a change for the worse.
_OF_ALL = ("cut", "empty", "loops", "first_difference_beyond_ties")


def choose_chat_figures(requests: Sequence[ChatRequest]) -> tuple[str, ...]:
    """Return the figures that can be known of any of these requests, in the order of all."""
    known = {name for one in requests for name in ExpectedAnswer.of_request(one).figures}
    return tuple(name for name in FIGURES if name in known or name in _OF_ALL)
