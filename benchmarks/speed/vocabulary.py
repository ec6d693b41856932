"""A vocabulary of any size from 12,000 tokens on, made of syllables by rule: nothing is trained.

A word is one to three syllables. All words of one and two syllables are tokens, and as many of
three as the vocabulary has room for; the others take two tokens.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

_SYLLABLES = tuple(first + vowel for first in "bcdfghjklmnprstvwxyz" for vowel in "aeiou")
_SPECIAL = ("<s>", "</s>")
_SPACE = "Ġ"  # byte-level BPE's letter for a blank
_LONG = 1 / 3  # share of words that take two tokens, as of English words with a BPE of 32k tokens

Rng = np.random.Generator


def save_tokenizer(folder: Path, size: int) -> None:
    """Save a byte-level BPE tokenizer of ``size`` tokens that puts <s> before every text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [(syllable[0], syllable[1]) for syllable in _SYLLABLES]
    merges += [(_SPACE, syllable) for syllable in _SYLLABLES]
    merges += [(_SPACE + one, two) for one in _SYLLABLES for two in _SYLLABLES]
    room = size - len(_SPECIAL) - len(letters) - len(merges)
    merges += [(_SPACE + word[:4], word[4:]) for word in map(_three, range(room))]
    tokens = [*_SPECIAL, *letters, *(first + second for first, second in merges)]
    bpe = models.BPE(vocab={token: number for number, token in enumerate(tokens)}, merges=merges)
    tokenizer = Tokenizer(bpe)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
    fast.save_pretrained(folder)


def words(rng: Rng, n: int) -> list[str]:
    """Draw n words; the short ones are the frequent ones."""
    one, two = len(_SYLLABLES), len(_SYLLABLES) ** 2
    ranks = np.minimum(rng.zipf(1.3, n) - 1, one + two - 1)
    beyond = rng.integers(500_000, one**3, n)  # more than any vocabulary here has room for
    return [
        _three(int(far)) if long else _short(int(rank))
        for rank, far, long in zip(ranks, beyond, rng.random(n) < _LONG, strict=True)
    ]


def _short(rank: int) -> str:
    one = len(_SYLLABLES)
    if rank < one:
        return _SYLLABLES[rank]
    first, second = divmod(rank - one, one)
    return _SYLLABLES[first] + _SYLLABLES[second]


def _three(number: int) -> str:
    """The words of three syllables in a fixed order that mixes first syllables."""
    one = len(_SYLLABLES)
    number, third = divmod(number, one)
    second, first = divmod(number, one)
    return _SYLLABLES[first] + _SYLLABLES[second] + _SYLLABLES[third]
