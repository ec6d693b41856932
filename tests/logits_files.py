"""llama.cpp's logits files, written by hand (tools/perplexity/perplexity.cpp, ``log_softmax``)."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np


def code_row(logits: np.ndarray) -> tuple[np.float32, np.float32, np.ndarray]:
    """Scale, least log-probability and codes of one row of logits, float32."""
    largest = logits.max()
    least = max(logits.min(), largest - np.float32(16))
    log_sum = np.float32(np.log(np.exp(logits - largest).astype(np.float64).sum()))
    scale = np.float32((largest - least) / np.float32(65535))
    codes = np.zeros(len(logits), dtype=np.uint16)
    if scale:
        above = logits > least
        codes[above] = np.rint((logits[above] - least) * (np.float32(1) / scale))
    return scale, np.float32(least - largest - log_sum), codes


def write_logits_file(path: Path, tokens: np.ndarray, logits: Sequence[np.ndarray]) -> Path:
    """Write windows, shape (chunks, n_ctx), with the logits of all positions of each."""
    chunks, context = tokens.shape
    vocabulary = logits[0].shape[1]
    with path.open("wb") as file:
        file.write(struct.pack("<8s3i", b"_logits_", context, vocabulary, chunks))
        file.write(tokens.astype("<i4").tobytes())
        for window in logits:
            for row in window[context // 2 : context - 1].astype(np.float32):
                scale, least, codes = code_row(row)
                padding = np.zeros(vocabulary % 2, dtype=np.uint16)
                file.write(struct.pack("<2f", scale, least))
                file.write(np.concatenate([codes, padding]).astype("<u2").tobytes())
    return path


def write_file_of_model(path: Path, model: Path, tokens: np.ndarray) -> Path:
    """Write what a Hugging Face model in float32 answers; its tokenizer adds BOS, or not."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    read = torch.from_numpy(tokens.astype(np.int64)).clone()
    bos = tokenizer.bos_token_id
    if bos is not None and tokenizer("a").input_ids[:1] == [bos]:
        read[:, 0] = bos
    with torch.no_grad():
        logits = [loaded(one[None]).logits[0].float().numpy() for one in read]
    return write_logits_file(path, tokens, logits)


def cut_windows(model: Path, text: str, context: int) -> np.ndarray:
    """Cut the token ids of a text into whole windows."""
    from transformers import AutoTokenizer

    ids = AutoTokenizer.from_pretrained(model)(text).input_ids
    chunks = len(ids) // context
    return np.array(ids[: chunks * context], dtype=np.int32).reshape(chunks, context)
