"""Chat: requests, prompts that a template rendered, and the thinking part of an answer.

Marks are those that public templates write (the models' tokenizer_config.json); a prompt without
any of them is one turn without a role.

Source of the fields: OpenAI's API reference, "Create chat completion".

A template may write the opening mark into the prompt (DeepSeek R1, QwQ, Qwen3 2507): the text then
has the closing mark alone. A chat server that sends ``reasoning_content`` has taken the part out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from evalguard.core.settings import Value

# Where a request says nothing; lm-eval's 256 would cut most answers of reasoning models.
DEFAULT_TOKENS = 1024
_NEWER = "max_completion_tokens"
LENGTHS = (_NEWER, "max_tokens")
# What decides how tokens are drawn, in names that servers and transformers share.
SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
# Of a template: what servers hand to it beside messages and tools (vLLM, SGLang, llama.cpp).
_TEMPLATE_FIELDS = ("reasoning_effort",)
# Which change no answer of a model in this process, or are met there in another way.
_WITHOUT_EFFECT = (
    "seed", "stream", "stream_options", "logprobs", "top_logprobs", "n", "user", "metadata",
    "store", "service_tier", "prompt_cache_key", "safety_identifier", "parallel_tool_calls",
    "chat_template_kwargs", *_TEMPLATE_FIELDS,
)  # fmt: skip
_KEY = "chat"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """One request.

    Attributes:
        messages: with ``role`` first, as servers take them.
        name: as the file has it; "": it has none. It is not sent.
        tools, tool_choice, response_format: None and () where the request has none.
        parameters: everything else, by OpenAI's (or the server's) names.
    """

    messages: tuple[Mapping[str, Value], ...]
    name: str = ""
    tools: tuple[Mapping[str, Value], ...] = ()
    tool_choice: Value = None
    response_format: Mapping[str, Value] | None = None
    parameters: Mapping[str, Value] = field(default_factory=dict)

    @property
    def document(self) -> dict[str, Value]:
        """All of it as JSON values, of which equal ones are equal questions."""
        named: dict[str, Value] = {"id": self.name} if self.name else {}
        messages = cast("Value", [dict(message) for message in self.messages])
        return {**named, "messages": messages, **self._asked, **self.parameters}

    @property
    def _asked(self) -> dict[str, Value]:
        requested: dict[str, Value] = {}
        if self.tools:
            requested["tools"] = cast("Value", [dict(tool) for tool in self.tools])
        if self.tool_choice is not None:
            requested["tool_choice"] = self.tool_choice
        if self.response_format is not None:
            requested["response_format"] = cast("Value", dict(self.response_format))
        return requested

    @property
    def arguments(self) -> tuple[str, dict[str, Value]]:
        """lm-eval's arguments: the conversation as JSON, and how to go on with it.

        Greedy where the request says nothing. What lm-eval has no name for stands under one key,
        which ``read_chat_request`` finds.
        """
        given = dict(self.parameters)
        lengths = [given.pop(name, None) for name in LENGTHS]
        stops = given.pop("stop", None)
        options: dict[str, Value] = {
            "max_gen_toks": next(
                (length for length in lengths if length is not None), DEFAULT_TOKENS
            ),
            "until": [stops]
            if isinstance(stops, str)
            else list(cast("Sequence[str]", stops or ())),
        }
        options |= {name: given.pop(name) for name in SAMPLING if given.get(name) is not None}
        drawn = float(cast("float", options.setdefault("temperature", 0.0))) > 0.0
        options["do_sample"] = drawn
        named = {_NEWER: lengths[0]} if lengths[0] is not None else {}
        options[_KEY] = {**self._asked, **named, **given}
        return json.dumps(list(self.messages), ensure_ascii=False), options

    @property
    def offered(self) -> tuple[Mapping[str, Value], ...]:
        """The tools that may be called: none, or one, where ``tool_choice`` says so."""
        if self.tool_choice == "none":
            return ()
        chosen = chosen_function(self.tool_choice)
        return tuple(tool for tool in self.tools if chosen in ("", function_name(tool)))

    @property
    def template_options(self) -> dict[str, Value]:
        """What a chat template is told beside messages and tools."""
        own = self.parameters.get("chat_template_kwargs")
        template_fields = {n: self.parameters[n] for n in _TEMPLATE_FIELDS if n in self.parameters}
        return {**template_fields, **(own if isinstance(own, Mapping) else {})}

    @property
    def unmet(self) -> tuple[str, ...]:
        """What only a server can do: fields that a model in this process does not follow."""
        known = (*LENGTHS, *SAMPLING, "stop", *_WITHOUT_EFFECT)
        constrained = () if self.response_format in (None, {"type": "text"}) else _FORMAT
        forced = () if self.tool_choice in (None, "auto", "none") else ("tool_choice",)
        given = (n for n, value in self.parameters.items() if n not in known and value is not None)
        return (*forced, *constrained, *given)


_FORMAT = ("response_format",)
# Of a task's document, which request of the file it is; no field of OpenAI's.
PLACE = "request"


def read_chat_document(document: Any) -> ChatRequest | None:
    """Return the request that a task's document is; None: it is another task's."""
    if not isinstance(document, Mapping) or not {PLACE, "messages"} <= document.keys():
        return None
    given = dict(document)
    del given[PLACE]
    return ChatRequest(
        name=str(given.pop("id", "")),
        messages=tuple(given.pop("messages")),
        tools=tuple(given.pop("tools", ())),
        tool_choice=given.pop("tool_choice", None),
        response_format=given.pop("response_format", None),
        parameters=given,
    )


def read_chat_request(arguments: Sequence[Any]) -> ChatRequest | None:
    """Return what arguments ask, if a ``ChatRequest`` made them; None: they are another task's."""
    options = arguments[1] if len(arguments) > 1 else None
    if not isinstance(options, Mapping) or _KEY not in options:
        return None
    asked = dict(options[_KEY])
    asked.pop(_NEWER, None)
    lengths = {"max_tokens": options["max_gen_toks"]} if "max_gen_toks" in options else {}
    return ChatRequest(
        messages=tuple(json.loads(arguments[0])),
        tools=tuple(asked.pop("tools", ())),
        tool_choice=asked.pop("tool_choice", None),
        response_format=asked.pop("response_format", None),
        parameters={**asked, **lengths, **{n: options[n] for n in SAMPLING if n in options}},
    )


