"""What a tokenizer does, as digests; rules that two models share are read once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evalguard.core.settings import digest_of

# Bytes of texts and ids together; a task of 5,000 documents takes a few MB.
_MOST_BYTES = 2**27
_texts_by_tokenizer: dict[str, EncodedTexts] = {}


class EncodedTexts:
    """Token ids by text and by whether special tokens are added (None: as the tokenizer has it).

    Attributes:
        most: bytes that may be held; what was encoded first goes first.
    """

    def __init__(self, most: int = _MOST_BYTES) -> None:
        self.most = most
        self._held = 0
        self._ids: dict[tuple[str, bool | None], NDArray[np.int32]] = {}

    def get(self, text: str, special: bool | None) -> list[int] | None:
        """Return a text's ids, as a list of the caller's own; None where they are not known."""
        ids = self._ids.get((text, special))
        return None if ids is None else ids.tolist()

    def knows(self, text: str, special: bool | None) -> bool:
        """Whether a text's ids are held."""
        return (text, special) in self._ids

    def put(self, text: str, special: bool | None, ids: Sequence[int]) -> None:
        """Hold a text's ids."""
        if (text, special) in self._ids:
            return
        stored = np.array(ids, dtype=np.int32)
        self._ids[text, special] = stored
        self._held += _size_in_bytes(text, stored)
        while self._held > self.most:
            first, _ = oldest = next(iter(self._ids))
            self._held -= _size_in_bytes(first, self._ids.pop(oldest))


def shared_texts(tokenizer: str) -> EncodedTexts:
    """Return what is held for all models whose tokenizers do the same.

    Args:
        tokenizer: digest of everything that a tokenizer's ids follow from.
    """
    return _texts_by_tokenizer.setdefault(tokenizer, EncodedTexts())


def clear_shared_texts() -> None:
    """Let go of all texts, once a run is over."""
    _texts_by_tokenizer.clear()


def _size_in_bytes(text: str, ids: NDArray[np.int32]) -> int:
    return len(text) + ids.nbytes


_AT_A_TIME = 4096
_rules_cache: dict[str, _RulesDigest] = {}


@dataclass(frozen=True, slots=True)
class _RulesDigest:
    """Digests of a tokenizer's rules and vocabulary, and the vocabulary's size."""

    rules: str
    vocabulary: str
    size: int


def tokenizer_digest(lm: Any) -> str:
    """Digest of a tokenizer's rules, vocabulary and special tokens, and of what it puts first."""
    tokenizer = _tokenizer_of(lm)
    if tokenizer is None:
        return ""
    special = {name: str(text) for name, text in tokenizer.special_tokens_map.items()}
    template = getattr(tokenizer, "chat_template", None)
    first = list(lm.tok_encode("a")) if hasattr(lm, "tok_encode") else []
    return digest_of([type(tokenizer).__name__, _read(tokenizer).rules, special, template, first])


def shareable_tokenizer_digest(lm: Any) -> str:
    """Digest of everything that the ids of a text follow from, for what models may share.

    "" for a tokenizer whose rules are not all seen: one in Python, or one of another library.
    """
    tokenizer = _tokenizer_of(lm)
    if tokenizer is None or getattr(tokenizer, "backend_tokenizer", None) is None:
        return ""
    if not type(tokenizer).__module__.startswith("transformers."):
        return ""
    # What tok_encode itself looks at, beside the tokenizer.
    before = tokenizer.decode(lm.prefix_token_id) if lm.prefix_token_id is not None else None
    added = getattr(lm, "add_bos_token", None)
    return digest_of([type(tokenizer).__module__, tokenizer_digest(lm), before, added])


def digest_vocabulary(lm: Any) -> tuple[str, int]:
    """Return (digest, size) of the vocabulary; ("", 0) where the model shows none."""
    tokenizer = _tokenizer_of(lm)
    if tokenizer is None:
        return "", 0
    vocabulary = _read(tokenizer)
    return vocabulary.vocabulary, vocabulary.size


def _read(tokenizer: Any) -> _RulesDigest:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        entries = sorted(tokenizer.get_vocab().items())
        digest = entries_digest(entries)
        return _RulesDigest(digest, digest, len(entries))
    rules = rules_digest(backend)
    if rules not in _rules_cache:
        entries = sorted(tokenizer.get_vocab().items())
        _rules_cache[rules] = _RulesDigest(rules, entries_digest(entries), len(entries))
    return _rules_cache[rules]


def rules_digest(backend: Any) -> str:
    """Digest of all that a tokenizer of ``tokenizers`` does; not of the last call's padding.

    Of the model, which is by far the largest part, as the library writes it: as Python objects a
    vocabulary of 128,000 tokens takes 60 MB.
    """
    model = hashlib.sha256(backend.model.__getstate__()).hexdigest()
    steps = [backend.normalizer, backend.pre_tokenizer, backend.post_processor, backend.decoder]
    states = [None if step is None else json.loads(step.__getstate__()) for step in steps]
    added = {
        number: [token.content, token.__getstate__()]
        for number, token in sorted(backend.get_added_tokens_decoder().items())
    }
    return digest_of([model, states, added, bool(getattr(backend, "encode_special_tokens", False))])


def entries_digest(entries: Sequence[tuple[str, int]]) -> str:
    """``digest_of`` entries, a part of them at a time."""
    digest = hashlib.sha256(b"[")
    for start in range(0, len(entries), _AT_A_TIME):
        part = json.dumps(
            entries[start : start + _AT_A_TIME], ensure_ascii=False, separators=(",", ":")
        )
        digest.update(("," * bool(start) + part[1:-1]).encode("utf-8", "surrogatepass"))
    digest.update(b"]")
    return digest.hexdigest()[:16]


def _tokenizer_of(lm: Any) -> Any | None:
    # Only where token ids are used: the dummy model's tokenizer would be fetched from the hub.
    tokenizer = lm.tokenizer if hasattr(lm, "tok_encode") else None
    return tokenizer if hasattr(tokenizer, "get_vocab") else None
