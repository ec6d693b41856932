"""Digests of tokenizers change with every rule, and with nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizer_kinds import KINDS, gpt2
from tokenizers import AddedToken, Tokenizer, decoders, normalizers, pre_tokenizers, processors

from evalguard.core.settings import digest_of
from evalguard.models.tokenizers import entries_digest, rules_digest


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_call_leaves_behind_is_no_rule(kind: str) -> None:
    tokenizer = Tokenizer.from_str(KINDS[kind]().to_str())
    before = rules_digest(tokenizer)
    tokenizer.enable_padding(length=9)
    tokenizer.enable_truncation(3)
    assert rules_digest(tokenizer) == before
    assert rules_digest(Tokenizer.from_str(tokenizer.to_str())) == before


CHANGES: dict[str, Callable[[Any], object]] = {
    "normalizer": lambda t: setattr(t, "normalizer", normalizers.NFC()),
    "words": lambda t: setattr(t, "pre_tokenizer", pre_tokenizers.ByteLevel(use_regex=False)),
    "BOS": lambda t: setattr(
        t,
        "post_processor",
        processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)]),
    ),
    "decoder": lambda t: setattr(t, "decoder", decoders.Fuse()),
    "added": lambda t: t.add_tokens(["harbour"]),
    "added otherwise": lambda t: t.add_tokens([AddedToken("harbour", lstrip=True)]),
    "model": lambda t: setattr(t.model, "dropout", 0.1),
}


def test_every_rule_is_in_the_digest() -> None:
    found = {"none": rules_digest(gpt2())}
    for name, change in CHANGES.items():
        tokenizer = gpt2()
        change(tokenizer)
        found[name] = rules_digest(tokenizer)
    assert len(set(found.values())) == len(CHANGES) + 1


@settings(max_examples=30)
@given(
    st.dictionaries(st.text(max_size=5), st.integers(0, 300_000), max_size=20),
    st.integers(1, 1000),
)
def test_a_large_vocabulary_which_is_digested_in_parts_has_the_digest_of_the_whole(
    vocabulary: dict[str, int], times: int
) -> None:
    entries = sorted(vocabulary.items()) * times
    assert entries_digest(entries) == digest_of(entries)
