"""Random tiny models with a real tokenizer, saved as transformers folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Mamba2Config,
    Mamba2ForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)

TEXT = (
    "Mara carried the lantern down to the harbour because the fog had come in early. "
    "Nobody at the pier had seen the boat, and the old keeper said that it would not return "
    "before dawn. She sat on the crates, counted the bells, and waited for the lantern to fail. "
    "When the boat came at last, the keeper laughed and asked her why she had kept the light."
)


def save_tokenizer(folder: Path) -> int:
    """Save a byte-level BPE tokenizer that puts <s> before every text; return its size."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=384,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
    fast.save_pretrained(folder)
    return tokenizer.get_vocab_size()


def save_llama(folder: Path, *, max_length: int = 48, tied: bool = True, **changes: Any) -> Path:
    """Save a two-layer Llama with random weights large enough for varied scores."""
    size = save_tokenizer(folder)
    config = LlamaConfig(
        vocab_size=size, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=max_length,
        initializer_range=0.3, bos_token_id=0, eos_token_id=1, tie_word_embeddings=tied, **changes,
    )  # fmt: skip
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def save_gemma2(folder: Path, *, max_length: int = 48, **changes: Any) -> Path:
    """Save a two-layer Gemma 2: soft caps, sliding layers, an attention scale of its own."""
    size = save_tokenizer(folder)
    config = Gemma2Config(
        vocab_size=size, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        max_position_embeddings=max_length, initializer_range=0.3, bos_token_id=0, eos_token_id=1,
        pad_token_id=1,
        query_pre_attn_scalar=8, sliding_window=16, **changes,
    )  # fmt: skip
    torch.manual_seed(1)
    Gemma2ForCausalLM(config).save_pretrained(folder)
    return folder


def save_mamba(folder: Path) -> Path:
    """Save a two-layer state-space model."""
    size = save_tokenizer(folder)
    config = MambaConfig(
        vocab_size=size, hidden_size=32, num_hidden_layers=2, state_size=4, initializer_range=0.3,
        bos_token_id=0, eos_token_id=1, pad_token_id=1,
    )  # fmt: skip
    torch.manual_seed(0)
    MambaForCausalLM(config).save_pretrained(folder)
    return folder


def save_mamba2(folder: Path) -> Path:
    """Save a two-layer Mamba 2, whose time steps have no upper limit: an infinite number."""
    size = save_tokenizer(folder)
    config = Mamba2Config(
        vocab_size=size, hidden_size=32, num_hidden_layers=2, num_heads=4, head_dim=16,
        state_size=4, expand=2, n_groups=1, chunk_size=16, initializer_range=0.3,
        bos_token_id=0, eos_token_id=1, pad_token_id=1,
    )  # fmt: skip
    torch.manual_seed(0)
    Mamba2ForCausalLM(config).save_pretrained(folder)
    return folder


def save_t5(folder: Path) -> Path:
    """Save a one-layer encoder-decoder."""
    size = save_tokenizer(folder)
    config = T5Config(
        vocab_size=size, d_model=16, d_kv=4, d_ff=32, num_layers=1, num_heads=4, n_positions=48,
        decoder_start_token_id=0, pad_token_id=1, eos_token_id=1,
    )  # fmt: skip
    torch.manual_seed(2)
    T5ForConditionalGeneration(config).save_pretrained(folder)
    return folder
