"""The last layer at chosen positions only: what works position by position sees no others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from evalguard.models.hf.moved_batch import DeviceBatch


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
