"""TaskOptions: how tasks are loaded and their prompts built, the same for base and candidate.

A line is the request itself, or one of OpenAI's batch files (``custom_id`` and ``body``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from evalguard.core.chat import LENGTHS, ChatRequest, chosen_function, function_name
from evalguard.core.settings import Value
from evalguard.core.structure import check_schema
from evalguard.errors import UsageError, nearest
from evalguard.regular_file import open_regular

# Far above any conversation, and any file of them that is answered in a night.
_MOST_LINE = 2**24
_MOST_FILE = 2**29
# Moonshot's verifier writes "_input" for "system" (K2-Vendor-Verifier, prepare_request).
_ROLES = ("system", "developer", "user", "assistant", "tool", "_input")
_TEXT_PARTS = {"text": "text", "refusal": "refusal"}
_CHOICES = ("none", "auto", "required")
_ENDPOINT = "/chat/completions"
_FORM = 'a line is a request: {"messages": [{"role": "user", "content": "..."}], "tools": [...]}'


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatFile:
    """A file's requests, in its order; ``name`` is that of the task which they are."""

    path: Path
    requests: tuple[ChatRequest, ...]

    @property
    def name(self) -> str:
        """The file's name without its ending."""
        return self.path.stem


def read_chat_file(path: Path) -> ChatFile:
    """Read a file of requests, line by line.

    Raises:
        UsageError: it cannot be read, holds no request, or a line is none; with the line's number.
    """
    try:
        with open_regular(path) as file:
            return ChatFile(path=path, requests=tuple(_requests(path, file)))
    except OSError as error:
        raise UsageError(
            f"--requests {path} cannot be read: {error.strerror}", hint="a JSONL file of requests"
        ) from error


def _requests(path: Path, file: BinaryIO) -> Iterator[ChatRequest]:
    names: dict[str, int] = {}
    read = 0
    for number, raw in _lines(path, file):
        where = f"{path}, line {number}"
        request = _request(raw, where)
        if request.name and names.setdefault(request.name, number) != number:
            _refuse(where, f"'{request.name}' is the id of line {names[request.name]} too")
        read += 1
        yield request
    if not read:
        raise UsageError(f"{path} holds no request", hint=_FORM)


