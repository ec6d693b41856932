"""The thinking part of an answer: where it begins and ends by the marks of common templates.

A template may write the opening mark into the prompt (DeepSeek R1, QwQ, Qwen3 2507): the text then
has the closing mark alone. A chat server that sends ``reasoning_content`` has taken the part out.
"""

from __future__ import annotations

from dataclasses import dataclass

MARKS = (
    ("<think>", "</think>"),  # DeepSeek R1, Qwen3, GLM 4.5, MiniMax, Nemotron
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("<reasoning>", "</reasoning>"),
    ("<seed:think>", "</seed:think>"),  # Seed-OSS
    ("[THINK]", "[/THINK]"),  # Magistral
    ("◁think▷", "◁/think▷"),  # Kimi VL
    ("<|START_THINKING|>", "<|END_THINKING|>"),  # Command A Reasoning
    ("<|begin_of_thought|>", "<|end_of_thought|>"),  # OpenThinker
    ("<|channel|>analysis<|message|>", "<|end|>"),  # gpt-oss, where special tokens are shown
)
"""What opens and what closes a thinking part."""
_FIRST = tuple(dict.fromkeys(mark[0] for pair in MARKS for mark in pair))


@dataclass(frozen=True, slots=True, kw_only=True)
class ThinkingPart:
    """Where an answer thinks.

    Attributes:
        is_closed: whether the part has its end.
        rest: what follows it; the whole text where it has none.
    """

    is_closed: bool
    rest: str


def find_thinking(text: str, *, is_open: bool = False) -> ThinkingPart | None:
    """Return the thinking part that a text begins with; None: there is none.

    A mark further on in a text may be talk of marks, and opens nothing.

    Args:
        is_open: the prompt ends within a thinking part (``rendered_prompt.leaves_thinking_open``).
    """
    if not is_open and not any(first in text for first in _FIRST):
        return None
    begun = text.lstrip()
    for opening, closing in MARKS:
        if begun.startswith(opening):
            _, closed, rest = begun[len(opening) :].partition(closing)
            return ThinkingPart(is_closed=bool(closed), rest=rest if closed else text)
    closings = [(text.find(closing), closing) for _, closing in MARKS if closing in text]
    for place, closing in sorted(closings):
        if is_open or _begins_line(text, place):
            return ThinkingPart(is_closed=True, rest=text[place + len(closing) :])
    return ThinkingPart(is_closed=False, rest=text) if is_open else None


def _begins_line(text: str, place: int) -> bool:
    """Whether a closing mark that nothing opened begins a line, as templates have it."""
    return text[:place].endswith("\n")
