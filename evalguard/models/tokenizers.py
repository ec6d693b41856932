"""What a tokenizer does, as digests; rules that two models share are read once."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from evalguard.core.settings import digest_of
from evalguard.models.comparison import tokenizer_folder

if TYPE_CHECKING:
    from evalguard.core.settings import Value


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
    found = _read(tokenizer)
    return found.vocabulary, found.size


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
    told = [None if step is None else json.loads(step.__getstate__()) for step in steps]
    added = {
        number: [token.content, token.__getstate__()]
        for number, token in sorted(backend.get_added_tokens_decoder().items())
    }
    return digest_of([model, told, added, bool(getattr(backend, "encode_special_tokens", False))])


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


# Texts of token ids, for people to read; no model is loaded for them.


_FAST_TOKENIZER_FILE = "tokenizer.json"
_LEADING_BLANK = (
    "\u2581"  # how a sentencepiece token writes the blank before it, which decoding drops
)


def token_texts(model_args: Mapping[str, Value], token_ids: Sequence[int]) -> dict[int, str]:
    """Return the text of each token id, as far as its tokenizer knows it.

    {} where the tokenizer's one file is not on this machine: slow tokenizers have none, and their
    tokens go by their ids.
    """
    if "pretrained" not in model_args:
        return {}
    folder = tokenizer_folder(model_args)
    if folder is None or not (folder / _FAST_TOKENIZER_FILE).is_file():
        return {}
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(folder / _FAST_TOKENIZER_FILE))
    except Exception:  # noqa: BLE001 - the library raises nothing narrower
        return {}
    known = [(one, token) for one in token_ids if (token := tokenizer.id_to_token(one)) is not None]
    texts = tokenizer.decode_batch([[one] for one, _ in known], skip_special_tokens=False)
    return {one: _with_blank(token, text) for (one, token), text in zip(known, texts, strict=True)}


def _with_blank(token: str, text: str) -> str:
    blank = token.startswith(_LEADING_BLANK) and not text.startswith(" ")
    return f" {text}" if blank else text


# Where the tokens of a text's beginning can be read off the tokens of the whole text.
#
# A tokenizer that cuts a text into words before it knows of tokens gives a word the same tokens
# whatever follows it. Whether the words of a beginning are the first words of the whole is a
# matter of its rules: this holds where they look at characters one by one, and at what follows a
# match only for whitespace.


_NORMALIZERS = frozenset(
    {"NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "BertNormalizer"}
)
_WORD_SPLITTERS = frozenset(
    {"Whitespace", "WhitespaceSplit", "BertPreTokenizer", "Digits", "Punctuation"}
)
# What is cut off stays a word of its own, or goes; it is not joined with what follows or precedes.
_SPLIT_BEHAVIORS = frozenset({"Isolated", "Removed"})
# Anchors, looking around, possessive quantifiers, references to groups: what may depend on where a
# text ends. Classes of characters are none of it, and the whitespace that ``\s+(?!\S)`` looks for
# is not at the end of a beginning.
_HARMLESS_PATTERN = re.compile(r"\(\?!\\S\)|\\[pP]\{\w+\}")
_CONTEXT_PATTERN = re.compile(r"\(\?[=!<>(]|\\[bBAzZGK1-9]|\$|(?<!\[)\^|[+*?}]\+")


def splits_into_words(tokenizer: Any) -> bool:
    """Whether the words of a text's beginning are the first words of the text.

    Provided that the beginning ends with a word of the whole text and whitespace follows, of one
    character.

    Args:
        tokenizer: a ``tokenizers.Tokenizer``.
    """
    normalizer, words = _rules(tokenizer.normalizer), _rules(tokenizer.pre_tokenizer)
    return (
        words is not None
        and _all_rules(words, _cuts_words)
        and _all_rules(normalizer, _is_per_character)
    )


def count_prefix_tokens(encoding: Any, end: int) -> int | None:
    """Return how many tokens the first ``end`` characters have; None where that is not known.

    Args:
        encoding: of the whole text, a ``tokenizers.Encoding``.
        end: where a word is to end and one space to follow.
    """
    last, following = encoding.char_to_word(end - 1), encoding.char_to_word(end + 1)
    if last is None or following != last + 1:
        return None
    tokens, rest = encoding.word_to_tokens(last), encoding.word_to_tokens(following)
    return int(tokens[1]) if tokens and rest and tokens[1] == rest[0] else None


def _rules(part: Any) -> Mapping[str, Any] | None:
    return None if part is None else json.loads(part.__getstate__())


def _all_rules(rules: Mapping[str, Any] | None, fits: Any) -> bool:
    if rules is None:
        return True
    if rules.get("type") == "Sequence":
        parts = rules.get("pretokenizers") or rules.get("normalizers") or ()
        return bool(parts) and all(_all_rules(part, fits) for part in parts)
    return bool(fits(rules))


def _is_per_character(rules: Mapping[str, Any]) -> bool:
    return rules.get("type") in _NORMALIZERS


def _cuts_words(rules: Mapping[str, Any]) -> bool:
    kind = rules.get("type")
    if kind == "Split":
        pattern = rules.get("pattern", {}).get("Regex")
        if rules.get("behavior") not in _SPLIT_BEHAVIORS:
            return False
        return pattern is not None and not _CONTEXT_PATTERN.search(
            _HARMLESS_PATTERN.sub("x", pattern)
        )
    return (
        kind in _WORD_SPLITTERS
        or kind == "ByteLevel"
        or (kind == "Metaspace" and bool(rules["split"]))
    )


# EncodedTexts: token ids of texts, by what was encoded, for all models with one tokenizer.


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
        found = self._ids.get((text, special))
        return None if found is None else found.tolist()

    def knows(self, text: str, special: bool | None) -> bool:
        """Whether a text's ids are held."""
        return (text, special) in self._ids

    def put(self, text: str, special: bool | None, ids: Sequence[int]) -> None:
        """Hold a text's ids."""
        if (text, special) in self._ids:
            return
        kept = np.array(ids, dtype=np.int32)
        self._ids[text, special] = kept
        self._held += _size_in_bytes(text, kept)
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
