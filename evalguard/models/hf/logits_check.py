"""Does the fast path give a model's own logits? Tried after loading, and on the longest pieces."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from evalguard.errors import FallbackError
from evalguard.models.answer_failures import format_error
from evalguard.models.hf.last_layer import LastLayer
from evalguard.models.hf.last_layer_probe import probe_last_layer
from evalguard.models.hf.later_tokens import largest_change, probe_token_ids
from evalguard.models.hf.moved_batch import DeviceBatch
from evalguard.models.hf.out_of_memory import is_out_of_memory
from evalguard.models.hf.packed_batch import PackedBatch, pad_batch
from evalguard.models.hf.rounding_limit import rounding_limit
from evalguard.models.hf.scored_rows import ROWS_AT_ONCE, NoScoredRowsError, ScoredRows
from evalguard.models.hf.scored_tokens import InputTokens

_SCORED = (3, 2)
# A piece is held against logits at all positions when it is so much longer than those before.
_RECHECK_GROWTH = 1.1
# Numbers of such logits: 256 MiB and 1 GiB of float32.
MOST_ON_CPU, _MOST_ON_GPU = 2**26, 2**28
_PROBE_ROWS = 3


def build_scored_rows(lm: Any) -> tuple[ScoredRows | None, str]:
    """Return what scores a model at chosen positions only; or None, and why that cannot be.

    The logits of a few positions, in two blocks, are held against those of the model's ordinary
    forward pass on the same batch.

    Args:
        lm: a ``PieceScoring``.
    """
    batch = _probe_batch(probe_token_ids(lm))
    tried = ScoredRows(lm.model, lm.forward)
    tried = ScoredRows(lm.model, lm.forward, most_logits=_PROBE_ROWS * tried.width)
    reason = _logits_difference(lm, tried, batch)
    if reason:
        return None, reason
    rows = _fastest_rows(lm, batch, probe_last_layer(lm, ScoredRows(lm.model, lm.forward)))
    rows.checked = batch.input_ids.shape[1]
    return rows, ""


def _fastest_rows(lm: Any, batch: PackedBatch, layer: LastLayer | None) -> ScoredRows:
    """What scores at chosen positions only, with whatever else saves time and changes nothing."""
    for part, together in ((layer, ROWS_AT_ONCE), (None, ROWS_AT_ONCE), (layer, 0)):
        rows = ScoredRows(lm.model, lm.forward, layer=part, together=together)
        if not _logits_difference(lm, rows, batch, twice=together > 0):
            return rows
    return ScoredRows(lm.model, lm.forward)


def check_longest_piece(lm: Any, rows: ScoredRows, pieces: Iterable[InputTokens]) -> None:
    """Hold the logits of the longest piece against those of the model's ordinary forward pass.

    Only where it is clearly longer than all that were held before. Of a piece with more logits than
    are to be held at once, or than there is memory for, the end is taken.

    Args:
        lm: a ``PieceScoring``; ``rows``: its own.

    Raises:
        FallbackError: they are others.
    """
    longest = max(pieces, key=lambda piece: len(piece.ids), default=None)
    if longest is None or len(longest.ids) - 1 <= rows.checked * _RECHECK_GROWTH:
        return
    most = (MOST_ON_CPU if lm.device.type == "cpu" else _MOST_ON_GPU) // rows.width
    length, reason = min(len(longest.ids) - 1, most), None
    while reason is None and length > rows.checked:
        # of a whole text half, so that there are positions that are not read
        n_scored = min(longest.n_scored, (length + 1) // 2)
        end = InputTokens(ids=longest.ids[-length - 1 :], n_scored=n_scored)
        reason = _logits_difference_if_room(lm, rows, pad_batch([end]))
        if reason:
            raise _full_logits_error(f"of {length:,} tokens, {reason}")
        length //= 2
    rows.checked = len(longest.ids) - 1


@contextmanager
def fall_back_to_full_logits() -> Iterator[None]:
    """Turn a head that is called otherwise than it was into a fallback to all positions."""
    try:
        yield
    except NoScoredRowsError as error:
        raise _full_logits_error(f"on a real document {error}") from error


def _full_logits_error(reason: str) -> FallbackError:
    return FallbackError(
        f"logits cannot be computed at the scored positions only: {reason}",
        giving_up="scorer",
        hint="--scorer harness",
    )


def _logits_difference_if_room(lm: Any, rows: ScoredRows, probe: PackedBatch) -> str | None:
    try:
        return _logits_difference(lm, rows, probe)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
    return None


def _logits_difference(
    lm: Any, rows: ScoredRows, probe: PackedBatch, *, twice: bool = False
) -> str:
    """What is wrong with logits at chosen positions; "" if they are the model's own.

    Args:
        twice: let two passes over the batch have their logits made at once.
    """
    batch = DeviceBatch.of(probe, lm.device)
    plain = lm.full_logits(batch)
    limit = rounding_limit(lm.model, plain)
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
        return format_error(error)
    return ""


def _probe_batch(ids: Sequence[int]) -> PackedBatch:
    """Two sequences of other lengths, so that one is padded."""
    pieces = [
        InputTokens(ids=tuple(ids[shorter:]), n_scored=scored)
        for shorter, scored in enumerate(_SCORED)
    ]
    return pad_batch(pieces)
