"""What padding does to a model's answers: measured on a few tokens, each text alone and padded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from evalguard.core.scorer import PaddingEffect
from evalguard.models.hf.attention_reach import KEEPS_STATE_LAYERS
from evalguard.models.hf.longrope import longrope_switch_length
from evalguard.models.hf.out_of_memory import is_out_of_memory

_PROBE_TEXT = "The quick brown fox jumps over the lazy dog"
_LENGTH, _SHARED = 8, 5


def measure_effect_of_later_tokens(lm: Any) -> float:
    """Largest change of a log-probability, in nats, when only later tokens change.

    Zero but for rounding for a causal model; attention without a causal mask, or activations
    quantised together, let a token's score depend on what follows it and on its batch.
    """
    ids = probe_token_ids(lm)
    altered = ids[:_SHARED] + ids[:_SHARED][::-1][: _LENGTH - _SHARED]
    first, second = (_logprobs(lm, row)[:_SHARED] for row in (ids, altered))
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


# Units in the last place by which sums in another order may differ: many terms in float32, and the
# last rounding of one sum in a narrower dtype.
_ULPS_WIDE, _ULPS_NARROW = 256, 4


def rounding_limit(model: Any, logits: torch.Tensor) -> float:
    """How far logits may differ that were summed in another order."""
    narrow = rounding_unit(model)
    unit = _ULPS_WIDE * torch.finfo(torch.float32).eps if narrow is None else _ULPS_NARROW * narrow
    finite = logits.float()[logits.isfinite()]
    largest = float(finite.abs().max()) if finite.numel() else 0.0
    return unit * max(1.0, largest)


def rounding_unit(model: torch.nn.Module) -> float | None:
    """The relative rounding error of a model's dtype; None for float32 and wider."""
    units = [
        torch.finfo(tensor.dtype).eps
        for tensor in model.parameters()
        if tensor.dtype.is_floating_point
    ]
    if any(tensor.is_cuda for tensor in model.parameters()) and _multiplies_in_tf32():
        units.append(torch.finfo(torch.float16).eps)  # tf32 has as many digits
    unit = max(units, default=0.0)
    return unit if unit > torch.finfo(torch.float32).eps else None


def _multiplies_in_tf32() -> bool:
    backends: Any = torch.backends
    if hasattr(backends, "fp32_precision"):  # since torch 2.9; asking the old way may raise
        own = str(backends.cuda.matmul.fp32_precision)
        return (str(backends.fp32_precision) if own == "none" else own) == "tf32"
    return bool(backends.cuda.matmul.allow_tf32)


_TEXT, _PADS, _NEW = 8, 8, 2
# What rounding may leave between likely tokens' log-probabilities, in nats. Measured on fifteen
# architectures with large random weights: at most 1e-5 in float32, 0.12 in bfloat16.
_ROUNDING, _ROUNDING_NARROW = 0.01, 0.3
# A token that is so much less probable than the likeliest one is never said, and moves most.
_LIKELY = math.log(100.0)


def measure_padding(lm: Any) -> PaddingEffect | None:
    """Measure what padding on either side changes; None where the model cannot be asked.

    Texts are generated as lm-eval does: its batches of contexts are padded on the left, and the
    model's own ``generate`` makes positions of the mask. Two tokens are, since a cache's positions
    come in with the second. Behind a text, padding is read with a mask and without, as
    log-likelihoods are.

    Args:
        lm: a causal ``HFLM``.
    """
    try:
        with torch.inference_mode():
            return _measure(lm)
    except Exception as error:
        if is_out_of_memory(error):
            raise
        return None  # whoever generates with it will say what it lacks


def keeps_state(model: Any) -> bool:
    """Whether a model reads tokens into a state, by what transformers and its config say of it."""
    config = getattr(model.config, "text_config", None) or model.config
    kinds = set(getattr(config, "layer_types", None) or ())
    return bool(getattr(model, "_is_stateful", False)) or bool(kinds & KEEPS_STATE_LAYERS)


