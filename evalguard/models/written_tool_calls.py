"""Tool calls that a model wrote as text, read by the form that its chat template teaches it.

Forms are told from each other by the marks in the template's own text. Their shapes are those of
the models' cards and templates, as vLLM's and SGLang's tool parsers read them too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from evalguard.core.chat import function_name
from evalguard.core.settings import Value

BROKEN = ""
"""The name of a call that was begun by its mark, and is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenCall:
    """A call: the function's name, "" where it has none, and its arguments as they were written."""

    name: str
    arguments: str

    @property
    def message(self) -> dict[str, Value]:
        """In OpenAI's words."""
        return {"type": "function", "function": {"name": self.name, "arguments": self.arguments}}


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenMessage:
    """A text taken apart.

    Attributes:
        text: what is said to the user.
        calls: () where nothing is called.
        reasoning: what was thought before, where the template has a part for it.
        unclosed: a part was opened and not closed; ``text`` is then all that was written.
    """

    text: str
    calls: tuple[WrittenCall, ...] = ()
    reasoning: str = ""
    unclosed: bool = False


Tools = Sequence[Mapping[str, Value]]
_Reader = Callable[[str, Tools], WrittenMessage]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolForm:
    """How a family of models writes calls.

    Attributes:
        name: for people.
        marks: texts that a template has, all of them, where its model writes so.
        read: takes a text apart.
        unmarked: a call is JSON and nothing else: in other words around it, it is not seen.
    """

    name: str
    marks: tuple[str, ...]
    read: _Reader = field(compare=False, repr=False)
    unmarked: bool = False

    def is_taught_by(self, template: str) -> bool:
        """Whether a template has the form's marks."""
        return all(mark in template for mark in self.marks)


def find_tool_form(template: str) -> ToolForm | None:
    """Return the form that a chat template teaches; None: none of those that are known."""
    return next((form for form in TOOL_FORMS if form.is_taught_by(template)), None)


_THINKING = (("<think>", "</think>"), ("<seed:think>", "</seed:think>"), ("[THINK]", "[/THINK]"))


def split_thinking(text: str) -> tuple[str, str, bool]:
    """Return (what was thought, the rest, whether the thinking has no end).

    The opening may stand in the prompt, so that the text has the end alone.
    """
    for opening, closing in _THINKING:
        before, mark, after = text.partition(closing)
        if mark:
            return before.replace(opening, "", 1).strip(), after.lstrip(), False
        if text.lstrip().startswith(opening):
            return "", text, True
    return "", text, False


def _between(text: str, opening: str, closing: str) -> tuple[str, list[str], bool]:
    """Return the text without its marked parts, these parts, and whether the last has no end."""
    rest, parts, unclosed = [], [], False
    while True:
        before, mark, after = text.partition(opening)
        rest.append(before)
        if not mark:
            break
        part, ended, text = after.partition(closing)
        parts.append(part.strip())
        unclosed = not ended
    return "".join(rest).strip(), parts, unclosed


def _as_text(arguments: Any) -> str:
    """Arguments as JSON; text stays as it was written, as OpenAI's own servers pass it on."""
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _call_of(found: Any, written: str) -> WrittenCall:
    """A call of ``{"name": ..., "arguments": ...}``; broken where it is none."""
    if isinstance(found, dict) and isinstance(found.get("function"), dict):
        found = found["function"]
    if not isinstance(found, dict) or not isinstance(found.get("name"), str):
        return WrittenCall(name=BROKEN, arguments=written)
    given = found.get("arguments", found.get("parameters", {}))
    return WrittenCall(name=found["name"], arguments=_as_text(given))


def _json_calls(part: str) -> list[WrittenCall]:
    """The calls of a part that is a JSON object, or a list of them; one broken call otherwise."""
    try:
        parsed = json.loads(part)
    except (ValueError, RecursionError):
        return [WrittenCall(name=BROKEN, arguments=part)]
    listed = parsed if isinstance(parsed, list) and parsed else [parsed]
    return [_call_of(entry, part) for entry in listed]


def _in_parts(
    opening: str, closing: str, read: Callable[[str, Tools], Sequence[WrittenCall]]
) -> _Reader:
    """A form whose calls stand between marks."""

    def reader(text: str, tools: Tools) -> WrittenMessage:
        thought, rest, endless = split_thinking(text)
        content, parts, unclosed = _between(rest, opening, closing)
        calls = tuple(call for part in parts for call in read(part, tools))
        return WrittenMessage(
            text=text.strip() if endless or unclosed else content,
            calls=() if endless else calls,
            reasoning=thought,
            unclosed=endless or unclosed,
        )

    return reader


_FUNCTION = re.compile(r"<function=([^>\n]+)>(.*?)(?:</function>|\Z)", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\n]+)>(.*?)(?:</parameter>|(?=<parameter=)|\Z)", re.DOTALL)
_GLM_PAIR = re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)(?:</arg_value>|\Z)", re.DOTALL)


