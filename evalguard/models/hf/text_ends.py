"""Where a generated text ends: at its own stop string, whatever else its batch still generates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from lm_eval.models.utils_hf import stop_sequences_criteria

from evalguard.core.scorer import Ending


def pad_after_stop(
    tokenizer: Any, ids: torch.Tensor, begin: int, stops: Sequence[str]
) -> torch.Tensor:
    """Replace by padding what texts of a batch went on with after a stop string.

    lm-eval ends a batch when all its texts have met the string, and cuts the texts where they
    hold it. A string that is a special token, such as ``<|im_end|>``, is not in the text any more
    then, and what was generated for the others' sake stays.

    Args:
        tokenizer: that of the model.
        ids: contexts and what was generated, shape (texts, tokens).
        begin: length of the contexts, padded.
        stops: what ends a text.
    """
    ended = ids.clone()
    for row, text in enumerate(tokenizer.batch_decode(ids[:, begin:])):
        own = [stop for stop in stops if stop in text]
        if own:
            ended[row, _length_until_stop(tokenizer, ids[row : row + 1], begin, own) :] = (
                tokenizer.pad_token_id
            )
    return ended


def find_endings(
    tokenizer: Any, made: torch.Tensor, stops: Sequence[str], *, most: int
) -> list[Ending]:
    """Say which texts of a batch ended at the token limit: as many tokens, and no end among them.

    Args:
        made: what was generated, padded, shape (texts, tokens).
        most: tokens that were allowed.
    """
    if made.shape[1] < most:
        return ["stop"] * len(made)
    marks = {tokenizer.eos_token_id, tokenizer.pad_token_id}
    return [
        "stop" if marks & set(ids) or any(stop and stop in text for stop in stops) else "length"
        for ids, text in zip(made.tolist(), tokenizer.batch_decode(made), strict=True)
    ]


def _length_until_stop(tokenizer: Any, ids: torch.Tensor, begin: int, stops: Sequence[str]) -> int:
    """Number of tokens after which lm-eval would have stopped this text alone."""
    met = stop_sequences_criteria(tokenizer, list(stops), begin, 1)
    total = ids.shape[1]
    return next((end for end in range(begin + 1, total) if met(ids[:, :end], None).any()), total)