def _measure(lm: Any) -> PaddingEffect | None:
    pad = lm.tokenizer.pad_token_id
    embedded = getattr(lm.model.get_input_embeddings(), "num_embeddings", None)
    room = min(int(lm.max_length), longrope_switch_length(lm.config) or int(lm.max_length))
    pads = min(_PADS, room - _TEXT - _NEW)
    if pad is None or pads < 1 or (isinstance(embedded, int) and pad >= embedded):
        return None
    longer = probe_token_ids(lm, _TEXT + pads)
    text = longer[:_TEXT]
    alone = _generate(lm, [text], pad)
    before = _change(alone, _generate(lm, [text, longer], pad))
    right = _change_by_padding_behind(lm, text, pad, pads)
    limit = _ROUNDING if rounding_unit(lm.model) is None else _ROUNDING_NARROW
    return PaddingEffect(left=before, right=right, limit=limit, keeps_state=keeps_state(lm.model))


def generation_inputs(
    rows: Sequence[Sequence[int]], pad: int, device: Any
) -> dict[str, torch.Tensor]:
    """Ids and mask of texts, padded on the left as for generating."""
    width = max(map(len, rows))
    ids = [[*[pad] * (width - len(row)), *row] for row in rows]
    mask = [[0] * (width - len(row)) + [1] * len(row) for row in rows]
    return {
        "input_ids": torch.tensor(ids, device=device),
        "attention_mask": torch.tensor(mask, device=device),
    }


def _generate(
    lm: Any, rows: Sequence[Sequence[int]], pad: int
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Log-probabilities, shape (V,), and token of each step, for the first row."""
    given = generation_inputs(rows, pad, lm.device)
    generated = lm.model.generate(
        **given,
        max_new_tokens=_NEW,
        min_new_tokens=_NEW,
        do_sample=False,
        pad_token_id=pad,
        output_logits=True,
        return_dict_in_generate=True,
    )
    made = generated.sequences[0, -len(generated.logits) :]
    return [
        (F.log_softmax(logits[0], dim=-1, dtype=torch.float32), token)
        for logits, token in zip(generated.logits, made, strict=True)
    ]


def _change(
    one: Sequence[tuple[torch.Tensor, torch.Tensor]],
    other: Sequence[tuple[torch.Tensor, torch.Tensor]],
) -> float:
    """Largest change of a likely token, up to the step from which on the texts are others."""
    largest = 0.0
    for (ours, token), (theirs, their_token) in zip(one, other, strict=False):
        largest = _larger(largest, _change_of_likely(ours, theirs))
        if bool(token != their_token):
            break
    return largest


def _change_of_likely(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """The largest change where either side finds a token likely; shapes (..., V)."""
    likely = (ours >= ours.amax(-1, keepdim=True) - _LIKELY) | (
        theirs >= theirs.amax(-1, keepdim=True) - _LIKELY
    )
    odd = ~(ours.isfinite() & theirs.isfinite()) & (ours.isnan() | theirs.isnan())
    compared = likely | odd
    return largest_change(torch.where(compared, ours, 0.0), torch.where(compared, theirs, 0.0))


def _larger(one: float, other: float) -> float:
    """The larger number; NaN where one of them is."""
    return other if math.isnan(other) or other > one else one


def _change_by_padding_behind(lm: Any, text: Sequence[int], pad: int, pads: int) -> float:
    alone = _read(lm, text, len(text))
    padded = [*text, *[pad] * pads]
    change = _change_of_likely(alone, _read(lm, padded, len(text)))
    try:
        masked = _read(lm, padded, len(text), mask=[1] * len(text) + [0] * pads)
    except Exception as error:
        if is_out_of_memory(error):
            raise
        return change  # a mask without positions is not what its forward takes
    return _larger(change, _change_of_likely(alone, masked))


def _read(lm: Any, ids: Sequence[int], n: int, mask: Sequence[int] | None = None) -> torch.Tensor:
    """Log-probabilities at the first ``n`` tokens, shape (n, V); prompts may stand before them."""
    given = {} if mask is None else {"attention_mask": torch.tensor([mask], device=lm.device)}
    logits = lm.model(input_ids=torch.tensor([list(ids)], device=lm.device), **given).logits[0]
    return F.log_softmax(logits[-len(ids) :][:n], dim=-1, dtype=torch.float32)
