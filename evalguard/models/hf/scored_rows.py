"""Logits at chosen positions only: the output embedding of a model sees no others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch

from evalguard.errors import EvaluationError, FallbackError
from evalguard.models.failures import format_error
from evalguard.models.hf.attention_reach import selects_tokens
from evalguard.models.hf.batches import DeviceBatch, PackedBatch, PieceRead, pad_batch
from evalguard.models.hf.out_of_memory import is_out_of_memory
from evalguard.models.hf.padding import largest_change, probe_token_ids, rounding_limit
from evalguard.models.scored_tokens import InputTokens


class LastLayer:
    """Modules of a model's last layer of which only the positions that are read matter.

    Hooks hand such a module the hidden rows of those positions, shape (1, n, hidden), in the place
    of all of them, and put what it makes of them back to their places, with zeros between, which
    nothing reads. Keys and values are still made of every position.

    Args:
        modules: none of them part of another; each is a function of one position's row.
    """

    def __init__(self, modules: Sequence[torch.nn.Module]) -> None:
        self._modules = tuple(modules)
        self._batch: DeviceBatch | None = None
        self._shapes: list[torch.Size] = []  # of what was taken apart

    @contextmanager
    def at(self, batch: DeviceBatch) -> Iterator[None]:
        """Let the modules see the positions of a batch that are read, and no others."""
        with self._set(batch), ExitStack() as hooks:
            for module in self._modules:
                hooks.callback(
                    module.register_forward_pre_hook(self._take, with_kwargs=True).remove
                )
                hooks.callback(module.register_forward_hook(self._put).remove)
            yield

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Let the modules see all positions of a pass within the one over a batch."""
        with self._set(None):
            yield

    @contextmanager
    def _set(self, batch: DeviceBatch | None) -> Iterator[None]:
        before, self._batch = self._batch, batch
        try:
            yield
        finally:
            self._batch = before
            self._shapes.clear()

    def _take(self, _: torch.nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if self._batch is None:
            return None
        (hidden,) = (*given, *named.values())
        self._shapes.append(hidden.shape)
        return (self._batch.at_places(hidden).unsqueeze(0),), {}

    def _put(self, _: torch.nn.Module, __: tuple[Any, ...], made: torch.Tensor) -> Any:
        return None if self._batch is None else self._batch.put(made[0], self._shapes.pop())


# Logits that are held at a time. On a CPU a block that the allocator takes from the heap: larger
# ones are mapped anew each time, and touching their pages costs as much as the arithmetic. On a GPU
# every further block costs a forward pass of one token.
ON_CPU = 7 * 2**20
_LOGITS_ON_GPU = 2**28
# Rows of logits from which on the weights of an output embedding are not what is waited for.
ROWS_AT_ONCE = 64
_ASSUMED_VOCABULARY = 2**18  # vocabulary of a head that does not show its own
HiddenRows = torch.Tensor
ReplaceRows = Callable[[HiddenRows], HiddenRows]


class NoScoredRowsError(EvaluationError):
    """A model does not go through its output embedding as this needs it; the text says how."""

    def __init__(self, message: str) -> None:
        super().__init__(message, hint="--scorer harness takes lm-eval's own path")


class ScoredRows:
    """Forward passes of a causal model in which the output embedding sees chosen positions only.

    A hook puts the hidden rows of those positions, shape (1, n, hidden), in the place of all of
    them, so that what the model's own forward does with logits (soft caps, scaling) is still done,
    on (1, n, vocabulary). Where n rows of logits would be too large, the first ones come with the
    pass itself, and the others each with a pass of one token, in which the hook hands in rows that
    were kept. Where they are few, they wait for those of the next passes: an output embedding
    takes half as long for 64 rows at once as for 8 times 8.

    Args:
        model: with an output embedding.
        forward: computes logits from the model's named inputs.
        most_logits: numbers that may be held at a time; None: what suits the device.
        layer: the part of the last layer that sees the chosen positions only, too.
        together: rows up to which several passes may have their logits made at once; 0: each pass
            has its own, for a model that cannot do without.

    Attributes:
        checked: length of the longest sequence of which the logits were held against those at all
            positions.
    """

    def __init__(
        self,
        model: Any,
        forward: Callable[..., torch.Tensor],
        *,
        most_logits: int | None = None,
        layer: LastLayer | None = None,
        together: int = 0,
    ) -> None:
        self._model = model
        self._forward = forward
        self._most = most_logits
        self._layer = layer
        self._together = together
        self._replacing: list[ReplaceRows] = []
        self.checked = 0

    def hidden(self, batch: DeviceBatch, run: Callable[[], torch.Tensor]) -> HiddenRows:
        """Run one batch of which no logits are made yet; return the hidden rows of its places.

        Their shape is (1, n, hidden). The output embedding is given no row at all.

        Args:
            run: the forward pass over the batch; returns the model's logits.

        Raises:
            NoScoredRowsError: as ``logits``.
        """
        gathered: list[HiddenRows] = []

        def gather(hidden: HiddenRows) -> HiddenRows:
            gathered.append(self._rows(hidden, batch))
            return gathered[0][:, :0]

        self._over(batch, gather, run)
        return gathered[0]

    def logits(
        self,
        batch: DeviceBatch,
        run: Callable[[], torch.Tensor],
        before: Sequence[HiddenRows] = (),
    ) -> Iterator[torch.Tensor]:
        """Run one batch; yield the logits of its places, in order, in blocks (n, vocabulary).

        Args:
            run: the forward pass over the batch; returns the model's logits.
            before: hidden rows of other passes, of which the logits come first.

        Raises:
            NoScoredRowsError: there is no output embedding, or it was not called once, with a row
                per position.
        """
        waiting: list[HiddenRows] = []

        def gather(hidden: HiddenRows) -> HiddenRows:
            rows = torch.cat([*before, self._rows(hidden, batch)], dim=1)
            first, *remaining = torch.split(rows, self._at_a_time(hidden), dim=1)
            waiting.extend(remaining)
            return first

        yield self._over(batch, gather, run)
        token = batch.input_ids[:1, :1]
        while waiting:
            block = waiting.pop(0)
            yield self._pass(
                lambda _, block=block: block,  # type: ignore[misc]
                lambda: self._forward(input_ids=token),
            )

    def unread(self, **inputs: Any) -> None:
        """Let the model read something of which no logits are wanted."""
        rows = 0 if self._together else 1
        with self._layer.whole() if self._layer else nullcontext():
            self._pass(lambda hidden: hidden[:1, :rows], lambda: self._forward(**inputs))

    def _rows(self, hidden: HiddenRows, batch: DeviceBatch) -> HiddenRows:
        """The hidden rows at the batch's places, shape (1, n, hidden)."""
        count, width = batch.input_ids.shape
        if hidden.dim() != 3 or hidden.shape[0] != count or hidden.shape[1] < width:
            raise NoScoredRowsError(f"its output embedding is given {tuple(hidden.shape)}")
        return batch.at_places(hidden).unsqueeze(0)

    @cached_property
    def width(self) -> int:
        """Numbers of a row of logits, as far as the output embedding shows it."""
        weight = getattr(self._model.get_output_embeddings(), "weight", None)
        return max(1, weight.shape[0]) if isinstance(weight, torch.Tensor) else _ASSUMED_VOCABULARY

    @property
    def together(self) -> int:
        """Rows up to which several passes have their logits made at once."""
        return min(self._together, max(1, (self._most or ON_CPU) // self.width))

    def _at_a_time(self, hidden: HiddenRows) -> int:
        most = self._most or (ON_CPU if hidden.device.type == "cpu" else _LOGITS_ON_GPU)
        return max(1, most // self.width)

    def _over(
        self, batch: DeviceBatch, replace: ReplaceRows, run: Callable[[], torch.Tensor]
    ) -> torch.Tensor:
        with self._layer.at(batch) if self._layer else nullcontext():
            return self._pass(replace, run)

    def _pass(self, replace: ReplaceRows, run: Callable[[], torch.Tensor]) -> torch.Tensor:
        with self._given(replace) as given:
            logits = run()
        if len(given) != 1:
            raise NoScoredRowsError(f"its output embedding is called {len(given)} times in a pass")
        if logits.dim() != 3 or tuple(logits.shape[:2]) != (1, given[0]):
            raise NoScoredRowsError(f"{given[0]} rows become logits of {tuple(logits.shape)}")
        return logits[0]

    @contextmanager
    def _given(self, replace: ReplaceRows) -> Iterator[list[int]]:
        """Replace what the output embedding is given; the list takes the rows of each call.

        Within a pass there may be another one, whose rows are not this one's.
        """
        head = self._model.get_output_embeddings()
        if not isinstance(head, torch.nn.Module):
            raise NoScoredRowsError("it names no output embedding")
        given: list[int] = []

        def hook(_: torch.nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
            if self._replacing[-1] is not replace:
                return None
            (hidden,) = (*arguments, *named.values())
            rows = replace(hidden)
            given.append(rows.shape[1])
            return (rows,), {}

        handle = head.register_forward_pre_hook(hook, with_kwargs=True)
        self._replacing.append(replace)
        try:
            yield given
        finally:
            self._replacing.pop()
            handle.remove()


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
            logits = torch.cat(
                list(rows.logits(batch, lambda: lm.forward(input_ids=batch.input_ids)))
            )
    except Exception as error:
        if is_out_of_memory(error):
            raise
        return None  # it is not needed
    own, *poisoned = torch.split(logits.float(), len(_READ_POSITIONS))
    if own.isnan().any():
        return None  # texts of a batch see one another
    limit = rounding_limit(lm.model, own)
    clean = [
        module
        for module, disturbed in zip(candidates, poisoned, strict=True)
        if largest_change(disturbed, own) <= limit
    ]
    outermost = [
        module
        for module in clean
        if not any(module is not outer and module in outer.modules() for outer in clean)
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
        if len(tensors) == 2 and all(_has_row_per_token(tensor) for tensor in tensors):
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
            position - (_READ_POSITIONS[-1] + 1) for position in _READ_POSITIONS
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
        for logits in rows.logits(batch, run, before):
            own = plain[done : done + len(logits)]
            done += len(logits)
            if logits.shape != own.shape:
                return f"it gives logits of {tuple(logits.shape)} for {tuple(own.shape)}"
            change = largest_change(logits.float(), own.float())
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
