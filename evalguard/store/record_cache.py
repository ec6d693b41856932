"""Kept divergences of pairs of models, and kept references of bases."""

from __future__ import annotations

import json
from collections.abc import Sequence

from evalguard.divergence import Divergence
from evalguard.reference import Reference
from evalguard.scorer import Compared
from evalguard.store.block_cache import BlockCache
from evalguard.store.record_file import from_bytes, to_bytes

DIVERGENCES = "evalguard.divergences/1"
REFERENCES = "evalguard.references/1"


class DivergenceCache(BlockCache[Compared]):
    """How two models' distributions differ on finished blocks, by pair and by requests."""

    what = "divergences"

    def to_bytes(self, key: str, block: str, content: Compared) -> memoryview:
        """Return the file of a block; the reason why there is nothing in it is kept too."""
        facts = {"format": DIVERGENCES, "key": key, "block": block}
        reason = json.dumps(content.reason)
        return to_bytes(content.divergences, {**facts, "reason": reason})

    def from_bytes(self, data: bytes, key: str, block: str) -> Compared:
        """Read a file back."""
        found, said = from_bytes(
            Divergence, data, {"format": DIVERGENCES, "key": key, "block": block}
        )
        return Compared(divergences=tuple(found), reason=json.loads(said["reason"]))


class ReferenceCache(BlockCache[Sequence[Reference | None]]):
    """References of finished blocks, by base and by requests."""

    what = "references"

    def to_bytes(self, key: str, block: str, content: Sequence[Reference | None]) -> memoryview:
        """Return the file of a block."""
        return to_bytes(content, {"format": REFERENCES, "key": key, "block": block})

    def from_bytes(self, data: bytes, key: str, block: str) -> Sequence[Reference | None]:
        """Read a file back."""
        facts = {"format": REFERENCES, "key": key, "block": block}
        return from_bytes(Reference, data, facts)[0]
