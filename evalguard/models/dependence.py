"""What a model's answers depend on beside the tokens before them: measured on a few tokens."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

_PROBE = "The quick brown fox jumps over the lazy dog"
_LENGTH, _SHARED = 8, 5


def on_later_tokens(lm: Any) -> float:
    """Largest change of a log-probability, in nats, when only later tokens change.

    Zero but for rounding for a causal model; attention without a causal mask, or activations
    quantised together, let a token's score depend on what follows it and on its batch.
    """
    ids = probe_ids(lm)
    others = ids[:_SHARED] + ids[:_SHARED][::-1][: _LENGTH - _SHARED]
    first, second = (_logprobs(lm, row)[:_SHARED] for row in (ids, others))
    return largest_change(first, second)


def on_padding(lm: Any) -> float:
    """Largest change of the next token's log-probability when padding stands before the text.

    Zero but for rounding for a model that honours the attention mask, as lm-eval's batches of
    contexts of different lengths need.
    """
    ids = probe_ids(lm)
    pads = [lm.tokenizer.pad_token_id] * 3
    return largest_change(_next_logprobs(lm, [], ids), _next_logprobs(lm, pads, ids))


def noticeable(lm: Any, change: float) -> bool:
    """Whether a change is more than the rounding of the model's dtype."""
    narrow = any(
        parameter.dtype in (torch.bfloat16, torch.float16) for parameter in lm.model.parameters()
    )
    return not change <= (0.5 if narrow else 0.01)


def probe_ids(lm: Any) -> list[int]:
    """Token ids of a few ordinary words."""
    ids = list(lm.tok_encode(_PROBE, add_special_tokens=False)) or [lm.prefix_token_id]
    return (ids * _LENGTH)[:_LENGTH]


def _logprobs(lm: Any, ids: list[int]) -> torch.Tensor:
    logits = lm._model_call(torch.tensor([ids], device=lm.device))[0]
    return F.log_softmax(logits[-len(ids) :], dim=-1, dtype=torch.float32)


def _next_logprobs(lm: Any, pads: list[int], ids: list[int]) -> torch.Tensor:
    told = lm.model.generate(
        input_ids=torch.tensor([[*pads, *ids]], device=lm.device),
        attention_mask=torch.tensor([[0] * len(pads) + [1] * len(ids)], device=lm.device),
        max_new_tokens=1,
        do_sample=False,
        pad_token_id=lm.tokenizer.pad_token_id,
        output_logits=True,
        return_dict_in_generate=True,
    )
    return F.log_softmax(told.logits[0][0], dim=-1, dtype=torch.float32)


def largest_change(first: torch.Tensor, second: torch.Tensor) -> float:
    """The largest difference without its sign; NaN where only one of the two is NaN."""
    # what is -inf (a masked token) or NaN on both sides has not changed
    same = (first == second) | (first.isnan() & second.isnan())
    return float(torch.where(same, 0.0, (first - second).abs()).max())
