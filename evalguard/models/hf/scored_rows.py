"""Logits at chosen positions only: the output embedding of a model sees no others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cached_property
from typing import Any

import torch

from evalguard.errors import EvaluationError
from evalguard.models.hf.last_layer import LastLayer
from evalguard.models.hf.moved_batch import DeviceBatch

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
        kept: list[HiddenRows] = []

        def gather(hidden: HiddenRows) -> HiddenRows:
            kept.append(self._rows(hidden, batch))
            return kept[0][:, :0]

        self._over(batch, gather, run)
        return kept[0]

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
            first, *others = torch.split(rows, self._at_a_time(hidden), dim=1)
            waiting.extend(others)
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
