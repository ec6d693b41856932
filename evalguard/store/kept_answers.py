"""What is kept of models, as caches of blocks: answers, divergences of pairs, references.

The score cache holds finished blocks of responses, so that no block is scored twice.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from evalguard.core.divergence import Divergence
from evalguard.core.reference import Reference
from evalguard.core.scorer import ComparedAnswer, Response
from evalguard.store.answer_table import block_from_bytes, block_to_bytes
from evalguard.store.block_cache import BlockCache
from evalguard.store.record_file import records_from_bytes, records_to_bytes


class ScoreCache(BlockCache[Sequence[Response]]):
    """Blocks of responses, by model and by requests."""

    what = "scores"

    def to_bytes(self, key: str, block: str, content: Sequence[Response]) -> memoryview:
        """Return the file of a block."""
        return block_to_bytes(key, block, content)

    def from_bytes(self, data: bytes, key: str, block: str) -> Sequence[Response]:
        """Read a file back."""
        return block_from_bytes(data, key, block)


DIVERGENCES = "evalguard.divergences/1"
REFERENCES = "evalguard.references/1"


class DivergenceCache(BlockCache[ComparedAnswer]):
    """How two models' distributions differ on finished blocks, by pair and by requests."""

    what = "divergences"

    def to_bytes(self, key: str, block: str, content: ComparedAnswer) -> memoryview:
        """Return the file of a block; the reason why there is nothing in it is kept too."""
        facts = {"format": DIVERGENCES, "key": key, "block": block}
        reason = json.dumps(content.reason)
        return records_to_bytes(content.divergences, {**facts, "reason": reason})

    def from_bytes(self, data: bytes, key: str, block: str) -> ComparedAnswer:
        """Read a file back."""
        found, said = records_from_bytes(
            Divergence, data, {"format": DIVERGENCES, "key": key, "block": block}
        )
        return ComparedAnswer(divergences=tuple(found), reason=json.loads(said["reason"]))


class ReferenceCache(BlockCache[Sequence[Reference | None]]):
    """References of finished blocks, by base and by requests."""

    what = "references"

    def to_bytes(self, key: str, block: str, content: Sequence[Reference | None]) -> memoryview:
        """Return the file of a block."""
        return records_to_bytes(content, {"format": REFERENCES, "key": key, "block": block})

    def from_bytes(self, data: bytes, key: str, block: str) -> Sequence[Reference | None]:
        """Read a file back."""
        facts = {"format": REFERENCES, "key": key, "block": block}
        return records_from_bytes(Reference, data, facts)[0]
