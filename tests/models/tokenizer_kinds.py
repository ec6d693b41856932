"""Small tokenizers of the kinds that there are, each trained on one text."""

from __future__ import annotations

import functools
from collections.abc import Callable

from tiny_models import TEXT
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerFast

SPECIAL = ["<unk>", "<s>", "</s>"]


def gpt2() -> Tokenizer:
    """Byte-level BPE without a BOS."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        [TEXT],
        trainers.BpeTrainer(
            vocab_size=384, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
        ),
    )
    return tokenizer


def llama() -> Tokenizer:
    """BPE as sentencepiece writes it: a mark for spaces, one put first, bytes for the rest, BOS."""
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.train_from_iterator(
        [TEXT.replace(" ", "▁")],
        trainers.BpeTrainer(
            vocab_size=600, special_tokens=[*SPECIAL, *bytes_], show_progress=False
        ),
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return tokenizer


def unigram() -> Tokenizer:
    """A unigram model as sentencepiece has it, with an EOS after every text."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.train_from_iterator(
        [TEXT],
        trainers.UnigramTrainer(
            vocab_size=120, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False
        ),
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 2)]
    )
    return tokenizer


def wordpiece() -> Tokenizer:
    """Lower case, no spaces, and added tokens that take the space before them."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.train_from_iterator(
        [TEXT],
        trainers.WordPieceTrainer(vocab_size=200, special_tokens=SPECIAL, show_progress=False),
    )
    tokenizer.add_tokens([AddedToken("harbour", lstrip=True)])
    return tokenizer


LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def llama3() -> Tokenizer:
    """Byte-level BPE with a rule of its own for words, and BOS."""
    tokenizer = gpt2()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(LLAMA3), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return tokenizer


KINDS: dict[str, Callable[[], Tokenizer]] = {
    "gpt2": gpt2, "llama": llama, "llama3": llama3, "unigram": unigram, "wordpiece": wordpiece
}  # fmt: skip


@functools.cache
def tokenizer_of(kind: str) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=KINDS[kind](), bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
