"""Chat requests put to a Hugging Face model: rendered by its template, its answers taken apart."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

from evalguard.core.chat import (
    ChatRequest,
    find_thinking,
    function_name,
    leaves_thinking_open,
    read_chat_request,
    take_chat_fields,
)
from evalguard.core.scorer import Response
from evalguard.core.settings import Value
from evalguard.errors import EvaluationError
from evalguard.models.arguments import HF_TYPES, no_chat_requests
from evalguard.models.failures import quote_error
from evalguard.models.written_tool_calls import WrittenCall, WrittenMessage, find_tool_form

UNKNOWN_CALLS = "unknown"
"""In place of a message's ``tool_calls``: the model may have written some, in no known form."""
_OWN_TEMPLATE = "transformers' response template"
_HINT = (
    "model_args.chat_template_args: {chat_template: ...} or a tokenizer with the template of the "
    "model's publisher"
)


def open_chat(lm: Any, model_type: str) -> ChatAnswers:
    """Return how a model is asked chat requests.

    Raises:
        UsageError: models of this type cannot be.
    """
    if model_type not in HF_TYPES or getattr(lm, "backend", "causal") != "causal":
        raise no_chat_requests(f"a model of type '{model_type}'")
    return ChatAnswers(lm)


@contextmanager
def keep_special_tokens(lm: Any, keep: bool) -> Iterator[None]:
    """Let texts be decoded with their special tokens, by which some models mark tool calls."""
    if not keep:
        yield
        return
    decode = lm.tok_decode

    def decode_all(tokens: Any, skip_special_tokens: bool = True) -> Any:  # noqa: ARG001
        return decode(tokens, skip_special_tokens=False)

    lm.tok_decode = decode_all
    try:
        yield
    finally:
        del lm.tok_decode


