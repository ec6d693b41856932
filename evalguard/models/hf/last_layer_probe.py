"""Which modules of a model's last layer need to see the positions that are read only: tried."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch

from evalguard.models.hf.attention_reach import selects_tokens
from evalguard.models.hf.last_layer import LastLayer
from evalguard.models.hf.later_tokens import largest_change, probe_token_ids
from evalguard.models.hf.moved_batch import DeviceBatch
from evalguard.models.hf.out_of_memory import is_out_of_memory
from evalguard.models.hf.packed_batch import PackedBatch, PieceRead
from evalguard.models.hf.rounding_limit import rounding_limit
from evalguard.models.hf.scored_rows import ScoredRows
from evalguard.models.hf.scored_tokens import InputTokens

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
