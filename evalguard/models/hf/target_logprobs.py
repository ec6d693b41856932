"""From log-probabilities of the whole vocabulary to what is kept of them: the scored tokens'."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from evalguard.models.hf.packed_batch import PieceRead
from evalguard.models.hf.scored_tokens import ScoredTokens

_NUMPY_DTYPES = (torch.float32, torch.float64)


def pick_target_logprobs(
    rows: torch.Tensor, targets: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the targets' log-probabilities, and whether each target is the most probable token.

    Of equally probable tokens the first counts as the most probable, as in lm-eval. Nothing waits
    for a GPU.

    Args:
        rows: log-probabilities, shape (n, vocabulary).
        targets: token ids, shape (n,), on the same device.
    """
    told = rows.gather(1, targets.unsqueeze(1)).squeeze(1)
    if rows.device.type == "cpu" and rows.dtype in _NUMPY_DTYPES:
        # torch takes ten times as long for the place of a maximum on a CPU
        best = torch.from_numpy(rows.numpy().argmax(axis=1))
    else:
        best = rows.argmax(dim=-1)
    return told, best == targets


def split_by_piece(
    reads: Sequence[PieceRead], told: torch.Tensor, greedy: torch.Tensor
) -> list[ScoredTokens]:
    """Cut the answers of many pieces apart; ``told`` and ``greedy`` have shape (N,)."""
    logprobs, flags = told.double().cpu().numpy(), greedy.tolist()
    found, end = [], 0
    for read in reads:
        start, end = end, end + len(read.positions)
        of_piece = slice(start, end)
        found.append(
            ScoredTokens(
                fed=read.piece, logprobs=logprobs[of_piece], is_greedy=all(flags[of_piece])
            )
        )
    return found
