"""ChatRequest: a request to a chat model in OpenAI's words, and as lm-eval's arguments carry it.

Source of the fields: OpenAI's API reference, "Create chat completion".
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

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
        found: dict[str, Value] = {}
        if self.tools:
            found["tools"] = cast("Value", [dict(tool) for tool in self.tools])
        if self.tool_choice is not None:
            found["tool_choice"] = self.tool_choice
        if self.response_format is not None:
            found["response_format"] = cast("Value", dict(self.response_format))
        return found

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
            "max_gen_toks": next((one for one in lengths if one is not None), DEFAULT_TOKENS),
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
        return tuple(one for one in self.tools if chosen in ("", function_name(one)))

    @property
    def template_options(self) -> dict[str, Value]:
        """What a chat template is told beside messages and tools."""
        own = self.parameters.get("chat_template_kwargs")
        told = {n: self.parameters[n] for n in _TEMPLATE_FIELDS if n in self.parameters}
        return {**told, **(own if isinstance(own, Mapping) else {})}

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
    found = options.pop(_KEY, None)
    return None if found is None else dict(found)


def function_name(tool: Mapping[str, Value]) -> str:
    """The name of a tool that is a function; "" for any other."""
    function = tool.get("function")
    return str(function.get("name", "")) if isinstance(function, Mapping) else ""


def chosen_function(tool_choice: Value) -> str:
    """The function that has to be called; "" where any, or none, may be."""
    return function_name(tool_choice) if isinstance(tool_choice, Mapping) else ""