class ChatAnswers:
    """How one Hugging Face model is asked chat requests, and how its answers are read.

    Args:
        lm: lm-eval's model; its ``chat_template_args`` go to the template.
    """

    def __init__(self, lm: Any) -> None:
        self._tokenizer: Any = lm.tokenizer
        self._given = dict(getattr(lm, "chat_template_args", None) or {})
        self._ends = _end_texts(lm)
        self._takes_tools: bool | None = None

    def render(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return lm-eval's arguments of a chat request, with the prompt that the template makes.

        Raises:
            EvaluationError: there is no template, it fails, or it leaves the tools out.
        """
        request = read_chat_request(arguments)
        if request is None:
            return arguments
        options = dict(arguments[1])
        take_chat_fields(options)
        prompt = self._render(request, request.offered)
        if request.offered and self._takes_tools is None:
            self._takes_tools = prompt != self._render(request, ())
        if request.offered and not self._takes_tools:
            raise EvaluationError(
                "the model's chat template leaves the tools of requests out: the prompt is the "
                "same with them and without",
                hint=_HINT,
            )
        return (prompt, options)

    def _render(self, request: ChatRequest, tools: Sequence[Mapping[str, Value]]) -> str:
        template = str(self._template(tools))
        try:
            return str(
                self._tokenizer.apply_chat_template(
                    [_for_template(message, template) for message in request.messages],
                    tools=[dict(tool) for tool in tools] or None,
                    tokenize=False,
                    add_generation_prompt=True,
                    **{**self._given, **request.template_options},
                )
            )
        except Exception as error:
            raise EvaluationError(
                f"the model's chat template fails on a request: {type(error).__name__}",
                quotes=quote_error(error),
                hint="a template may refuse roles, their order, or a system message",
            ) from error

    def _template(self, tools: Sequence[Mapping[str, Value]]) -> str:
        chosen = self._given.get("chat_template")
        try:
            return str(self._tokenizer.get_chat_template(chosen, tools=list(tools) or None))
        except Exception as error:
            raise EvaluationError(
                "the model's tokenizer has no chat template, and chat requests need one",
                hint=_HINT,
            ) from error

    def form(self, tools: Sequence[Mapping[str, Value]]) -> str:
        """How calls of these tools are read, in words; "" where there are none."""
        if not tools:
            return ""
        if getattr(self._tokenizer, "response_template", None) is not None:
            return f"tool calls are read by {_OWN_TEMPLATE}"
        form = find_tool_form(self._template(tools))
        if form is None:
            return "in which form the model writes tool calls is not known: its calls are not read"
        return f"tool calls are read in the form of its chat template: {form.name}"

    def read(
        self, asked: tuple[Any, ...], rendered: tuple[Any, ...], response: Response
    ) -> Response:
        """Return an answer with what it says as its text, and the rest as its message.

        Args:
            asked: arguments of the chat request; ``rendered``: as ``render`` returned them.
            response: with all that was generated as its text, special tokens among it.
        """
        request = read_chat_request(asked)
        if request is None or response.text is None:
            return response
        text = _cut_at_ends(response.text, self._ends)
        written = self._parsed(request, str(rendered[0]), text)
        calls: Value = UNKNOWN_CALLS
        if written is None:
            written = WrittenMessage(text=text.strip())
            calls = UNKNOWN_CALLS if request.offered else []
        else:
            calls = [call.message for call in written.calls]
        if _thinks_on(str(rendered[0]), text) and not (written.calls or written.reasoning):
            # As servers with a parser of thoughts have it: nothing was said yet.
            written = WrittenMessage(text="", reasoning=self._without_special(text))
        content = written.text if written.unclosed else self._without_special(written.text)
        called = "tool_calls" if written.calls and response.ended == "stop" else ""
        reason = called or response.ended
        message: dict[str, Value] = {"tool_calls": calls} if calls else {}
        message |= {"reasoning_content": written.reasoning} if written.reasoning else {}
        message |= {"finish_reason": reason} if reason else {}
        encoded = json.dumps(message, ensure_ascii=False) if message else ""
        return replace(response, text=content, message=encoded)

    def _parsed(self, request: ChatRequest, prompt: str, text: str) -> WrittenMessage | None:
        """The answer taken apart; None where nobody knows how its model writes calls."""
        own = self._by_tokenizer(request, prompt, text)
        if own is not None:
            return own
        form = find_tool_form(self._template(request.offered))
        if form is None:
            return None
        written = form.read(text, request.offered)
        names = [function_name(tool) for tool in request.offered]
        if form.unmarked and not written.calls and any(name in text for name in names):
            return None  # perhaps a call, in marks that nobody here knows
        return written

    def _by_tokenizer(self, request: ChatRequest, prompt: str, text: str) -> WrittenMessage | None:
        """By transformers' own parser, where the tokenizer says how; None where it cannot."""
        if getattr(self._tokenizer, "response_template", None) is None:
            return None
        parse = self._tokenizer.parse_response
        known = inspect.signature(parse).parameters
        options: dict[str, Any] = {"prefix": prompt} if "prefix" in known else {}
        options |= {"tools": [dict(t) for t in request.offered]} if "tools" in known else {}
        try:
            return _of_message(parse(text, **options), text)
        except Exception:  # noqa: BLE001 - a text that it does not take; the template's marks say more
            return None

    def _without_special(self, text: str) -> str:
        for token in self._tokenizer.all_special_tokens:
            text = text.replace(token, "")
        return text.strip()


def _thinks_on(prompt: str, text: str) -> bool:
    """Whether a text never closes the thinking part that its prompt has opened."""
    part = find_thinking(text, is_open=True) if leaves_thinking_open(prompt) else None
    return part is not None and not part.is_closed


def _of_message(parsed: Any, text: str) -> WrittenMessage | None:
    if not isinstance(parsed, dict):
        return None
    calls = []
    for call in parsed.get("tool_calls") or ():
        function = call.get("function", call) if isinstance(call, dict) else {}
        arguments = function.get("arguments", {})
        written = arguments if isinstance(arguments, str) else json.dumps(arguments)
        calls.append(WrittenCall(name=str(function.get("name", "")), arguments=written))
    thought = parsed.get("thinking") or parsed.get("reasoning_content") or parsed.get("reasoning")
    content = parsed.get("content")
    endless = thought and not content and not calls
    return WrittenMessage(
        text=text.strip() if endless else str(content or ""),
        calls=tuple(calls),
        reasoning="" if endless else str(thought or ""),
        unclosed=bool(endless),
    )


def _for_template(message: Mapping[str, Value], template: str) -> dict[str, Any]:
    """A message as templates take it: texts as one, arguments of calls as an object (as vLLM's).

    The role "developer" is "system" where the template does not know it.
    """
    converted: dict[str, Any] = dict(message)
    if converted["role"] == "developer" and "developer" not in template:
        converted["role"] = "system"
    content = converted.get("content")
    if isinstance(content, list):
        parts = cast("list[Mapping[str, str]]", content)
        converted["content"] = "\n".join(
            part.get("text") or part.get("refusal", "") for part in parts
        )
    elif content is None:
        converted["content"] = ""
    calls = converted.get("tool_calls")
    if isinstance(calls, list):
        converted["tool_calls"] = [
            _with_parsed_arguments(cast("dict[str, Any]", call)) for call in calls
        ]
    return converted


def _with_parsed_arguments(call: Mapping[str, Any]) -> dict[str, Any]:
    function = dict(call["function"])
    try:
        parsed = json.loads(function["arguments"] or "{}")
    except (ValueError, RecursionError):
        return dict(call)
    return {**call, "function": {**function, "arguments": parsed}}


def _end_texts(lm: Any) -> tuple[str, ...]:
    """How the tokens are written that end a text, or fill it up."""
    tokenizer = lm.tokenizer
    settings = getattr(lm.model, "generation_config", None)
    end_ids = getattr(settings, "eos_token_id", None)
    ids = [*(end_ids if isinstance(end_ids, (list, tuple)) else [end_ids]), tokenizer.eos_token_id]
    ids.append(tokenizer.pad_token_id)
    known = dict.fromkeys(token_id for token_id in ids if isinstance(token_id, int))
    texts = (str(tokenizer.decode([token_id], skip_special_tokens=False)) for token_id in known)
    return tuple(text for text in texts if text.strip())


def _cut_at_ends(text: str, ends: Sequence[str]) -> str:
    return text[: min((at for end in ends if (at := text.find(end)) >= 0), default=len(text))]
