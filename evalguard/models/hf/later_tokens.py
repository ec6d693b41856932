"""What a model's answers depend on beside the tokens before them: measured on a few tokens."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

_PROBE_TEXT = "The quick brown fox jumps over the lazy dog"
_LENGTH, _SHARED = 8, 5


def measure_effect_of_later_tokens(lm: Any) -> float:
    """Largest change of a log-probability, in nats, when only later tokens change.

    Zero but for rounding for a causal model; attention without a causal mask, or activations
    quantised together, let a token's score depend on what follows it and on its batch.
    """
    ids = probe_token_ids(lm)
    others = ids[:_SHARED] + ids[:_SHARED][::-1][: _LENGTH - _SHARED]
    first, second = (_logprobs(lm, row)[:_SHARED] for row in (ids, others))
    return largest_change(first, second)


def exceeds_rounding(lm: Any, change: float) -> bool:
    """Whether a change is more than the rounding of the model's dtype."""
    narrow = any(
        parameter.dtype in (torch.bfloat16, torch.float16) for parameter in lm.model.parameters()
    )
    return not change <= (0.5 if narrow else 0.01)


def probe_token_ids(lm: Any, length: int = _LENGTH) -> list[int]:
    """Token ids of a few ordinary words, repeated where that gives too few."""
    ids = list(lm.tok_encode(_PROBE_TEXT, add_special_tokens=False)) or [lm.prefix_token_id]
    return (ids * length)[:length]


def _logprobs(lm: Any, ids: list[int]) -> torch.Tensor:
    logits = lm._model_call(torch.tensor([ids], device=lm.device))[0]
    return F.log_softmax(logits[-len(ids) :], dim=-1, dtype=torch.float32)


def largest_change(first: torch.Tensor, second: torch.Tensor) -> float:
    """The largest difference without its sign; NaN where only one of the two is NaN."""
    # what is -inf (a masked token) or NaN on both sides has not changed
    same = (first == second) | (first.isnan() & second.isnan())
    return float(torch.where(same, 0.0, (first - second).abs()).max())
