"""What is kept of a base's distributions, which other models are held against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from evalguard.core.divergence import SAMPLES, Reference
from evalguard.core.settings import digest_of
from evalguard.engine.kept_blocks import BlockEntry, LoadedModel, SafeBlockCache
from evalguard.harness.request_blocks import RequestBlock

# Names what is kept of a model whose weights are not proven, for as long as this run lasts.
_UNPROVEN = "unproven"


class StoredReferences(Protocol):
    """A file of references, as ``ReferenceScorer`` reads it."""

    def references(self, task: str, block: str) -> Sequence[Reference | None] | None:
        """What was kept of the base's answers to a block; None for one that is not there."""


@dataclass(slots=True, kw_only=True)
class BaseReferences:
    """What is kept of the base: blocks of references, found again by task and block.

    Attributes:
        top_k: tokens kept at every position.
        key: the base's; None where its scores are not kept.
        kept: the references, in the cache or for this run only; or
        file: the file that they are in.
    """

    top_k: int
    key: str | None = None
    kept: SafeBlockCache[Sequence[Reference | None]] | None = None
    file: StoredReferences | None = None
    _blocks: dict[tuple[str, int], str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What the references are kept under."""
        return digest_of([self.key or _UNPROVEN, self.top_k, SAMPLES])

    def known(self, block: RequestBlock) -> Sequence[Reference | None] | None:
        """The references of the base's block, and remember that it is this one."""
        self._blocks[_task_of_block(block), block.index] = block.digest
        return self._get(block, block.digest)

    def entries(self, block: RequestBlock, models: Sequence[LoadedModel]) -> Sequence[BlockEntry]:
        """Where the references of the base's block are kept."""
        return (
            () if self.kept is None else (BlockEntry(self.kept, self.name, block.digest, models),)
        )

    def put(self, block: RequestBlock, references: Sequence[Reference | None]) -> None:
        """Keep the references of the base's block."""
        if self.kept is not None:
            self.kept.put(self.name, block.digest, references)

    def digest_beside(self, block: RequestBlock) -> str:
        """The digest of the base's block beside a candidate's."""
        return self._blocks[_task_of_block(block), block.index]

    def beside(self, block: RequestBlock) -> Sequence[Reference | None] | None:
        """The references of the base's block beside a candidate's."""
        return self._get(block, self.digest_beside(block))

    def pair_key(self, own: str | None) -> str | None:
        """What divergences of a model from the base are kept under; None where they are not.

        Args:
            own: the model's key.
        """
        return None if None in (own, self.key) else digest_of([self.name, own, "reference"])

    def pair_name(self, block: RequestBlock) -> str:
        """The digest of the base's block and of the one that stands beside it."""
        return digest_of([self.digest_beside(block), block.digest])

    def _get(self, block: RequestBlock, digest: str) -> Sequence[Reference | None] | None:
        if self.file is not None:
            return self.file.references(_task_of_block(block), digest)
        found = None if self.kept is None else self.kept.get(self.name, digest)
        return found if found is not None and len(found) == len(block.requests) else None


def _task_of_block(block: RequestBlock) -> str:
    return block.requests[0].task
