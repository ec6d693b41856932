"""ExpectedAnswer: the structure that an answer must have, as a guard file or a request says it."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from decimal import Decimal
from typing import Any, Literal

from evalguard.core.chat import ChatRequest, chosen_function
from evalguard.core.settings import Value

# required   at least one tool has to be called
# allowed    an answer in words is as good
# forbidden  none may be called
CallRule = Literal["required", "allowed", "forbidden"]
Schema = Mapping[str, Value] | bool
Tool = Mapping[str, Value]
_RULES: dict[Value, CallRule] = {"required": "required", "any": "required", "none": "forbidden"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedAnswer:
    """What is known of an answer's structure before it is written; nothing by default.

    Attributes:
        json: it is JSON.
        schema: it is JSON that a JSON schema allows; None: there is none.
        pattern: regular expression that the whole text has to match; "": there is none.
        tools: functions that it may call, as OpenAI's ``tools``.
        call: whether it calls one.
        named: the only function that it may call; "": any of ``tools``.
        parallel: whether it may call several, or one several times.
        as_text: calls are written into the text, as JSON, and no server takes them out.
    """

    json: bool = False
    schema: Schema | None = None
    pattern: str = ""
    tools: tuple[Tool, ...] = ()
    call: CallRule = "allowed"
    named: str = ""
    parallel: bool = True
    as_text: bool = False

    @classmethod
    def of_request(cls, request: ChatRequest) -> ExpectedAnswer:
        """What a chat request asks for, by its tools, tool_choice and response_format."""
        named = chosen_function(request.tool_choice)
        choice = request.tool_choice if isinstance(request.tool_choice, str) else ""
        asked = request.response_format or {}
        given = asked.get("json_schema")
        schema = given.get("schema") if isinstance(given, Mapping) else None
        return cls(
            json=asked.get("type") == "json_object",
            schema=schema if isinstance(schema, (Mapping, bool)) else None,
            tools=request.tools,
            call="required" if named else _RULES.get(choice, "allowed"),
            named=named,
            parallel=request.parameters.get("parallel_tool_calls") is not False,
        )

    @classmethod
    def read(cls, document: Value) -> ExpectedAnswer:
        """Read ``document`` back.

        Raises:
            TypeError: it is something else.
        """
        if not isinstance(document, Mapping):
            raise TypeError(f"what an answer must be is {document!r}")
        given: dict[str, Any] = dict(document)
        return cls(**{**given, "tools": tuple(given.get("tools", ()))})

    @property
    def document(self) -> dict[str, Value]:
        """What is said, as plain data."""
        nothing = ExpectedAnswer()
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        given = {name: own for name, own in values.items() if own != getattr(nothing, name)}
        return {**given, **({"tools": list(self.tools)} if self.tools else {})}

    @property
    def entry(self) -> dict[str, Value]:
        """As a guard file says it."""
        names = ("json", "schema", "pattern", "tools")
        given = {name: own for name, own in self.document.items() if name in names}
        return {**given, **({"call": self.call} if self.tools else {})}

    @property
    def figures(self) -> tuple[str, ...]:
        """The figures of answers that it makes known."""
        known = {
            "valid_json": self.json,
            "valid_schema": self.schema is not None,
            "valid_pattern": bool(self.pattern),
            "valid_tool_call": bool(self.tools),
            "tool_call": bool(self.tools) and self.call != "forbidden",
        }
        return tuple(name for name, is_known in known.items() if is_known)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One call.

    Attributes:
        name: of the function; "": the call names none.
        arguments: as they were written, JSON or not.
        as_text: whether they came as a text, as OpenAI's clients read them, and not as an object.
    """

    name: str
    arguments: str
    as_text: bool = True


def canonical_calls(calls: Sequence[ToolCall]) -> tuple[tuple[str, str], ...]:
    """What an answer calls, of which equal ones do the same: name and arguments of each call.

    Arguments are one whatever the order of their keys, the white space, the escapes of characters
    and the form of numbers (1, 1.0, 1e0); what is no JSON is itself. Calls of one answer are made
    side by side: their order is no part of it, their number is.
    """
    return tuple(sorted((call.name, _canonical_json(call.arguments)) for call in calls))


