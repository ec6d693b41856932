"""What a tokenizer does, as digests; rules that two models share are read once."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from evalguard.settings import digest_of

_known: dict[str, _Rules] = {}


@dataclass(frozen=True, slots=True)
class _Rules:
    """Digests of a tokenizer's rules and vocabulary, and the vocabulary's size."""

    rules: str
    vocabulary: str
    size: int


def tokenizer_digest(lm: Any) -> str:
    """Digest of a tokenizer's rules, vocabulary and special tokens, and of what it puts first."""
    tokenizer = _tokenizer(lm)
    if tokenizer is None:
        return ""
    special = {name: str(text) for name, text in tokenizer.special_tokens_map.items()}
    template = getattr(tokenizer, "chat_template", None)
    first = list(lm.tok_encode("a")) if hasattr(lm, "tok_encode") else []
    return digest_of([type(tokenizer).__name__, _read(tokenizer).rules, special, template, first])


def shared_digest(lm: Any) -> str:
    """Digest of everything that the ids of a text follow from, for what models may share.

    "" for a tokenizer whose rules are not all seen: one in Python, or one of another library.
    """
    tokenizer = _tokenizer(lm)
    if tokenizer is None or getattr(tokenizer, "backend_tokenizer", None) is None:
        return ""
    if not type(tokenizer).__module__.startswith("transformers."):
        return ""
    # What tok_encode itself looks at, beside the tokenizer.
    before = tokenizer.decode(lm.prefix_token_id) if lm.prefix_token_id is not None else None
    added = getattr(lm, "add_bos_token", None)
    return digest_of([type(tokenizer).__module__, tokenizer_digest(lm), before, added])


def vocabulary(lm: Any) -> tuple[str, int]:
    """Return (digest, size) of the vocabulary; ("", 0) where the model shows none."""
    tokenizer = _tokenizer(lm)
    if tokenizer is None:
        return "", 0
    found = _read(tokenizer)
    return found.vocabulary, found.size


def _read(tokenizer: Any) -> _Rules:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        entries = sorted(tokenizer.get_vocab().items())
        digest = digest_of(entries)
        return _Rules(digest, digest, len(entries))
    text = backend.to_str()
    key = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    if key not in _known:
        entries = sorted(tokenizer.get_vocab().items())
        _known[key] = _Rules(_rules_digest(text), digest_of(entries), len(entries))
    return _known[key]


def _rules_digest(text: str) -> str:
    rules = json.loads(text)
    for state in ("padding", "truncation"):  # left behind by the last call, not rules
        rules.pop(state, None)
    return digest_of(rules)


def _tokenizer(lm: Any) -> Any | None:
    # Only where token ids are used: the dummy model's tokenizer would be fetched from the hub.
    tokenizer = lm.tokenizer if hasattr(lm, "tok_encode") else None
    return tokenizer if hasattr(tokenizer, "get_vocab") else None
