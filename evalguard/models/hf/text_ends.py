"""Where a generated text ends: at its own stop string, whatever else its batch still generates."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from lm_eval.models.utils_hf import stop_sequences_criteria

from evalguard.core.scorer import Ending


def count_generated(
    tokenizer: Any, ids: torch.Tensor, begin: int, stops: Sequence[str], ends: Collection[int]
) -> list[int]:
    """Number of tokens that each text of a batch would have alone, the one that ended it included.

    Args:
        tokenizer: that of the model.
        ids: contexts and what was generated, shape (texts, tokens).
        begin: length of the contexts, padded.
        stops: strings that end a text; ``ends``: ids of tokens that do.
    """
    lengths = []
    for row, text in enumerate(tokenizer.batch_decode(ids[:, begin:])):
        made = ids[row, begin:].tolist()
        length = next((n for n, token in enumerate(made, start=1) if token in ends), len(made))
        own = [stop for stop in stops if stop and stop in text]
        if own:
            stopped = _length_until_stop(tokenizer, ids[row : row + 1], begin, own) - begin
            length = min(length, stopped)
        lengths.append(length)
    return lengths


def pad_after(ids: torch.Tensor, begin: int, lengths: Sequence[int], padding: int) -> torch.Tensor:
    """Replace by padding what texts of a batch went on with after their ends.

    lm-eval ends a batch when all its texts have met a stop string, and cuts the texts where they
    hold it. A string that is a special token, such as ``<|im_end|>``, is not in the text any more
    then, and what was generated for the others' sake stays.
    """
    ended = ids.clone()
    for row, length in enumerate(lengths):
        ended[row, begin + length :] = padding
    return ended


def find_endings(
    tokenizer: Any,
    made: torch.Tensor,
    stops: Sequence[str],
    ends: Collection[int],
    *,
    lengths: Sequence[int],
    most: int,
) -> list[Ending]:
    """Say which texts of a batch ended at the token limit: as many tokens, and no end among them.

    Args:
        made: what was generated, padded, shape (texts, tokens).
        stops, ends, lengths: as of ``count_generated``.
        most: tokens that were allowed.
    """
    return [
        "stop"
        if length < most or ids[-1] in ends or any(stop and stop in text for stop in stops)
        else "length"
        for length, ids, text in zip(
            lengths, made.tolist(), tokenizer.batch_decode(made), strict=True
        )
    ]


def _length_until_stop(tokenizer: Any, ids: torch.Tensor, begin: int, stops: Sequence[str]) -> int:
    """Number of tokens after which lm-eval would have stopped this text alone."""
    met = stop_sequences_criteria(tokenizer, list(stops), begin, 1)
    total = ids.shape[1]
    return next((end for end in range(begin + 1, total) if met(ids[:, :end], None).any()), total)