def calls_of_message(message: str) -> tuple[ToolCall, ...] | None:
    """The calls of a ``Response.message``; None where it does not say whether there are any.

    A call that is no function's has no name; arguments that a server sends as an object, and not
    as the text of one, are written as JSON.
    """
    listed = message_fields(message).get("tool_calls", [])
    if not isinstance(listed, list):
        return None
    return tuple(_call(call) for call in listed)


def message_fields(message: str) -> Mapping[str, Any]:
    """What a chat server answered beside its text; {} where nothing, or what is no JSON object."""
    if not message:
        return {}
    try:
        parsed = json.loads(message)
    except (ValueError, RecursionError):
        return {}
    return parsed if isinstance(parsed, dict) else {}


def calls_of_text(text: str) -> tuple[ToolCall, ...]:
    """The calls of a text that consists of calls as JSON, or has them in <tool_call> tags.

    A call is ``{"name": ..., "arguments": ...}`` (or "parameters"), alone, in a list, or as
    OpenAI's ``{"function": ...}``. Other text than white space is allowed around tags alone.
    """
    parts = _TAGGED.findall(text) or [text]
    return tuple(call for part in parts for call in _calls_of_json(part))


def looks_like_call(text: str, names: Collection[str]) -> bool:
    """Whether a text has the marks of a call in it, or JSON that calls one of these functions."""
    if any(mark in text for mark in _MARKS):
        return True
    named = (match[1] for match in _NAMED.finditer(text))
    return any(name in names for name in named) and _ARGUMENTS.search(text) is not None


# As models' templates write calls (Hermes, Qwen, GLM; Qwen XML; Mistral; DeepSeek; Kimi K2; Llama).
_MARKS = (
    "<tool_call>", "<function=", "[TOOL_CALLS]", "<｜tool▁call", "<|tool_call", "<|python_tag|>",
    "<tool_calls>",
)  # fmt: skip
_TAGGED = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_NAMED = re.compile(r'"name"\s*:\s*"([^"\n]*)"')
_ARGUMENTS = re.compile(r'"(?:arguments|parameters)"\s*:')


def _calls_of_json(text: str) -> tuple[ToolCall, ...]:
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        return ()
    listed = parsed if isinstance(parsed, list) else [parsed]
    calls = []
    for entry in listed:
        function = entry.get("function", entry) if isinstance(entry, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            return ()
        arguments = function.get("arguments", function.get("parameters"))
        if arguments is None:
            return ()
        calls.append(_call({"function": {"name": function["name"], "arguments": arguments}}))
    return tuple(calls)


def _canonical_json(text: str) -> str:
    """Text that equal JSON values share; a text that is no JSON as it is."""
    try:
        parsed = json.loads(text, parse_int=Decimal, parse_float=Decimal)
        return "json:" + json.dumps(_with_one_form(parsed), sort_keys=True)
    except (ValueError, RecursionError):
        return f"text:{text}"


def _with_one_form(value: Any) -> Any:
    """A JSON value whose numbers are [digits, exponent]; exact, whatever their size."""
    if isinstance(value, dict):
        return {key: _with_one_form(of) for key, of in value.items()}
    if isinstance(value, list):
        return ["list", *map(_with_one_form, value)]
    if not isinstance(value, Decimal):
        return value
    sign, numbers, exponent = value.as_tuple()
    digits = "".join(map(str, numbers)).lstrip("0")
    short = digits.rstrip("0")
    if not short:
        return ["number", "0"]
    return ["number", f"{'-' if sign else ''}{short}", int(exponent) + len(digits) - len(short)]


# Of a call that is no function's, what is drawn anew for each answer or only counts.
_NAMELESS = ("id", "index")


def _call(found: Any) -> ToolCall:
    function = found.get("function") if isinstance(found, dict) else None
    if not isinstance(function, dict):
        if isinstance(found, dict):
            found = {key: value for key, value in found.items() if key not in _NAMELESS}
        return ToolCall(name="", arguments=json.dumps(found, ensure_ascii=False))
    name, arguments = function.get("name"), function.get("arguments", "")
    return ToolCall(
        name=name if isinstance(name, str) else "",
        arguments=arguments
        if isinstance(arguments, str)
        else json.dumps(arguments, ensure_ascii=False),
        as_text=isinstance(arguments, str),
    )
