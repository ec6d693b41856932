"""From log-probabilities of the whole vocabulary to what is kept of them: the scored tokens'."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from evalguard.models.packed_batch import Read
from evalguard.models.scored_tokens import ScoredTokens


def chosen(rows: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the targets' log-probabilities, and whether each target is the most probable token.

    Of equally probable tokens the first counts as the most probable, as in lm-eval. Nothing waits
    for a GPU.

    Args:
        rows: log-probabilities, shape (n, vocabulary).
        targets: token ids, shape (n,), on the same device.
    """
    told = rows.gather(1, targets.unsqueeze(1)).squeeze(1)
    if rows.device.type != "cpu":
        return told, rows.argmax(dim=-1) == targets
    # On a CPU a search for the place of a maximum is much slower than one for its value, and only
    # rows where the target has it need the place.
    best = rows.amax(dim=-1)
    greedy = (told == best) | best.isnan()
    of_best = greedy.nonzero().squeeze(1)
    greedy[of_best] = rows[of_best].argmax(dim=-1) == targets[of_best]
    return told, greedy


def answers(reads: Sequence[Read], told: torch.Tensor, greedy: torch.Tensor) -> list[ScoredTokens]:
    """Cut the answers of many pieces apart; ``told`` and ``greedy`` have shape (N,)."""
    ends = np.cumsum([len(read.positions) for read in reads])
    logprobs = np.split(told.double().cpu().numpy(), ends[:-1])
    flags = np.split(greedy.cpu().numpy(), ends[:-1])
    return [
        ScoredTokens(fed=read.piece, logprobs=own, is_greedy=bool(all_greedy.all()))
        for read, own, all_greedy in zip(reads, logprobs, flags, strict=True)
    ]
