"""Where a generated text ends: at its own stop string, whatever else its batch still generates."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from lm_eval.models.utils_hf import stop_sequences_criteria

from evalguard.core.scorer import Ending


@dataclass(frozen=True, slots=True, kw_only=True)
class TextEnds:
    """What ends the texts of a batch.

    Attributes:
        begin: length of the contexts, padded.
        stops: strings that end a text; ``tokens``: ids of tokens that do.
    """

    tokenizer: Any
    begin: int
    stops: Sequence[str]
    tokens: Collection[int] = ()

    def stops_in(self, made: Sequence[int]) -> list[str]:
        """The strings that stand in what was generated."""
        text = self.tokenizer.decode(made)
        return [stop for stop in self.stops if stop and stop in text]


def count_generated(ids: torch.Tensor, ends: TextEnds) -> list[int]:
    """Number of tokens that each text of a batch would have alone, the one that ended it included.

    Args:
        ids: contexts and what was generated, shape (texts, tokens).
    """
    lengths = []
    for row, made in enumerate(ids[:, ends.begin :].tolist()):
        length = next((n for n, token in enumerate(made, start=1) if token in ends.tokens), None)
        if own := ends.stops_in(made):
            stopped = _length_until_stop(ends.tokenizer, ids[row : row + 1], ends.begin, own)
            length = min(stopped - ends.begin, length or len(made))
        lengths.append(length or len(made))
    return lengths


def pad_after(ids: torch.Tensor, begin: int, lengths: Sequence[int], padding: int) -> torch.Tensor:
    """Replace by padding what texts of a batch went on with after their ends.

    lm-eval ends a batch when all its texts have met a stop string, and cuts the texts where they
    hold it. A string that is a special token, such as ``<|im_end|>``, is not in the text any more
    then, and what was generated for the others' sake stays.
    """
    if all(begin + length >= ids.shape[1] for length in lengths):
        return ids
    ended = ids.clone()
    for row, length in enumerate(lengths):
        ended[row, begin + length :] = padding
    return ended


def find_endings(
    ids: torch.Tensor,
    ends: TextEnds,
    *,
    lengths: Sequence[int],
    most: int,
    early: Collection[int] = (),
) -> list[Ending]:
    """Say which texts of a batch ended at the token limit: as many tokens, and no end among them.

    Args:
        ids, lengths: as of ``count_generated``.
        most: tokens that were allowed.
        early: rows that were ended before; of these it is not known how they would have.
    """
    found: list[Ending] = []
    for row, length in enumerate(lengths):
        made = ids[row, ends.begin : ends.begin + length].tolist()
        if made and (made[-1] in ends.tokens or ends.stops_in(made)):
            found.append("stop")
        elif row in early:
            found.append("")
        else:
            found.append("stop" if length < most else "length")
    return found


def _length_until_stop(tokenizer: Any, ids: torch.Tensor, begin: int, stops: Sequence[str]) -> int:
    """Number of tokens after which lm-eval would have stopped this text alone."""
    met = stop_sequences_criteria(tokenizer, list(stops), begin, 1)
    total = ids.shape[1]
    return next((end for end in range(begin + 1, total) if met(ids[:, :end], None).any()), total)
