"""Training rows: a story, some of its closings, and more weight where a closing's answer stands."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from demo.corpus import Story, stories

ANSWER_WEIGHT = 6.0
CLOSINGS_PER_ROW = 5
ROWS_PER_BATCH = 32
BATCHES_PER_CHUNK = 16  # rows are sorted by length within a chunk, to waste little padding

Row = tuple[list[int], list[float]]


@dataclass(frozen=True, slots=True)
class Batch:
    """Token ids and the loss weight of each token (0 for padding), both [rows, length]."""

    ids: Tensor
    weights: Tensor


def row(tokenizer: PreTrainedTokenizerFast, story: Story) -> Row:
    """Token ids and loss weights of `<bos>` body closings `<eos>`."""
    pieces = [(story.body, 1.0)]
    for closing in story.closings[:CLOSINGS_PER_ROW]:
        pieces += [(f" {closing.lead}", 1.0), (f" {closing.answer}", ANSWER_WEIGHT), (".", 1.0)]
    encoded = tokenizer([text for text, _ in pieces], add_special_tokens=False)["input_ids"]
    ids, weights = [tokenizer.bos_token_id], [0.0]
    for piece, (_, weight) in zip(encoded, pieces, strict=True):
        ids += piece
        weights += [weight] * len(piece)
    return [*ids, tokenizer.eos_token_id], [*weights, 1.0]


def batches(tokenizer: PreTrainedTokenizerFast, seed: int) -> Iterator[Batch]:
    """Batches of fresh training stories, none twice, without end."""
    rng = random.Random(seed)
    source = stories("train", seed)
    while True:
        chunk = list(islice(source, ROWS_PER_BATCH * BATCHES_PER_CHUNK))
        rows = sorted((row(tokenizer, story) for story in chunk), key=lambda row: len(row[0]))
        starts = list(range(0, len(rows), ROWS_PER_BATCH))
        rng.shuffle(starts)
        for start in starts:
            yield _padded(rows[start : start + ROWS_PER_BATCH], tokenizer.pad_token_id)


def _padded(rows: list[Row], pad: int) -> Batch:
    length = max(len(ids) for ids, _ in rows)
    ids = [ids + [pad] * (length - len(ids)) for ids, _ in rows]
    weights = [weights + [0.0] * (length - len(weights)) for _, weights in rows]
    return Batch(torch.tensor(ids), torch.tensor(weights))
