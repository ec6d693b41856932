"""Which modules of a model's last layer need to see the positions that are read only: tried."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch

from evalguard.errors import FallbackError
from evalguard.models.hf.attention_reach import (
    TreeBatch,
    largest_change,
    probe_token_ids,
    selects_tokens,
)
from evalguard.models.hf.batch_cuts import BatchTooLargeError
from evalguard.models.hf.moved_batch import (
    DeviceBatch,
    LastLayer,
    PackedBatch,
    PieceRead,
    pad_batch,
)
from evalguard.models.hf.scored_rows import ROWS_AT_ONCE, NoScoredRowsError, ScoredRows
from evalguard.models.hf.scored_tokens import InputTokens
from evalguard.models.load_failures import format_error

# Positions of a few tokens that are read: neither is the other's neighbour, and both have positions
# before them that are not read.
_READ_POSITIONS = (3, 7)
_MOST_TRIED = 32


def probe_last_layer(lm: Any, rows: ScoredRows) -> LastLayer | None:
    """Return the part of the last layer that can do with the read positions; None: there is none.

    Found out by poison, not by names: each module of the layer gets a text of its own in one batch,
    of which the module is given, and gives, NaN at all positions that are not read. Where the
    logits at the others are still the model's own, the module neither looks at other positions nor
    does anything look at what it makes of them.

    Args:
        lm: a ``PieceScoring``.
    """
    if selects_tokens(lm.model):
        return None  # an indexer reads what nothing else reads, and on long texts only
    try:
        candidates = _candidates(lm)
        if not candidates:
            return None
        batch = DeviceBatch.of(_repeat_probe_text(lm, 1 + len(candidates)), lm.device)
        with _poisoned(candidates):
            found = torch.cat(
                list(rows.logits(batch, lambda: lm.forward(input_ids=batch.input_ids)))
            )
    except Exception as error:
        if is_out_of_memory(error):
            raise
        return None  # it is not needed
    own, *others = torch.split(found.float(), len(_READ_POSITIONS))
    if own.isnan().any():
        return None  # texts of a batch see one another
    limit = rounding_limit(lm.model, own)
    clean = [
        module
        for module, told in zip(candidates, others, strict=True)
        if largest_change(told, own) <= limit
    ]
    outermost = [
        module
        for module in clean
        if not any(module is not other and module in other.modules() for other in clean)
    ]
    return LastLayer(outermost) if outermost else None


def _repeat_probe_text(lm: Any, n: int) -> PackedBatch:
    """The same text n times, read at two places of each."""
    ids = tuple(probe_token_ids(lm))
    piece = InputTokens(ids=ids, n_scored=len(_READ_POSITIONS))
    reads = [
        PieceRead(piece=piece, row=row, positions=np.array(_READ_POSITIONS)) for row in range(n)
    ]
    return PackedBatch(input_ids=torch.tensor([ids] * n), reads=tuple(reads))


def _candidates(lm: Any) -> list[torch.nn.Module]:
    """Modules with weights of the last layer that map one row a position to another, once a pass.

    Those with hooks of others are left alone: these may look at anything.
    """
    model, calls = lm.model, _ModuleCalls()
    layers = [
        layer
        for blocks in model.modules()
        if isinstance(blocks, torch.nn.ModuleList)
        for layer in blocks
    ]
    ids = torch.tensor([probe_token_ids(lm)], device=lm.device)
    with calls.of(layers):
        lm.forward(input_ids=ids)
    if not calls.order:
        return []
    inside = [m for m in calls.order[-1].modules() if _has_weights(m) and not _has_hooks(m)]
    own = _ModuleCalls()
    with own.of(inside):
        lm.forward(input_ids=ids)
    return [m for m in inside if own.order.count(m) == 1 and m in own.fitting][:_MOST_TRIED]


def _has_weights(module: torch.nn.Module) -> bool:
    return any(tensor.dim() > 1 for tensor in module.parameters())


def _has_hooks(module: torch.nn.Module) -> bool:
    return any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())


class _ModuleCalls:
    """Calls of modules: in which order they end, and which map (B, T, any) to (B, T, any)."""

    def __init__(self) -> None:
        self.order: list[torch.nn.Module] = []
        self.fitting: set[torch.nn.Module] = set()

    @contextmanager
    def of(self, modules: Sequence[torch.nn.Module]) -> Iterator[None]:
        with ExitStack() as hooks:
            for module in set(modules):
                hooks.callback(module.register_forward_hook(self._note, with_kwargs=True).remove)
            yield

    def _note(
        self, module: torch.nn.Module, given: tuple[Any, ...], named: dict[str, Any], made: Any
    ) -> None:
        self.order.append(module)
        tensors = (*given, *named.values(), made)
        if len(tensors) == 2 and all(_has_row_per_token(one) for one in tensors):
            self.fitting.add(module)


def _has_row_per_token(found: Any) -> bool:
    return (
        isinstance(found, torch.Tensor)
        and found.is_floating_point()
        and found.dim() == 3
        and found.shape[0] == 1
        and found.shape[1] >= _READ_POSITIONS[-1] + 1
    )


@contextmanager
def _poisoned(modules: Sequence[torch.nn.Module]) -> Iterator[None]:
    """NaN in the text of each module, at the positions that are not read, before it and behind."""

    def poison(rows: torch.Tensor, text: int) -> torch.Tensor:
        poisoned = torch.full_like(rows[text], torch.nan)
        places = [
            place - (_READ_POSITIONS[-1] + 1) for place in _READ_POSITIONS
        ]  # something may stand before the text
        poisoned[places] = rows[text][places]
        changed = rows.clone()
        changed[text] = poisoned
        return changed

    with ExitStack() as hooks:
        for text, module in enumerate(modules, start=1):

            def before(
                _: Any, given: tuple[Any, ...], named: dict[str, Any], text: int = text
            ) -> Any:
                (rows,) = (*given, *named.values())
                return (poison(rows, text),), {}

            def after(_: Any, __: Any, made: torch.Tensor, text: int = text) -> torch.Tensor:
                return poison(made, text)

            hooks.callback(module.register_forward_pre_hook(before, with_kwargs=True).remove)
            hooks.callback(module.register_forward_hook(after).remove)
        yield


# What torch and Python raise where memory runs out, told from other failures.


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that a device's memory, or this machine's, was not enough."""
    if isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError)):
        return True
    # torch's allocator of a CPU has no class of its own
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


@contextmanager
def detect_batch_too_large(batch: PackedBatch) -> Iterator[None]:
    """Tell from other failures that a batch, which can be halved, is too large.

    Raises:
        NoRoomError: not from the exception itself, whose traceback holds the memory.
    """
    said = ""
    try:
        yield
    except Exception as error:
        if len(batch.reads) == 1 or not is_out_of_memory(error):
            raise
        said = format_error(error)
    if said:
        sequences, shared = batch.input_ids.shape[0], isinstance(batch, TreeBatch)
        tokens = batch.input_ids.numel()
        raise BatchTooLargeError(said, tokens=tokens, sequences=sequences, shared=shared)


# How far numbers of one model may differ that were computed in another order.


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


# Does the fast path give a model's own logits? Tried after loading, and on the longest pieces.


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
