"""Kept blocks: read where they are there, kept where that is possible, and what goes wrong said."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from evalguard.errors import StoreError
from evalguard.store import BlockCache

Content = TypeVar("Content")


@dataclass(slots=True)
class KeptBlocks(Generic[Content]):
    """A cache that costs no verdict: a disk that refuses, or a damaged file, is only said.

    ``cache`` is None where nothing is read or kept. ``note`` takes what is to be said. ``lost``
    says whether something could not be kept.
    """

    cache: BlockCache[Content] | None
    note: Callable[[str], None]
    lost: bool = False
    _said: int = 0

    def get(self, key: str | None, block: str) -> Content | None:
        """Return a finished block, or None; ``key`` None: nothing of this model is kept."""
        if self.cache is None or key is None:
            return None
        found = self.cache.get(key, block)
        for problem in self.cache.problems[self._said :]:
            self.note(problem)
        self._said = len(self.cache.problems)
        return found

    def put(self, key: str | None, block: str, content: Content) -> None:
        """Keep a finished block where that is possible."""
        if self.cache is None or key is None:
            return
        try:
            self.cache.put(key, block, content)
        except StoreError as error:
            self.lost = True
            # The numbers are in memory: a full disk must not cost the verdict.
            self.note(f"{self.cache.what} could not be kept in the cache: {error}")
