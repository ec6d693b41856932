"""ExpectedAnswer: the structure that an answer must have, as a guard file or a request says it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from evalguard.core.chat_requests import ChatRequest, chosen_function
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
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        said = {name: own for name, own in values.items() if own != getattr(nothing, name)}
        return {**said, **({"tools": list(self.tools)} if self.tools else {})}

    @property
    def entry(self) -> dict[str, Value]:
        """As a guard file says it."""
        names = ("json", "schema", "pattern", "tools")
        said = {name: own for name, own in self.document.items() if name in names}
        return {**said, **({"call": self.call} if self.tools else {})}

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
