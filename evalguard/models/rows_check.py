"""Does the fast path give a model's own logits? Tried on two short sequences after loading."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from evalguard.models.agreement import rounding_unit
from evalguard.models.dependence import largest_change, probe_ids
from evalguard.models.failures import one_line
from evalguard.models.moved_batch import MovedBatch
from evalguard.models.out_of_memory import is_out_of_memory
from evalguard.models.packed_batch import PackedBatch, padded
from evalguard.models.scored_rows import NoScoredRowsError, ScoredRows
from evalguard.models.scored_tokens import FedTokens

_SCORED = (3, 2)
_AT_A_TIME = 3
# Units in the last place by which sums in another order may differ: many terms in float32, and the
# last rounding of one sum in a narrower dtype.
_ULPS_WIDE, _ULPS_NARROW = 256, 4


def rows_or_reason(lm: Any) -> tuple[ScoredRows | None, str]:
    """Return what scores a model at chosen positions only; or None, and why that cannot be.

    The logits of a few positions, in two blocks, are held against those of the model's ordinary
    forward pass on the same batch.

    Args:
        lm: a ``PieceScoring``.
    """
    batch = MovedBatch.of(_probe(probe_ids(lm)), lm.device)
    plain = lm.full_logits(batch)
    most = _AT_A_TIME * plain.shape[1]
    try:
        tried = ScoredRows(lm.model, lm.forward, most_logits=most)
        found = torch.cat(list(tried.logits(batch, lambda: lm.forward(input_ids=batch.input_ids))))
    except NoScoredRowsError as error:
        return None, str(error)
    except Exception as error:
        if is_out_of_memory(error):
            raise
        return None, one_line(error)
    if found.shape != plain.shape:
        return None, f"it gives logits of {tuple(found.shape)} for {tuple(plain.shape)}"
    change = largest_change(found.float(), plain.float())
    if not change <= rounding(lm.model, plain):
        return None, f"its logits differ by {change:.2g} from those at all positions"
    return ScoredRows(lm.model, lm.forward), ""


def rounding(model: Any, logits: torch.Tensor) -> float:
    """How far logits may differ that were summed in another order."""
    narrow = rounding_unit(model)
    unit = _ULPS_WIDE * torch.finfo(torch.float32).eps if narrow is None else _ULPS_NARROW * narrow
    finite = logits.float()[logits.isfinite()]
    largest = float(finite.abs().max()) if finite.numel() else 0.0
    return unit * max(1.0, largest)


def _probe(ids: Sequence[int]) -> PackedBatch:
    """Two sequences of other lengths, so that one is padded."""
    pieces = [
        FedTokens(ids=tuple(ids[shorter:]), n_scored=scored)
        for shorter, scored in enumerate(_SCORED)
    ]
    return padded(pieces)
