"""RenderedPrompt: a prompt that a chat template made, taken apart into turns by its role marks.

Marks are those that public templates write (the models' tokenizer_config.json); a prompt without
any of them is one turn without a role.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from evalguard.core.thinking import MARKS

# ""          the prompt says nothing about thinking
# open        it ends with the opening mark: the answer begins inside of the thinking part
# closed      it ends with an empty thinking part: no thinking, as of ``enable_thinking: false``
# asked off   a turn asks for none in words: /no_think
Thinking = Literal["", "open", "closed", "asked off"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One turn of a conversation.

    Attributes:
        role: system, user, assistant, tools, or as the template writes it; "" without marks.
        closed: whether an end mark follows.
    """

    role: str
    text: str
    closed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedPrompt:
    """A prompt in its parts.

    Attributes:
        begins: tokens that begin a text (BOS), as often as they stand there.
        marks: which template's role marks it has, as "<|im_start|> (ChatML)"; "" for none.
        turns: in order, without the generation prompt and without empty ones.
        opened: the generation prompt as it is written: the mark of a turn of the assistant that
            nothing closes, and what the template puts after it; "" where there is none.
        thinking: what the end of the prompt says about thinking.
        is_conversation: it is messages in JSON, which a server renders by its own template.
    """

    begins: tuple[str, ...] = ()
    marks: str = ""
    turns: tuple[Turn, ...] = ()
    opened: str = ""
    thinking: Thinking = ""
    is_conversation: bool = False


def take_apart(prompt: str) -> RenderedPrompt:
    """Take a prompt apart; whatever it is, this finds something.

    >>> asked = "<s><|im_start|>user\\nHi<|im_end|>\\n"
    >>> found = take_apart(asked + "<|im_start|>assistant\\n<think>\\n")
    >>> found.begins, found.marks, found.thinking
    (('<s>',), '<|im_start|> (ChatML)', 'open')
    >>> [(turn.role, turn.text.strip()) for turn in found.turns]
    [('user', 'Hi')]
    """
    messages = _read_messages(prompt)
    if messages is not None:
        return messages
    begins, rest = split_begins(prompt)
    marks = next((one for one in _MARKS if one.header.search(rest)), None)
    if marks is None:
        return RenderedPrompt(
            begins=begins, turns=(Turn(role="", text=rest),), thinking=thinking_of(prompt)
        )
    found = [turn for turn in _split_turns(rest, marks) if turn[1].text.strip() or turn[0]]
    opened = ""
    if found and found[-1][1].role == "assistant" and not found[-1][1].closed:
        header, last = found.pop()
        opened = header + last.text
    turns = tuple(turn for _, turn in found if turn.text.strip())
    return RenderedPrompt(
        begins=begins, marks=marks.name, turns=turns, opened=opened, thinking=thinking_of(prompt)
    )


def split_begins(prompt: str) -> tuple[tuple[str, ...], str]:
    """Return the tokens that begin a text, and the rest.

    >>> split_begins("<|begin_of_text|><|begin_of_text|>Hi")
    (('<|begin_of_text|>', '<|begin_of_text|>'), 'Hi')
    """
    begins: list[str] = []
    rest = prompt
    while (one := next((bos for bos in _BEGINS if rest.startswith(bos)), None)) is not None:
        begins.append(one)
        rest = rest[len(one) :]
    return tuple(begins), rest


def begins_a_turn(text: str) -> bool:
    """Whether a text begins with the mark of a role."""
    return any(one.header.match(text) for one in _MARKS)


def thinking_of(prompt: str) -> Thinking:
    """What a prompt says about thinking: answers to one that leaves it open begin inside of it."""
    end = _THINKING_END.search(prompt)
    if end is not None:
        return "closed" if end["close"] else "open"
    return "asked off" if _ASKED_OFF.search(prompt) else ""


def leaves_thinking_open(prompt: str) -> bool:
    """Whether ``thinking_of`` is "open", of prompts of any length and number."""
    return prompt.rstrip().endswith(_OPENING)


def without_thinking(text: str) -> str:
    """Return a text without what ``thinking_of`` reads."""
    return _ASKED_OFF.sub("", _THINKING_END.sub("", text))


@dataclass(frozen=True, slots=True)
class _Marks:
    """Role marks of one template; ``header`` has a group ``role``, or is a key of ``_ROLES``."""

    name: str
    header: re.Pattern[str]
    end: re.Pattern[str]


# Tokens that begin a text, by the special tokens of public tokenizers.
_BEGINS = (
    "<s>", "<bos>", "<|begin_of_text|>", "<|startoftext|>", "<|begin▁of▁sentence|>",
    "<｜begin▁of▁sentence｜>", "<BOS_TOKEN>", "<|bos|>", "<|endoftext|>", "[gMASK]", "<sop>",
)  # fmt: skip

_NEVER = r"(?!)"


def _marks(name: str, header: str, end: str = _NEVER) -> _Marks:
    return _Marks(name, re.compile(header, re.MULTILINE), re.compile(end))


