"""The keys and values of the trunk that was read last."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(slots=True)
class TrunkCache:
    """Keeps one trunk: passes on the same trunk come one after the other."""

    _ids: tuple[int, ...] = ()
    _cache: Any = None

    @contextmanager
    def read(
        self, call: Callable[..., Any], ids: tuple[int, ...], device: torch.device
    ) -> Iterator[Any]:
        """Lend the keys and values of a trunk to one forward pass, which adds its own to them.

        Args:
            call: the model's forward.
        """
        cache = self._of(call, ids, device)
        self._cache = None  # what a failed pass leaves behind is of no use
        yield cache
        cache.crop(len(ids) - cache.get_seq_length())
        self._ids, self._cache = ids, cache

    def _of(self, call: Callable[..., Any], ids: tuple[int, ...], device: torch.device) -> Any:
        if self._cache is None or self._ids != ids:
            from transformers import DynamicCache

            # without the config: layers with a window keep all tokens, and masks hide the far ones
            self._cache = DynamicCache()
            call(input_ids=torch.tensor([ids], device=device), cache=self._cache)
        return self._cache
