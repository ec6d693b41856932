"""Texts are encoded once, many at a time, and to the ids that lm-eval's own code gives."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from lm_requests import TEXTS, pair_requests, rolling_requests
from opened_models import OpenedScorer, open_hf
from tokenizer_kinds import KINDS, LLAMA3, tokenizer_of
from tokenizers import (
    Regex,
    Tokenizer,
    models,
    normalizers,
    pre_tokenizers,
)
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from evalguard.core.scorer import ScoringPolicy
from evalguard.errors import EvaluationError
from evalguard.models.hf.encoded_once import EncodingCacheHFLM, splits_into_words
from evalguard.models.hf.lockstep import score_in_lockstep
from evalguard.models.tokenizers import (
    EncodedTexts,
    clear_shared_texts,
    shareable_tokenizer_digest,
    shared_texts,
)


class Asked:
    """Answers with the token ids that it was asked."""

    def _loglikelihood_tokens(self, requests: Any, **_: Any) -> Any:
        return [(context, continuation) for _, context, continuation in requests]


class PlainAsked(Asked, HFLM):
    """lm-eval's own encoding."""


class OnceAsked(Asked, EncodingCacheHFLM):
    """Ours."""


def model(kind: type, tokenizer: Any, add_bos: bool | None = None) -> Any:
    """A Hugging Face model of lm-eval without any weights."""
    lm = object.__new__(kind)
    lm.tokenizer = tokenizer
    lm.backend = "causal"
    lm.add_bos_token = add_bos
    lm.custom_prefix_token_id = lm.enable_thinking = None
    return lm


def asked(lm: Any, pairs: list[tuple[str, str]]) -> Any:
    instances = [
        Instance(request_type="loglikelihood", doc={}, arguments=pair, idx=0) for pair in pairs
    ]
    return lm.loglikelihood(instances, disable_tqdm=True)


WORDS = st.sampled_from(
    [
        "the", " harbour", "  ", " ", "\n", "Mara", "<s>", "</s>", "é", "\ufb01", "漢字",
        "🙂", "\t", "x ", "\u00a0", "'s", " 'll", "1234", " 7", "?!", " .", "\u0301", " \u0301",
    ]
)  # fmt: skip
PART = st.lists(WORDS, max_size=8).map("".join)
PAIRS = st.lists(st.tuples(PART, PART.filter(bool)), min_size=1, max_size=12)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=30, deadline=None)
@given(pairs=PAIRS, add_bos=st.sampled_from([None, True, False]), twice=st.booleans())
def test_pairs_have_the_ids_that_lm_eval_gives_them(
    kind: str, pairs: Any, add_bos: bool | None, twice: bool
) -> None:
    ours = model(OnceAsked, tokenizer_of(kind), add_bos)
    ours.texts = EncodedTexts()
    if twice:
        with contextlib.suppress(EvaluationError):
            asked(ours, pairs[::-1])
    try:
        expected = asked(model(PlainAsked, tokenizer_of(kind), add_bos), pairs)
    except IndexError:  # a continuation of nothing but what the tokenizer drops, after no context
        with pytest.raises(EvaluationError, match="1 context and 0 continuation tokens"):
            asked(ours, pairs)
        return
    assert asked(ours, pairs) == expected


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("special", [None, True, False])
@pytest.mark.parametrize("left", [None, 0, 3])
def test_single_texts_have_the_ids_that_hflm_gives_them(
    kind: str, special: bool | None, left: int | None
) -> None:
    plain, ours = model(PlainAsked, tokenizer_of(kind)), model(OnceAsked, tokenizer_of(kind))
    ours.texts = EncodedTexts()
    ours.encode_ahead(TEXTS)
    for text in (*TEXTS, "<s>begun", " ", "<s>begun"):
        expected = plain.tok_encode(text, special, left)
        assert ours.tok_encode(text, special, left) == expected


