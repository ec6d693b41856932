"""Does the fast path give a model's own logits? Tried after loading, and on the longest pieces."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from evalguard.errors import FallbackError
from evalguard.models.dependence import largest_change, probe_ids
from evalguard.models.failures import one_line
from evalguard.models.last_layer import LastLayer
from evalguard.models.last_layer_probe import last_layer
from evalguard.models.moved_batch import MovedBatch
from evalguard.models.out_of_memory import is_out_of_memory
from evalguard.models.packed_batch import PackedBatch, padded
from evalguard.models.rounding import rounding
from evalguard.models.scored_rows import TOGETHER, NoScoredRowsError, ScoredRows
from evalguard.models.scored_tokens import FedTokens

_SCORED = (3, 2)
# A piece is held against logits at all positions when it is so much longer than those before.
_GROWTH = 1.1
# Numbers of such logits: 256 MiB and 1 GiB of float32.
_MOST_ON_CPU, _MOST_ON_GPU = 2**26, 2**28
_AT_A_TIME = 3


def rows_or_reason(lm: Any) -> tuple[ScoredRows | None, str]:
    """Return what scores a model at chosen positions only; or None, and why that cannot be.

    The logits of a few positions, in two blocks, are held against those of the model's ordinary
    forward pass on the same batch.

    Args:
        lm: a ``PieceScoring``.
    """
    batch = _probe(probe_ids(lm))
    tried = ScoredRows(lm.model, lm.forward)
    tried = ScoredRows(lm.model, lm.forward, most_logits=_AT_A_TIME * tried.width)
    reason = _difference(lm, tried, batch)
    if reason:
        return None, reason
    rows = _with_most(lm, batch, last_layer(lm, ScoredRows(lm.model, lm.forward)))
    rows.checked = batch.input_ids.shape[1]
    return rows, ""


def _with_most(lm: Any, batch: PackedBatch, layer: LastLayer | None) -> ScoredRows:
    """What scores at chosen positions only, with whatever else saves time and changes nothing."""
    for part, together in ((layer, TOGETHER), (None, TOGETHER), (layer, 0)):
        rows = ScoredRows(lm.model, lm.forward, layer=part, together=together)
        if not _difference(lm, rows, batch, twice=together > 0):
            return rows
    return ScoredRows(lm.model, lm.forward)


def hold_longest(lm: Any, rows: ScoredRows, pieces: Iterable[FedTokens]) -> None:
    """Hold the logits of the longest piece against those of the model's ordinary forward pass.

    Only where it is clearly longer than all that were held before. Of a piece with more logits than
    are to be held at once, or than there is memory for, the end is taken.

    Args:
        lm: a ``PieceScoring``; ``rows``: its own.

    Raises:
        FallbackError: they are others.
    """
    longest = max(pieces, key=lambda piece: len(piece.ids), default=None)
    if longest is None or len(longest.ids) - 1 <= rows.checked * _GROWTH:
        return
    most = (_MOST_ON_CPU if lm.device.type == "cpu" else _MOST_ON_GPU) // rows.width
    length, reason = min(len(longest.ids) - 1, most), None
    while reason is None and length > rows.checked:
        # of a whole text half, so that there are positions that are not read
        n_scored = min(longest.n_scored, (length + 1) // 2)
        end = FedTokens(ids=longest.ids[-length - 1 :], n_scored=n_scored)
        reason = _difference_if_room(lm, rows, padded([end]))
        if reason:
            raise _fallback(f"of {length:,} tokens, {reason}")
        length //= 2
    rows.checked = len(longest.ids) - 1


@contextmanager
def as_fallback() -> Iterator[None]:
    """Turn a head that is called otherwise than it was into a fallback to all positions."""
    try:
        yield
    except NoScoredRowsError as error:
        raise _fallback(f"on a real document {error}") from error


def _fallback(reason: str) -> FallbackError:
    return FallbackError(
        f"logits cannot be computed at the scored positions only: {reason}",
        giving_up="scorer",
        hint="--scorer harness",
    )


def _difference_if_room(lm: Any, rows: ScoredRows, probe: PackedBatch) -> str | None:
    try:
        return _difference(lm, rows, probe)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
    return None


def _difference(lm: Any, rows: ScoredRows, probe: PackedBatch, *, twice: bool = False) -> str:
    """What is wrong with logits at chosen positions; "" if they are the model's own.

    Args:
        twice: let two passes over the batch have their logits made at once.
    """
    batch = MovedBatch.of(probe, lm.device)
    plain = lm.full_logits(batch)
    limit = rounding(lm.model, plain)
    done = 0
    try:
        run = partial(lm.forward, input_ids=batch.input_ids)
        before = [rows.hidden(batch, run)] if twice else []
        plain = torch.cat([plain, plain]) if twice else plain
        for found in rows.logits(batch, run, before):
            own = plain[done : done + len(found)]
            done += len(found)
            if found.shape != own.shape:
                return f"it gives logits of {tuple(found.shape)} for {tuple(own.shape)}"
            change = largest_change(found.float(), own.float())
            if not change <= limit:
                return f"its logits differ by {change:.2g} from those at all positions"
    except NoScoredRowsError as error:
        return str(error)
    except Exception as error:
        if is_out_of_memory(error):
            raise
        return one_line(error)
    return ""


def _probe(ids: Sequence[int]) -> PackedBatch:
    """Two sequences of other lengths, so that one is padded."""
    pieces = [
        FedTokens(ids=tuple(ids[shorter:]), n_scored=scored)
        for shorter, scored in enumerate(_SCORED)
    ]
    return padded(pieces)