def _read_xml(part: str, tools: Tools) -> list[WrittenCall]:
    """Qwen3-Coder's: ``<function=NAME><parameter=KEY>VALUE</parameter></function>``."""
    functions = [
        (name.strip(), {k.strip(): v.strip("\n") for k, v in _PARAMETER.findall(body)})
        for name, body in _FUNCTION.findall(part)
    ]
    if not functions:
        return [WrittenCall(name=BROKEN, arguments=part)]
    return [_typed_call(name, values, tools) for name, values in functions]


def _read_glm(part: str, tools: Tools) -> list[WrittenCall]:
    """GLM 4.5's: ``NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>``."""
    name = part.partition("<arg_key>")[0].strip()
    if not name or "\n" in name:
        return [WrittenCall(name=BROKEN, arguments=part)]
    return [_typed_call(name, dict(_GLM_PAIR.findall(part)), tools)]


def _typed_call(name: str, values: Mapping[str, str], tools: Tools) -> WrittenCall:
    """A call whose values were written as texts: JSON, but where the tool wants a text."""
    schemas = _properties(name, tools)
    typed = {key: _typed(value, schemas.get(key)) for key, value in values.items()}
    return WrittenCall(name=name, arguments=_as_text(typed))


def _properties(name: str, tools: Tools) -> Mapping[str, Any]:
    tool = next((offered for offered in tools if function_name(offered) == name), {})
    function = tool.get("function")
    schema = function.get("parameters") if isinstance(function, Mapping) else None
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    return properties if isinstance(properties, Mapping) else {}


def _typed(value: str, schema: Any) -> Any:
    if isinstance(schema, Mapping) and schema.get("type") == "string":
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _read_hermes(part: str, tools: Tools) -> list[WrittenCall]:
    return _read_xml(part, tools) if part.startswith("<function=") else _json_calls(part)


_MISTRAL_NAMED = re.compile(r"\s*([\w.-]+)\s*(?:\[CALL_ID\][^\[{]*)?(?:\[ARGS\])?\s*(?=\{)")


def _read_mistral(text: str, tools: Tools) -> WrittenMessage:  # noqa: ARG001
    """Mistral's ``[TOOL_CALLS][{...}, ...]``, or ``[TOOL_CALLS]NAME[ARGS]{...}`` for each call."""
    thought, rest, endless = split_thinking(text)
    if endless:
        return WrittenMessage(text=text.strip(), unclosed=True)
    content, *parts = rest.split("[TOOL_CALLS]")
    calls: list[WrittenCall] = []
    for part in parts:
        named = _MISTRAL_NAMED.match(part)
        if named is None:
            calls += _json_calls(part.strip())
        else:
            calls.append(WrittenCall(name=named[1], arguments=part[named.end() :].strip()))
    return WrittenMessage(text=content.strip(), calls=tuple(calls), reasoning=thought)


_DEEPSEEK_FENCE = re.compile(r"^```(?:json)?\s*\n(.*?)(?:\n```)?\s*$", re.DOTALL)


def _read_deepseek(part: str, tools: Tools) -> list[WrittenCall]:  # noqa: ARG001
    """``function<sep>NAME`` with arguments in a fence (V3, R1), or ``NAME<sep>{...}`` (V3.1)."""
    before, separator, after = part.partition("<｜tool▁sep｜>")
    if not separator:
        return [WrittenCall(name=BROKEN, arguments=part)]
    name, _, rest = after.partition("\n")
    fenced = _DEEPSEEK_FENCE.match(rest.strip())
    if before.strip() == "function" and fenced is not None:
        return [WrittenCall(name=name.strip(), arguments=fenced[1].strip())]
    return [WrittenCall(name=before.strip(), arguments=after.strip())]


def _read_kimi(part: str, tools: Tools) -> list[WrittenCall]:  # noqa: ARG001
    """Kimi K2's ``functions.NAME:INDEX<|tool_call_argument_begin|>{...}``."""
    name, separator, arguments = part.partition("<|tool_call_argument_begin|>")
    if not separator:
        return [WrittenCall(name=BROKEN, arguments=part)]
    plain = name.strip().removeprefix("functions.").rpartition(":")[0] or name.strip()
    return [WrittenCall(name=plain, arguments=arguments.strip())]


def _in_section(reader: _Reader, marks: Sequence[str]) -> _Reader:
    """A form whose calls stand together between two more marks, which are no part of the text."""

    def read(text: str, tools: Tools) -> WrittenMessage:
        message = reader(text, tools)
        return message if message.unclosed else replace(message, text=_without(message.text, marks))

    return read


def _without(text: str, marks: Sequence[str]) -> str:
    for mark in marks:
        text = text.replace(mark, "")
    return text.strip()


_in_kimi = _in_section(
    _in_parts("<|tool_call_begin|>", "<|tool_call_end|>", _read_kimi),
    ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
)
_in_deepseek = _in_section(
    _in_parts("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", _read_deepseek),
    ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
)
_HARMONY = re.compile(
    r"(?:<\|start\|>)?(?P<head>[^<]*(?:<\|(?:channel|constrain)\|>[^<]*)*)<\|message\|>"
    r"(?P<body>.*?)(?P<end><\|end\|>|<\|call\|>|<\|return\|>|(?=<\|start\|>)|\Z)",
    re.DOTALL,
)
_RECIPIENT = re.compile(r"to=(?:functions\.)?([\w.-]+)")
_HARMONY_ENDS = ("<|end|>", "<|call|>", "<|return|>")


