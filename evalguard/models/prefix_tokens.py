"""Where the tokens of a text's beginning can be read off the tokens of the whole text.

A tokenizer that cuts a text into words before it knows of tokens gives a word the same tokens
whatever follows it. Whether the words of a beginning are the first words of the whole is a
matter of its rules: this holds where they look at characters one by one, and at what follows a
match only for whitespace.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

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