def _lines(path: Path, file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Lines that are not blank, with their numbers, within bounds of what is held in memory."""
    number = size = 0
    while raw := file.readline(_MOST_LINE + 1):
        number += 1
        size += len(raw)
        if len(raw) > _MOST_LINE:
            _refuse(f"{path}, line {number}", f"it is longer than {_MOST_LINE >> 20} MiB")
        if size > _MOST_FILE:
            raise UsageError(
                f"{path} is larger than {_MOST_FILE >> 20} MiB", hint="ask a part of it at a time"
            )
        text = raw.removeprefix(b"\xef\xbb\xbf").strip() if number == 1 else raw.strip()
        if text:
            yield number, text


def _request(raw: bytes, place: str) -> ChatRequest:
    try:
        content = json.loads(raw.decode("utf-8"), parse_constant=_refuse_constant)
        json.dumps(content, ensure_ascii=False).encode("utf-8")  # half a surrogate pair is no text
    except UnicodeError:
        _refuse(place, "it is not UTF-8")
    except (ValueError, RecursionError) as error:
        _refuse(place, f"it is not JSON: {error}")
    if not isinstance(content, dict):
        _refuse(place, f"it is {_kind(content)}, not a request", _FORM)
    name = content.get("custom_id", content.get("id"))
    if isinstance(content.get("body"), dict):
        endpoint = content.get("url")
        if isinstance(endpoint, str) and not endpoint.endswith(_ENDPOINT):
            _refuse(place, f"it asks {endpoint}, not .../v1{_ENDPOINT}", _FORM)
        content = content["body"]
    if name is not None and not isinstance(name, (str, int)):
        _refuse(place, f"its id is {_kind(name)}")
    left_out = ("id", "custom_id", "model", "messages", "tools", "tool_choice", "response_format")
    request = ChatRequest(
        name="" if name is None else str(name),
        messages=tuple(_messages(content, place)),
        tools=tuple(_tools(content, place)),
        tool_choice=content.get("tool_choice"),
        response_format=content.get("response_format"),
        parameters={key: value for key, value in content.items() if key not in left_out},
    )
    _check_choice(request, place)
    _check_format(request.response_format, place)
    _check_parameters(request.parameters, place)
    return request


def _messages(found: Mapping[str, Any], place: str) -> Iterator[dict[str, Any]]:
    listed = found.get("messages")
    if listed is None:
        near = nearest("messages", found)
        _refuse(place, f"it has no messages{near}", _FORM)
    if not isinstance(listed, list) or not listed:
        _refuse(place, "its messages are empty, or no list", _FORM)
    for number, message in enumerate(listed):
        where = f"{place}, messages[{number}]"
        if not isinstance(message, dict):
            _refuse(where, f"it is {_kind(message)}, not a message")
        role = message.get("role")
        if role not in _ROLES:
            near = nearest(str(role), _ROLES)
            _refuse(where, f"there is no role {role!r}{near}", f"roles: {', '.join(_ROLES[:-1])}")
        _check_content(message, where)
        _check_calls(message, where)
        if role == "tool" and not isinstance(message.get("tool_call_id"), str):
            _refuse(where, "a message of role tool needs the tool_call_id that it answers")
        # The role first: by it, a text is known to be a conversation.
        yield {"role": "system" if role == "_input" else role} | {
            key: value for key, value in message.items() if key != "role"
        }


def _check_content(message: Mapping[str, Any], where: str) -> None:
    content = message.get("content")
    if isinstance(content, str):
        return
    if content is None:
        if message["role"] == "assistant" and (message.get("tool_calls") or "refusal" in message):
            return
        _refuse(where, "it has no content")
    if not isinstance(content, list) or not content:
        _refuse(where, f"its content is {_kind(content)}, not a text or a list of parts")
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in _TEXT_PARTS:
            what = f"a part of type {kind!r}" if kind else f"a part that is {_kind(part)}"
            _refuse(where, f"its content has {what}: only texts can be asked", "leave it out")
        if not isinstance(part.get(_TEXT_PARTS[kind]), str):
            _refuse(where, f"a part of type {kind!r} has no text")


def _check_calls(message: Mapping[str, Any], where: str) -> None:
    calls = message.get("tool_calls")
    if calls is None:
        return
    if message["role"] != "assistant" or not isinstance(calls, list):
        _refuse(where, "tool_calls are a list, in messages of role assistant")
    for call in calls:
        function = call.get("function") if isinstance(call, dict) else None
        parts = function if isinstance(function, dict) else {}
        if not all(isinstance(parts.get(key), str) for key in ("name", "arguments")):
            _refuse(
                where,
                "a tool call is no function with a name and arguments",
                '{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}: '
                "arguments are JSON as a text",
            )


def _tools(found: Mapping[str, Any], place: str) -> Iterator[dict[str, Any]]:
    for old, new in (("functions", "tools"), ("function_call", "tool_choice")):
        if old in found:
            _refuse(place, f"'{old}' is no longer OpenAI's word", f"write {new}")
    listed = found.get("tools")
    if listed is None:
        return
    if not isinstance(listed, list):
        _refuse(place, f"its tools are {_kind(listed)}, not a list")
    names: set[str] = set()
    for number, tool in enumerate(listed):
        where = f"{place}, tools[{number}]"
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or tool.get("type", "function") != "function":
            _refuse(
                where,
                "it is no function",
                '{"type": "function", "function": {"name": "f", "parameters": {...}}}',
            )
        name = function.get("name")
        if not isinstance(name, str) or not name:
            _refuse(where, "its function has no name")
        if name in names:
            _refuse(where, f"there are two functions '{name}'")
        names.add(name)
        if function.get("parameters") is not None:
            _check_schema(function["parameters"], f"{where}, parameters of '{name}'")
        yield tool


def _check_choice(request: ChatRequest, place: str) -> None:
    choice = request.tool_choice
    if choice is None:
        return
    if not request.tools and choice != "none":
        _refuse(place, "it has a tool_choice and no tools")
    if isinstance(choice, str) and choice not in _CHOICES:
        hint = f"{', '.join(_CHOICES)}, or a function"
        _refuse(place, f"tool_choice '{choice}' is none{nearest(choice, _CHOICES)}", hint)
    names = [function_name(tool) for tool in request.tools]
    chosen = chosen_function(choice)
    if chosen and chosen not in names:
        _refuse(place, f"tool_choice names '{chosen}'{nearest(chosen, names)}, which is no tool")


def _check_format(asked: Any, place: str) -> None:
    if asked is None:
        return
    if not isinstance(asked, dict) or not isinstance(asked.get("type"), str):
        _refuse(place, 'its response_format is none: {"type": "json_object"}')
    if asked["type"] == "json_schema":
        given = asked.get("json_schema")
        schema = given.get("schema") if isinstance(given, dict) else None
        if schema is None:
            _refuse(place, "its response_format has no json_schema: {schema: ...}")
        _check_schema(schema, f"{place}, response_format")


def _check_schema(schema: Any, where: str) -> None:
    if not isinstance(schema, (dict, bool)):
        _refuse(where, f"a JSON schema is an object, and this is {_kind(schema)}")
    try:
        check_schema(schema)
    except ValueError as error:
        _refuse(where, f"it is no valid JSON schema: {error}")


def _check_parameters(given: Mapping[str, Any], place: str) -> None:
    for name in LENGTHS:
        value = given.get(name)
        if value is not None and (type(value) is not int or value < 1):
            _refuse(place, f"{name} {value!r} is no number of tokens")
    number = given.get("temperature")
    if number is not None and (
        isinstance(number, bool) or not isinstance(number, (int, float)) or number < 0
    ):
        _refuse(place, f"temperature {number!r} is no number, 0 or more")
    if given.get("n") not in (None, 1):
        _refuse(place, f"n is {given['n']}: a request has one answer here", "repeat the line")
    stop = given.get("stop")
    texts = stop if isinstance(stop, list) else [stop]
    if stop is not None and not all(isinstance(text, str) and text for text in texts):
        _refuse(place, "stop is no text, nor a list of texts")


def _kind(value: Any) -> str:
    """What a JSON value is, in words."""
    names: Sequence[tuple[type, str]] = (
        (bool, "true or false"), (str, "a text"), (list, "a list"), (dict, "an object"),
        (int, "a number"), (float, "a number"),
    )  # fmt: skip
    return next((name for kind, name in names if isinstance(value, kind)), "null")


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of JSON")


def _refuse(place: str, what: str, hint: str = "") -> NoReturn:
    raise UsageError(f"{place}: {what}", hint=hint)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """Options of lm-eval's tasks; the names are lm-eval's own.

    Attributes:
        include_paths: folders with further task files; they win over lm-eval's own tasks.
        num_fewshot: examples in the prompt; None leaves each task's own number.
        seed: of the few-shot sampler, set anew before every build of requests.
        limit: the first N documents of a task (1 or more), or a share of them (below 1).
        sample: so many of these documents, drawn at random by ``seed``; None for all.
        apply_chat_template: build prompts through the model's chat template.
        system_instruction: put before every prompt; "" for none.
        fewshot_as_multiturn: examples as turns of a conversation; None: if a chat template is
            applied.
        gen_kwargs: generation arguments that override those of generate_until tasks.
        average_repeats: score every answer of tasks that ask repeatedly, and average them per
            document; False: the first one only, as lm-eval does.
        confirm_unsafe: run tasks that lm-eval marks as unsafe (they execute generated code).
        chats: tasks that are none of lm-eval's: chat requests of a file, by the task's name.

    Raises:
        UsageError: for a limit or a number of examples that lm-eval would silently misread.
    """

    include_paths: tuple[Path, ...] = ()
    num_fewshot: int | None = None
    seed: int = 1234
    limit: int | float | None = None
    sample: int | None = None
    apply_chat_template: bool | str = False
    system_instruction: str = ""
    fewshot_as_multiturn: bool | None = None
    gen_kwargs: Mapping[str, Value] = field(default_factory=dict)
    average_repeats: bool = True
    confirm_unsafe: bool = False
    chats: Mapping[str, ChatFile] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        # lm-eval takes a limit of 0 for "no limit" and counts backwards below it.
        if self.limit is not None and not self.limit > 0:
            raise UsageError(
                f"limit {self.limit} selects no document",
                hint="give a number of documents (1 or more) or a share of them (below 1)",
            )
        if self.limit is not None and self.limit > 1 and self.limit != int(self.limit):
            raise UsageError(f"limit {self.limit} is neither a whole number nor a share below 1")
        if self.sample is not None and self.sample < 1:
            raise UsageError(f"a sample of {self.sample} documents is empty")
        if self.num_fewshot is not None and self.num_fewshot < 0:
            raise UsageError(f"num_fewshot {self.num_fewshot} is negative")
        if isinstance(self.apply_chat_template, str):
            name = self.apply_chat_template
            raise UsageError(
                f"chat template '{name}': templates are not chosen by name here; lm-eval records "
                "the name and builds the prompts with the tokenizer's default template",
                hint="give apply_chat_template without a name, and choose the template by "
                f'model_args.chat_template_args: {{"chat_template": "{name}"}}',
            )
        if self.fewshot_as_multiturn and not self.apply_chat_template:
            raise UsageError(
                "fewshot_as_multiturn has no effect without a chat template",
                hint="add --apply_chat_template",
            )

    @property
    def multiturn(self) -> bool:
        """Whether few-shot examples become turns of a conversation."""
        if self.fewshot_as_multiturn is None:
            return bool(self.apply_chat_template)
        return self.fewshot_as_multiturn