def take_chat_fields(options: dict[str, Any]) -> dict[str, Any] | None:
    """Take what lm-eval has no name for out of generation arguments; None: there is nothing."""
    fields = options.pop(_KEY, None)
    return None if fields is None else dict(fields)


def function_name(tool: Mapping[str, Value]) -> str:
    """The name of a tool that is a function; "" for any other."""
    function = tool.get("function")
    return str(function.get("name", "")) if isinstance(function, Mapping) else ""


def chosen_function(tool_choice: Value) -> str:
    """The function that has to be called; "" where any, or none, may be."""
    return function_name(tool_choice) if isinstance(tool_choice, Mapping) else ""


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
    for position, closing in sorted(closings):
        if is_open or _begins_line(text, position):
            return ThinkingPart(is_closed=True, rest=text[position + len(closing) :])
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
    marks = next((style for style in _MARKS if style.header.search(rest)), None)
    if marks is None:
        return RenderedPrompt(
            begins=begins, turns=(Turn(role="", text=rest),), thinking=thinking_of(prompt)
        )
    parts = [turn for turn in _split_turns(rest, marks) if turn[1].text.strip() or turn[0]]
    opened = ""
    if parts and parts[-1][1].role == "assistant" and not parts[-1][1].closed:
        header, last = parts.pop()
        opened = header + last.text
    turns = tuple(turn for _, turn in parts if turn.text.strip())
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
    while (token := next((bos for bos in _BEGINS if rest.startswith(bos)), None)) is not None:
        begins.append(token)
        rest = rest[len(token) :]
    return tuple(begins), rest


def begins_a_turn(text: str) -> bool:
    """Whether a text begins with the mark of a role."""
    return any(marks.header.match(text) for marks in _MARKS)


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
    turns = [("", Turn(role="system", text=before))] if before.strip() else []
    ends = [header.start() for header in headers[1:]] + [len(text)]
    for header, end in zip(headers, ends, strict=True):
        name = header["role"].lower()
        content = text[header.end() : end]
        closing = marks.end.search(content)
        inside = content if closing is None else content[: closing.start()]
        turn = Turn(role=_ROLES.get(name, name), text=inside, closed=closing is not None)
        turns.append((header[0], turn))
    return turns


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
        Turn(
            role=_ROLES.get(str(message["role"]), str(message["role"])),
            text=_content(message),
            closed=True,
        )
        for message in messages
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
