"""The score cache: finished blocks of responses, kept so that no block is scored twice."""

from __future__ import annotations

from collections.abc import Sequence

from evalguard.scorer import Response
from evalguard.store.block_cache import BlockCache
from evalguard.store.block_file import from_bytes, to_bytes


class ScoreCache(BlockCache[Sequence[Response]]):
    """Blocks of responses, by model and by requests."""

    what = "scores"

    def to_bytes(self, key: str, block: str, content: Sequence[Response]) -> memoryview:
        """Return the file of a block."""
        return to_bytes(key, block, content)

    def from_bytes(self, data: bytes, key: str, block: str) -> Sequence[Response]:
        """Read a file back."""
        return from_bytes(data, key, block)