def _read_harmony(text: str, tools: Tools) -> WrittenMessage:  # noqa: ARG001
    """gpt-oss's channels: analysis, commentary (with a recipient: a call) and final.

    The mark that ends all of it is often taken off with the end-of-text token.
    """
    calls: list[WrittenCall] = []
    answer_parts: list[str] = []
    thought: list[str] = []
    thinks = False
    for segment in _HARMONY.finditer(text):
        head, body = segment["head"], segment["body"]
        recipient = _RECIPIENT.search(head)
        thinks = False
        if recipient is not None:
            calls.append(WrittenCall(name=recipient[1], arguments=body.strip()))
        elif "<|channel|>analysis" in head:
            thought.append(body.strip())
            thinks = segment["end"] not in _HARMONY_ENDS
        else:
            answer_parts.append(body.strip())
    if not (calls or answer_parts or thought):
        return WrittenMessage(text=text.strip())
    return WrittenMessage(
        text=text.strip() if thinks else "\n".join(answer_parts),
        calls=tuple(calls),
        reasoning="\n".join(thought),
        unclosed=thinks,
    )


_LLAMA_TAG = "<|python_tag|>"


def _read_llama(text: str, tools: Tools) -> WrittenMessage:
    """Llama 3's: the whole answer is JSON, after ``<|python_tag|>`` or not; several by ";"."""
    content, tagged, after = text.partition(_LLAMA_TAG)
    if not tagged:
        return _read_plain(text, tools)
    parts = list(_json_objects(after))
    calls = [call for part in parts for call in _json_calls(part)]
    broken = [WrittenCall(name=BROKEN, arguments=after.strip())]
    return WrittenMessage(text=content.strip(), calls=tuple(calls or broken))


def _read_plain(text: str, tools: Tools) -> WrittenMessage:  # noqa: ARG001
    """An answer that is nothing but JSON with a name and arguments, in a fence or not.

    Anything else is an answer in words: JSON may stand in it for other reasons.
    """
    thought, rest, endless = split_thinking(text)
    if endless:
        return WrittenMessage(text=text.strip(), unclosed=True)
    fenced = re.fullmatch(r"\s*```(?:json)?\s*\n(.*?)\n?```\s*", rest, re.DOTALL)
    inner = (fenced[1] if fenced else rest).strip()
    parts = [inner] if inner.startswith("[") else list(_json_objects(inner))
    calls = [call for part in parts if _names_arguments(part) for call in _json_calls(part)]
    if calls and all(call.name for call in calls):
        return WrittenMessage(text="", calls=tuple(calls), reasoning=thought)
    return WrittenMessage(text=rest.strip(), reasoning=thought)


def _names_arguments(part: str) -> bool:
    """Whether JSON is written as a call is, and not as any other answer."""
    return '"name"' in part and ('"arguments"' in part or '"parameters"' in part)


def _json_objects(text: str) -> Iterator[str]:
    """Objects that stand one after the other, nothing but ";" or commas between; else none."""
    decoder, at = json.JSONDecoder(), 0
    objects: list[str] = []
    text = text.strip()
    while at < len(text):
        try:
            value, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            return
        if not isinstance(value, dict):
            return
        objects.append(text[at:end])
        at = end
        while at < len(text) and text[at] in "; ,\n\t":
            at += 1
    yield from objects


TOOL_FORMS: tuple[ToolForm, ...] = (
    ToolForm(name="gpt-oss (harmony)", marks=("<|channel|>", "<|message|>"), read=_read_harmony),
    ToolForm(name="Kimi K2", marks=("<|tool_call_begin|>",), read=_in_kimi),
    ToolForm(name="DeepSeek", marks=("<｜tool▁call▁begin｜>",), read=_in_deepseek),
    ToolForm(name="Mistral", marks=("[TOOL_CALLS]",), read=_read_mistral),
    ToolForm(
        name="GLM",
        marks=("<tool_call>", "<arg_key>"),
        read=_in_parts("<tool_call>", "</tool_call>", _read_glm),
    ),
    ToolForm(
        name="Qwen XML",
        marks=("<tool_call>", "<function="),
        read=_in_parts("<tool_call>", "</tool_call>", _read_hermes),
    ),
    ToolForm(
        name="Hermes",
        marks=("<tool_call>",),
        read=_in_parts("<tool_call>", "</tool_call>", _read_hermes),
    ),
    ToolForm(name="Llama 3", marks=("<|python_tag|>",), read=_read_llama),
    ToolForm(name="Llama 3", marks=("ipython", "parameters"), read=_read_llama, unmarked=True),
    ToolForm(name="JSON", marks=('"name"', '"parameters"'), read=_read_plain, unmarked=True),
    ToolForm(name="JSON", marks=('"name"', '"arguments"'), read=_read_plain, unmarked=True),
)
"""In this order: the first whose marks a template has is the one."""
