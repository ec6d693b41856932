"""HFLM that encodes every text once, many at a time, and together with others of its tokenizer.

A tokenizer that cuts a text into words before it knows of tokens gives a word the same tokens
whatever follows it. Whether the words of a beginning are the first words of the whole is a
matter of its rules: this holds where they look at characters one by one, and at what follows a
match only for whitespace.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from lm_eval.models.huggingface import HFLM
from lm_eval.models.utils import _add_special_kwargs, has_bos_prefix

from evalguard.models.scored_tokens import refuse_empty_side
from evalguard.models.tokenizers import EncodedTexts

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance

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


# Texts of every batch that are encoded alone too, before the batch is believed.
_TEXTS_CHECKED = 2


class EncodingCacheHFLM(HFLM):  # type: ignore[misc]
    """HFLM whose ``tok_encode`` remembers; the ids are those of HFLM's own.

    ``texts`` holds what was encoded; None: nothing is remembered. Two models whose tokenizers do
    the same may have one between them.
    """

    texts: EncodedTexts | None = None

    def tok_encode(
        self,
        string: str,
        add_special_tokens: bool | None = None,
        left_truncate_len: int | None = None,
        **kwargs: Any,
    ) -> list[int]:
        """Encode a text as HFLM does, or remember how it was encoded."""
        if self.texts is None or kwargs:
            return list(super().tok_encode(string, add_special_tokens, left_truncate_len, **kwargs))
        ids = self.texts.get(string, add_special_tokens)
        if ids is None:
            ids = list(super().tok_encode(string, add_special_tokens))
            self.texts.put(string, add_special_tokens, ids)
        return ids[-left_truncate_len:] if left_truncate_len else ids

    def loglikelihood(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """Log-likelihoods by lm-eval's own way, whose texts are encoded beforehand.

        Raises:
            UnscorablePairError: a continuation of nothing but what the tokenizer drops, after an
                empty context.
        """
        if self.backend == "causal":
            self._refuse_dropped([request.args for request in requests])
            self._encode_pairs_ahead([request.args for request in requests if request.args[0]])
        return super().loglikelihood(  # type: ignore[no-any-return]
            requests, disable_tqdm=disable_tqdm
        )

    def _refuse_dropped(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Refuse in words what lm-eval looks for the first token of."""
        for position, (context, continuation) in enumerate(pairs):
            if not context and not self.tok_encode(continuation, add_special_tokens=False):
                refuse_empty_side([self.prefix_token_id], (), position=position)

    def encode_ahead(self, texts: Iterable[str]) -> None:
        """Encode many texts at a time, which is faster, as ``tok_encode`` would one by one."""
        if self.texts is not None and self._batches_texts:
            self._encode_missing(dict.fromkeys(texts, ""), self.texts)

    def _encode_pairs_ahead(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Encode what ``TemplateLM._encode_pair`` asks for: whole texts, and contexts."""
        if self.texts is None or not self._batches_texts:
            return
        whole: dict[str, str] = {}
        for context, continuation in pairs:
            whole.setdefault(context + continuation, context.rstrip())
        self._encode_missing(whole, self.texts)
        contexts = (context.rstrip() for context, _ in pairs)
        self._encode_missing(dict.fromkeys(contexts, ""), self.texts)

    @property
    def _batches_texts(self) -> bool:
        tokenizer = self.tokenizer
        own = type(tokenizer).__module__.startswith("transformers.")
        return own and bool(getattr(tokenizer, "is_fast", False))

    def _encode_missing(self, texts: Mapping[str, str], known: EncodedTexts) -> None:
        """Encode texts that are not known, each with its beginning where it is to be known, too."""
        prefix = self.tokenizer.decode(self.prefix_token_id)
        missing = {
            # a text that begins with BOS gets no other one, and so would its beginning
            text: start if has_bos_prefix(text, prefix) == has_bos_prefix(start, prefix) else ""
            for text, start in texts.items()
            if not known.knows(text, None)
        }
        usual = _add_special_kwargs(None, self.add_bos_token)
        begun = [text for text in missing if has_bos_prefix(text, prefix)]
        plain = [text for text in missing if not has_bos_prefix(text, prefix)]
        for group, special in ((begun, {"add_special_tokens": False}), (plain, usual)):
            if len(group) > _TEXTS_CHECKED:
                self._encode_batch({text: missing[text] for text in group}, special, known)

    def _encode_batch(
        self, texts: Mapping[str, str], special: dict[str, bool], known: EncodedTexts
    ) -> None:
        encoded = self.tokenizer(
            list(texts), return_attention_mask=False, return_token_type_ids=False, **special
        )
        ids = [list(own) for own in encoded["input_ids"]]
        if not self._as_alone(zip(texts, ids, strict=False)):
            return  # a tokenizer with ways of its own: one by one, then
        for text, own in zip(texts, ids, strict=True):
            known.put(text, None, own)
        starts = self._beginnings(texts, ids, encoded)
        if self._as_alone(starts.items()):
            for start, own in starts.items():
                known.put(start, None, own)

    def _as_alone(self, encoded: Iterable[tuple[str, list[int]]]) -> bool:
        """Whether the first texts have the ids that HFLM gives them one by one."""
        return all(
            ids == list(super(EncodingCacheHFLM, self).tok_encode(text))
            for text, ids in islice(encoded, _TEXTS_CHECKED)
        )

    def _beginnings(
        self, texts: Mapping[str, str], ids: Sequence[list[int]], encoded: Any
    ) -> dict[str, list[int]]:
        """The ids of texts' beginnings, as far as they follow from those of the whole texts."""
        if not encoded.encodings or not splits_into_words(self.tokenizer.backend_tokenizer):
            return {}
        beginnings = {}
        for (text, start), own, encoding in zip(texts.items(), ids, encoded.encodings, strict=True):
            end = len(start)
            if start and _has_one_space(text, end) and text.startswith(start):
                tokens = count_prefix_tokens(encoding, end)
                if tokens is not None:
                    beginnings[start] = own[:tokens]
        return beginnings


def _has_one_space(text: str, at: int) -> bool:
    return text[at : at + 1] == " " and not text[at + 1 : at + 2].isspace() and at + 1 < len(text)