@pytest.fixture
def encodings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every text that a tokenizer really encodes."""
    seen: list[str] = []
    original = PreTrainedTokenizerFast._encode_plus

    def counted(self: Any, text: Any, *given: Any, **options: Any) -> Any:
        seen.extend([text] if isinstance(text, str) else text)
        return original(self, text, *given, **options)

    monkeypatch.setattr(PreTrainedTokenizerFast, "_encode_plus", counted)
    return seen


def test_a_text_that_is_asked_again_is_not_encoded_again(encodings: list[str]) -> None:
    ours = model(OnceAsked, tokenizer_of("llama"))
    ours.texts = EncodedTexts()
    pairs = [("the harbour", f" {word}") for word in "abcdef"]
    asked(ours, pairs)
    once = len(encodings)
    assert encodings.count("the harbour a") <= 2  # in the batch, and alone to believe it
    asked(ours, pairs)
    assert len(encodings) == once
    ids = ours.tok_encode("the harbour")
    ids.append(7)  # the caller's own
    assert ours.tok_encode("the harbour") == ids[:-1]


@pytest.mark.parametrize(
    ("kind", "apart"), [("gpt2", 0), ("llama3", 0), ("wordpiece", 0), ("llama", 9), ("unigram", 9)]
)
def test_contexts_are_read_off_whole_texts_where_words_are_cut_first(
    kind: str, apart: int, encodings: list[str]
) -> None:
    """Not with one piece for the whole text, nor where something is put after every text."""
    ours = model(OnceAsked, tokenizer_of(kind))
    ours.texts = EncodedTexts()
    pairs = [(f"the keeper {word}", " counted") for word in "abcdefghi"]
    asked(ours, pairs)
    contexts = [context for context, _ in pairs]
    assert sum(text in contexts for text in encodings) <= apart + 4
    assert all(text in encodings for text in contexts) == bool(apart)
    pairs = [(f"the keeper {word}", "counted") for word in "abcdefghi"]  # no space between
    assert asked(ours, pairs) == asked(model(PlainAsked, tokenizer_of(kind)), pairs)


@pytest.mark.parametrize(
    ("pattern", "fits"),
    [
        (LLAMA3, True),
        (r"[^\s]+|\s+(?!\S)|\s+", True),
        (r"\p{L}++| ", False),  # gives nothing back
        (r"\w+$|\w", False),
        (r"\w+(?= )|\w", False),
        (r"^\w|\w+", False),
        (r"\w+\b|\W", False),
        (r"(\w)\1|\w+", False),
    ],
)
def test_rules_that_look_at_where_a_text_ends_are_known(pattern: str, fits: bool) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    assert splits_into_words(tokenizer) is fits
    tokenizer.normalizer = normalizers.Replace("b c", "d")
    assert not splits_into_words(tokenizer)


@pytest.mark.parametrize("behavior", ["merged_with_previous", "merged_with_next", "contiguous"])
def test_words_that_are_joined_with_what_cuts_them_are_not_read_off(behavior: str) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(" "), behavior=behavior)
    assert not splits_into_words(tokenizer)


def test_a_batch_that_differs_from_single_texts_is_not_believed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain, ours = (model(kind, tokenizer_of("gpt2")) for kind in (PlainAsked, OnceAsked))
    ours.texts = EncodedTexts()
    original = PreTrainedTokenizerBase.__call__

    def other(self: Any, texts: Any, **options: Any) -> Any:
        found = original(self, texts, **options)
        found["input_ids"] = [[5, *ids] for ids in found["input_ids"]]
        return found

    monkeypatch.setattr(PreTrainedTokenizerBase, "__call__", other)
    pairs = [("the", " harbour"), ("Mara", " x"), ("a", " b"), ("c", " d")]
    assert asked(ours, pairs) == asked(plain, pairs)


def test_what_was_encoded_first_goes_first_where_there_is_no_room() -> None:
    texts = EncodedTexts(most=40)
    for name in "abc":
        texts.put(name * 4, None, [1, 2])
    texts.put("dddd", False, [3, 4])
    assert [texts.knows(name * 4, None) for name in "abcd"] == [False, True, True, False]
    assert texts.get("dddd", False) == [3, 4]
    texts.put("long" * 20, None, [1])
    assert not texts.knows("long" * 20, None)
    texts.put("a", None, [2**31 - 1])
    assert texts.get("a", None) == [2**31 - 1]


def open_scorer(folder: Path, **more: Any) -> OpenedScorer:
    return open_hf(folder, ScoringPolicy(device="cpu", threads=1, token_budget=64), **more)


def test_models_with_one_tokenizer_share_texts_and_others_do_not(tiny_llama: Path) -> None:
    clear_shared_texts()
    first, second = open_scorer(tiny_llama), open_scorer(tiny_llama)
    without = open_scorer(tiny_llama, add_bos_token=False)
    assert first.lm.texts is second.lm.texts
    assert first.lm.texts is not without.lm.texts
    digest = shareable_tokenizer_digest(first.lm)
    assert shared_texts(digest) is first.lm.texts
    clear_shared_texts()
    assert shared_texts(digest) is not first.lm.texts


def test_two_models_side_by_side_encode_every_text_once(
    tiny_llama: Path, encodings: list[str]
) -> None:
    clear_shared_texts()
    base, candidate = open_scorer(tiny_llama), open_scorer(tiny_llama)
    plain = open_scorer(tiny_llama)
    plain.lm.texts = None
    for requests in (pair_requests(), rolling_requests()):
        encodings.clear()
        ours, theirs, _ = score_in_lockstep(base, candidate, requests, requests, seed=1)
        distinct = set(encodings)
        assert len(encodings) <= len(distinct) + 2 * 2  # a sample of each batch is checked alone
        expected = plain.score(requests)
        for found in (ours, theirs):
            assert [r.token_hash for r in found] == [r.token_hash for r in expected]
            assert [r.loglikelihood for r in found] == [r.loglikelihood for r in expected]


def test_a_tokenizer_in_python_shares_nothing_and_is_encoded_once(encodings: list[str]) -> None:
    class Slow:
        """Looks like one of a library of its own."""

        is_fast = False
        inner = tokenizer_of("gpt2")

        def encode(self, text: str, **options: Any) -> Any:
            return self.inner.encode(text, **options)

        def decode(self, ids: Any) -> Any:
            return self.inner.decode(ids)

        bos_token_id, eos_token_id = 1, 2

        def get_vocab(self) -> Any:
            return self.inner.get_vocab()

    ours, plain = (model(kind, Slow()) for kind in (OnceAsked, PlainAsked))
    ours.texts = EncodedTexts()
    assert shareable_tokenizer_digest(ours) == ""
    pairs = [("the harbour", " a"), ("the harbour", " b"), ("Mara", " c")]
    assert asked(ours, pairs) == asked(plain, pairs)
    encodings.clear()
    asked(ours, pairs)
    assert encodings == []