# The first whose header is found counts: those of special tokens before words that may be a text's.
_MARKS = (
    _marks("<|im_start|> (ChatML)", r"<\|im_start\|>(?P<role>\w+)\n?", r"<\|im_end\|>"),
    _marks("<|start_header_id|> (Llama 3)",
           r"<\|start_header_id\|>(?P<role>\w+)<\|end_header_id\|>", r"<\|eo[tm]_id\|>"),
    _marks("<|header_start|> (Llama 4)", r"<\|header_start\|>(?P<role>\w+)<\|header_end\|>",
           r"<\|eo[tm]\|>"),
    _marks("<start_of_turn> (Gemma)", r"<start_of_turn>(?P<role>\w+)\n?", r"<end_of_turn>"),
    _marks("<|start_of_role|> (Granite)", r"<\|start_of_role\|>(?P<role>\w+)<\|end_of_role\|>",
           r"<\|end_of_text\|>"),
    _marks("<|START_OF_TURN_TOKEN|> (Command R)",
           r"<\|START_OF_TURN_TOKEN\|><\|(?P<role>\w+)_TOKEN\|>", r"<\|END_OF_TURN_TOKEN\|>"),
    _marks("<|start|> (Harmony)",
           r"<\|start\|>(?P<role>\w+)(?: to=\S+?)?(?:<\|channel\|>\w+)?(?:<\|message\|>|\Z)",
           r"<\|(?:end|return|call)\|>"),
    _marks("<|im_user|> (Kimi)", r"<\|im_(?P<role>user|assistant|system)\|>\w*<\|im_middle\|>",
           r"<\|im_end\|>"),
    _marks("<｜User｜> (DeepSeek)", r"<｜(?P<role>User|Assistant)｜>", r"<｜end▁of▁sentence｜>"),
    _marks("[INST] (Mistral, Llama 2)",
           r"(?P<role>\[/?INST\]|<</?SYS>>|\[/?SYSTEM_PROMPT\]|\[/?AVAILABLE_TOOLS\])", r"</s>"),
    _marks("<|user|> (Phi, Zephyr, GLM)",
           r"<\|(?P<role>user|assistant|system|observation|tool)\|>\n?",
           r"<\|end\|>|</s>|<\|endoftext\|>"),
    _marks("### Instruction: (Alpaca)", r"^### (?P<role>Instruction|Response|Input|System):",
           r"</s>"),
    _marks("USER: (Vicuna)", r"(?:^|(?<= )|(?<=</s>))(?P<role>USER|ASSISTANT|SYSTEM):", r"</s>"),
    _marks("user: (names of roles)", r"^(?P<role>user|assistant|system|Human|Assistant|User): ?"),
)  # fmt: skip

_ROLES = {
    "human": "user", "instruction": "user", "input": "user", "[inst]": "user", "<</sys>>": "user",
    "model": "assistant", "chatbot": "assistant", "bot": "assistant", "response": "assistant",
    "[/inst]": "assistant", "developer": "system", "<<sys>>": "system", "[system_prompt]": "system",
    "[available_tools]": "tools", "[/available_tools]": "", "[/system_prompt]": "",
}  # fmt: skip

_OPENING = tuple(opening for opening, _ in MARKS)
_OPENS, _CLOSES = ("|".join(map(re.escape, marks)) for marks in zip(*MARKS, strict=True))
_THINKING_END = re.compile(rf"(?P<open>{_OPENS})\s*(?P<close>{_CLOSES})?\s*\Z")
_ASKED_OFF = re.compile(r"\s*/no_?think\b")


def _split_turns(text: str, marks: _Marks) -> list[tuple[str, Turn]]:
    """Each turn with its mark as it is written; what stands before the first has no role."""
    headers = list(marks.header.finditer(text))
    before = text[: headers[0].start()]
    # DeepSeek and Vicuna write the system prompt before the first mark.
    found = [("", Turn(role="system", text=before))] if before.strip() else []
    ends = [header.start() for header in headers[1:]] + [len(text)]
    for header, end in zip(headers, ends, strict=True):
        name = header["role"].lower()
        content = text[header.end() : end]
        closing = marks.end.search(content)
        inside = content if closing is None else content[: closing.start()]
        turn = Turn(role=_ROLES.get(name, name), text=inside, closed=closing is not None)
        found.append((header[0], turn))
    return found


def _read_messages(prompt: str) -> RenderedPrompt | None:
    """A conversation in JSON, as lm-eval's clients of chat endpoints send it; None: it is none."""
    if not prompt.lstrip().startswith("["):
        return None
    try:
        messages = json.loads(prompt)
    except ValueError:
        return None
    if not (isinstance(messages, list) and messages and all(map(_is_message, messages))):
        return None
    turns = tuple(
        Turn(role=_ROLES.get(str(one["role"]), str(one["role"])), text=_content(one), closed=True)
        for one in messages
    )
    return RenderedPrompt(turns=turns, is_conversation=True, thinking=thinking_of(turns[-1].text))


def _is_message(one: object) -> bool:
    return isinstance(one, Mapping) and "role" in one


def _content(message: Mapping[str, object]) -> str:
    content = message.get("content")
    if isinstance(content, Sequence) and not isinstance(content, str):
        parts = (part.get("text", "") for part in content if isinstance(part, Mapping))
        return "".join(map(str, parts))
    return "" if content is None else str(content)
