"""Generated texts that know more of themselves, on their way through lm-eval's own code."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from evalguard.core.scorer import Ending
from evalguard.core.shown_tokens import GeneratedTokens
from evalguard.models.served.shown_logprobs import TokenNames, read_generated

# vLLM 0.12 and OpenRouter say "reasoning" for what others call "reasoning_content".
_NAMES = {
    "tool_calls": "tool_calls",
    "reasoning_content": "reasoning_content",
    "reasoning": "reasoning_content",
    "refusal": "refusal",
}


def message_of(choice: Mapping[str, Any], *, think_end: str = "") -> str:
    """JSON of a choice's ``tool_calls``, ``reasoning_content``, ``refusal`` and its end.

    "" where it is no chat's, or says nothing beside its text.

    Args:
        think_end: mark up to which lm-eval's client cuts a text off: what was thought is kept, so
            that a thinking part with an end is told from one without; "": it cuts nothing.
    """
    message = choice.get("message")
    if not isinstance(message, Mapping):
        return ""
    fields = {
        name: message[key]
        for key, name in reversed(_NAMES.items())
        if message.get(key) not in (None, "", [])
    }
    thought, closed, _ = str(message.get("content") or "").rpartition(think_end or "\0")
    if think_end and closed:
        fields.setdefault("reasoning_content", thought.strip())
    reason = choice.get("finish_reason")
    if isinstance(reason, str) and reason:
        fields["finish_reason"] = reason
    called = message.get("function_call")  # OpenAI's word before tool_calls
    if isinstance(called, Mapping) and "tool_calls" not in fields:
        fields["tool_calls"] = [{"type": "function", "function": dict(called)}]
    return json.dumps(fields, ensure_ascii=False) if fields else ""


# What servers call the ends of a text: OpenAI, vLLM, llama.cpp, SGLang; TGI; Ollama.
_LENGTH = frozenset({"length", "max_tokens", "limit"})
_STOP = frozenset(
    {"stop", "eos", "eos_token", "end_turn", "stop_sequence", "tool_calls", "function_call"}
)


class GeneratedText(str):
    """A text with what is known of it; lm-eval sorts and batches texts, and keeps nothing beside.

    Attributes:
        ended: why it ended; "" where nobody said.
        tokens: those that it was written in; None where nobody showed them.
        message: what a chat server answered beside it, as ``Response.message``.
    """

    __slots__ = ("ended", "message", "tokens")
    ended: Ending
    tokens: GeneratedTokens | None
    message: str

    def __new__(
        cls,
        text: str,
        ended: Ending = "",
        *,
        tokens: GeneratedTokens | None = None,
        message: str = "",
    ) -> GeneratedText:
        """Return ``text``, with what is known of it."""
        made = super().__new__(cls, text)
        made.ended, made.tokens, made.message = ended, tokens, message
        return made

    @classmethod
    def of(cls, text: object) -> GeneratedText:
        """A model's answer, of which nothing more is known where it is a plain text."""
        return text if isinstance(text, cls) else cls(str(text))


@contextmanager
def record_endings(lm: Any) -> Iterator[None]:
    """Let the texts of a server's answers say why they ended, as its finish_reason does."""
    parse = getattr(lm, "parse_generations", None)
    if parse is None:
        yield
        return

    names = getattr(lm, "token_names", None)
    think_end = str(getattr(lm, "think_end_token", None) or "")

    def parse_with_endings(outputs: Any, **more: Any) -> list[Any]:
        return with_endings(parse(outputs=outputs, **more), outputs, names, think_end=think_end)

    before = vars(lm).get("parse_generations")
    lm.parse_generations = parse_with_endings
    try:
        yield
    finally:
        if before is None:
            del lm.parse_generations
        else:
            lm.parse_generations = before


def with_endings(
    texts: Sequence[Any], outputs: Any, names: TokenNames | None = None, *, think_end: str = ""
) -> list[Any]:
    """Return the texts that lm-eval took out of a server's answers, each with what it tells.

    Args:
        names: which token of the client's tokenizer a text is; None: there is no tokenizer.
        think_end: mark up to which the client cuts texts off; "": it cuts nothing.
    """
    known = _endings(outputs if isinstance(outputs, list) else [outputs], names, think_end)
    if len(known) != len(texts):
        return list(texts)
    return [
        # What calls a tool often says nothing: no text, and an answer all the same.
        GeneratedText(text or "", ended, message=message, tokens=tokens)
        if isinstance(text, str) or message
        else text
        for text, (ended, message, tokens) in zip(texts, known, strict=True)
    ]


_Told = tuple[Ending, str, GeneratedTokens | None]


def _endings(answers: Sequence[Any], names: TokenNames | None, think_end: str) -> list[_Told]:
    """Of each text what is told of it, in the order in which lm-eval takes the texts out."""
    endings: list[_Told] = []
    for answer in answers:
        answered = answer if isinstance(answer, dict) else {}
        choices = answered.get("choices")
        if isinstance(choices, list) and all(isinstance(choice, dict) for choice in choices):
            ordered = sorted(choices, key=lambda choice: choice.get("index") or 0)
            endings += [
                (
                    _ending(choice.get("finish_reason")),
                    message_of(choice, think_end=think_end),
                    read_generated(choice, names),
                )
                for choice in ordered
            ]
        else:  # sglang's own endpoint
            about = answered.get("meta_info")
            reason = about.get("finish_reason") if isinstance(about, dict) else None
            endings.append((_ending(reason), "", read_generated(answered, names)))
    return endings


def _ending(reason: object) -> Ending:
    if isinstance(reason, dict):
        reason = reason.get("type")
    if reason in _LENGTH:
        return "length"
    return "stop" if reason in _STOP else ""
