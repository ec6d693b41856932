"""The thinking part of an answer: where it begins and ends by the marks of common templates.

A template may write the opening mark into the prompt (DeepSeek R1, QwQ, Qwen3 2507): the text then
has the closing mark alone. A chat server that sends ``reasoning_content`` has taken the part out.
"""

from __future__ import annotations

import re
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
    ("<|channel|>analysis", "<|end|>"),
    ("<unused94>thought", "<unused95>"),  # MedGemma
    ("<|inner_prefix|>", "<|inner_suffix|>"),  # Apertus
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


# What opens a part by the word in it, whatever surrounds it; gpt-oss without its special tokens.
_OPENED = re.compile(
    r"[<\[◁][|｜]?(?:(?:begin|start)(?:_of)?_|\w+[_:])?"
    r"(?P<word>think(?:ing)?|thoughts?|reason(?:ing)?|scratchpad|reflection|inner_monologue)"
    r"[|｜]?[>\]▷]|(?P<plain>analysis)(?=[A-Z][a-z' ])",
    re.IGNORECASE,
)
_FINAL = re.compile(r"\s*(?:<\|start\|>assistant)?<\|channel\|>final(?:<\|message\|>)?")
_SHORT = 60  # characters before a part that are no answer: "Sure, let me think."


def find_answer_after_thoughts(text: str, *, is_open: bool = False) -> str | None:
    """Return what follows all thinking parts, "" for thoughts alone; None: the text has none.

    Parts are those of ``find_thinking``, several after one another too, and what any mark opens
    that has a word for it, at the begin of the text or of a line that hardly anything precedes.
    """
    rest, thinks = text, False
    while (part := find_thinking(rest, is_open=is_open)) is not None:
        is_open, thinks = False, True
        if not part.is_closed:
            return ""
        rest = part.rest
    rest = _FINAL.sub("", rest, count=1)
    opened = _OPENED.search(rest[: 2 * _SHORT])
    if opened is not None and _opens_part(rest, opened.start()):
        if opened["plain"]:
            closed = re.search("assistant(?:final|commentary)", rest)
        else:
            word = rf"[<\[◁][|｜]?(?:/|end(?:_of)?_)[\w:]*{opened['word']}[|｜]?[>\]▷]"
            closed = re.search(word, rest, re.IGNORECASE)
        return "" if closed is None else rest[closed.end() :].strip()
    return rest.strip() if thinks else None


def _opens_part(text: str, place: int) -> bool:
    before = text[:place]
    return not before.strip() or (place <= _SHORT and before.rstrip(" ").endswith("\n"))


def split_thinking(text: str, *, is_open: bool = False) -> tuple[str, str]:
    """Return a text's closed thinking part, without its marks, and what follows it.

    ("", the text) where it has none, or one without an end.
    """
    part = find_thinking(text, is_open=is_open)
    if part is None or not part.is_closed:
        return "", text
    thought = text[: len(text) - len(part.rest)].strip()
    for opening, closing in MARKS:
        if thought.endswith(closing):
            thought = thought.removesuffix(closing).removeprefix(opening)
            break
    return thought.strip(), part.rest.lstrip()


def _begins_line(text: str, place: int) -> bool:
    """Whether a closing mark that nothing opened begins a line, as templates have it."""
    return text[:place].endswith("\n")
