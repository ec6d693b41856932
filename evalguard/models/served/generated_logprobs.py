"""Log-probabilities that a server shows of what it generated: its tokens, and their margins.

Completions show ``{tokens, token_logprobs, top_logprobs: [{text: value}]}`` (OpenAI, vLLM); chat
completions, and llama.cpp for both, ``{content: [{token, logprob, top_logprobs: [...]}]}``; SGLang
``output_token_logprobs`` and ``output_top_logprobs`` of (value, id, text).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from evalguard.core.generated_tokens import UNKNOWN_TOKEN, GeneratedTokens
from evalguard.core.shown_tokens import ID_LABEL
from evalguard.models.served.shown_top_tokens import TokenNames

_NAMES = 2**31 - 2
_Shown = tuple[int, float, Mapping[int, float]]  # a token, its value, and those shown beside it


def read_generated(choice: Any, names: TokenNames | None) -> GeneratedTokens | None:
    """The tokens of one generated text; None where the server does not show them.

    Args:
        choice: of an answer; SGLang's whole answer.
        names: which token of the client's tokenizer a text is; None: there is no tokenizer.
    """
    try:
        tokens = [*_shown_tokens(choice, names)]
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):
        return None  # a form that nobody knows says nothing
    if not tokens:
        return None
    margins, others = [], []
    for token, value, shown in tokens:
        rest = {one: of for one, of in shown.items() if one != token}
        other = max(rest, key=lambda one: rest[one]) if rest else UNKNOWN_TOKEN
        others.append(other)
        margins.append(value - rest[other] if rest else float("nan"))
    return GeneratedTokens.of([token for token, _, _ in tokens], margins, others)


def _shown_tokens(choice: Mapping[str, Any], names: TokenNames | None) -> Iterator[_Shown]:
    shown = choice.get("logprobs")
    about = choice.get("meta_info")
    if isinstance(about, Mapping):
        tops = about.get("output_top_logprobs") or []
        for place, (value, token, *_) in enumerate(about.get("output_token_logprobs") or []):
            beside = tops[place] if place < len(tops) and tops[place] else []
            yield int(token), float(value), {int(one): float(of) for of, one, *_ in beside}
    elif not isinstance(shown, Mapping):
        return
    elif isinstance(shown.get("content"), list):
        for one in shown["content"]:
            beside = {
                _token_of(top, names): float(top["logprob"])
                for top in one.get("top_logprobs") or ()
            }
            yield _token_of(one, names), float(one["logprob"]), beside
    elif isinstance(shown.get("tokens"), list):
        tops = shown.get("top_logprobs") or [None] * len(shown["tokens"])
        for text, value, beside in zip(shown["tokens"], shown["token_logprobs"], tops, strict=True):
            named = {_name_of(one, names): float(of) for one, of in (beside or {}).items()}
            yield _name_of(text, names), float(value), named


def _token_of(shown: Mapping[str, Any], names: TokenNames | None) -> int:
    """The id of a token that llama.cpp shows; else that of its text, or of its bytes."""
    if isinstance(shown.get("id"), int):
        return int(shown["id"])
    text, data = str(shown.get("token")), shown.get("bytes")
    if not isinstance(data, Sequence) or not data:
        return _name_of(text, names)
    known = UNKNOWN_TOKEN if "\ufffd" in text else _name_of(text, names)  # a part of a character
    return known if known >= 0 else _name_bytes(bytes(data))


def _name_of(text: str, names: TokenNames | None) -> int:
    """A token's id; where no one id has this text, a number below -1 that stands for the text."""
    if text.startswith(ID_LABEL):
        return int(text[len(ID_LABEL) :])
    known = names.id_of(text) if names is not None else None
    return _name_bytes(text.encode("utf-8", "surrogatepass")) if known is None else known


def _name_bytes(data: bytes) -> int:
    return -2 - zlib.crc32(data) % _NAMES
