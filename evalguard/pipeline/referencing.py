"""One model at a time: the base leaves a reference, the candidate is compared with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

from evalguard.harness import Block
from evalguard.pipeline.divergences import Divergences
from evalguard.pipeline.evaluate import Answered, Evaluator
from evalguard.pipeline.kept_blocks import KeptBlocks
from evalguard.pipeline.stored_base import StoredBase
from evalguard.reference import Reference
from evalguard.scorer import Compared, DistributionScorer, Scorer
from evalguard.settings import digest_of
from evalguard.store import ReferenceWriter

# Draws from the tail at every position, from which KL is estimated without bias.
SAMPLES = 8
# Names what is kept of a model whose weights are not proven, for as long as this run lasts.
_UNPROVEN = "unproven"


@dataclass(slots=True, kw_only=True)
class References:
    """What is kept of the base: blocks of references, found again by task and block.

    Attributes:
        top_k: tokens kept at every position.
        key: the base's; None where its scores are not kept.
        kept: the references, in the cache or for this run only; or
        file: the file that they are in.
    """

    top_k: int
    key: str | None = None
    kept: KeptBlocks[Sequence[Reference | None]] | None = None
    file: StoredBase | None = None
    _blocks: dict[tuple[str, int], str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What the references are kept under."""
        return digest_of([self.key or _UNPROVEN, self.top_k, SAMPLES])

    def known(self, block: Block) -> Sequence[Reference | None] | None:
        """The references of the base's block, and remember that it is this one."""
        self._blocks[_task(block), block.index] = block.digest
        return self._get(block, block.digest)

    def put(self, block: Block, references: Sequence[Reference | None]) -> None:
        """Keep the references of the base's block."""
        if self.kept is not None:
            self.kept.put(self.name, block.digest, references)

    def beside(self, block: Block) -> tuple[str, Sequence[Reference | None] | None]:
        """The base's block beside a candidate's: its digest, and its references."""
        digest = self._blocks[_task(block), block.index]
        return digest, self._get(block, digest)

    def _get(self, block: Block, digest: str) -> Sequence[Reference | None] | None:
        if self.file is not None:
            return self.file.references(_task(block), digest)
        found = None if self.kept is None else self.kept.get(self.name, digest)
        return found if found is not None and len(found) == len(block.requests) else None


@dataclass(slots=True, kw_only=True)
class Referenced:
    """Answers of the base, which leave a reference; ``writer`` takes them for a file."""

    base: tuple[str, Scorer]
    evaluator: Evaluator
    references: References
    writer: ReferenceWriter | None = None

    @property
    def models(self) -> Sequence[tuple[str, Scorer]]:
        """The base."""
        return (self.base,)

    def answer(self, blocks: Sequence[Block]) -> Answered:
        """Answer a block, and keep its references."""
        block, scorer = blocks[0], cast(DistributionScorer, self.base[1])
        generates = block.kind == "generate_until"
        references = [None] * len(block.requests) if generates else self.references.known(block)
        if references is not None:
            responses, cached = self.evaluator.answered(block, scorer)
        else:
            responses, references = scorer.score_reference(
                block.requests, top_k=self.references.top_k, samples=SAMPLES
            )
            cached = False
            self.evaluator.keep(block, scorer, responses)
            self.references.put(block, references)
        if self.writer is not None:
            self.writer.add(_task(block), block.digest, responses, references)
        return Answered(responses=(responses,), cached=cached)


@dataclass(slots=True, kw_only=True)
class FromFile:
    """Answers of a base that is not loaded, from its reference file."""

    base: tuple[str, StoredBase]
    references: References

    @property
    def models(self) -> Sequence[tuple[str, Scorer]]:
        """The base."""
        return (self.base,)

    def answer(self, blocks: Sequence[Block]) -> Answered:
        """Read a block; it is not kept once more."""
        self.references.known(blocks[0])
        return Answered(responses=(self.base[1].score(blocks[0].requests),), cached=True)


@dataclass(slots=True, kw_only=True)
class Against:
    """Answers of the candidate, which are held against the base's references."""

    candidate: tuple[str, Scorer]
    evaluator: Evaluator
    references: References
    kept: KeptBlocks[Compared]
    divergences: Divergences = field(default_factory=Divergences)

    @property
    def models(self) -> Sequence[tuple[str, Scorer]]:
        """The candidate."""
        return (self.candidate,)

    def answer(self, blocks: Sequence[Block]) -> Answered:
        """Answer a block, and compare it with what was kept of the base."""
        block, scorer = blocks[0], cast(DistributionScorer, self.candidate[1])
        if block.kind == "generate_until" or _task(block) in self.divergences.reasons:
            return self._alone(block)
        digest, references = self.references.beside(block)
        key, name = self._key(), digest_of([digest, block.digest])
        compared = self.kept.get(key, name)
        if compared is not None or references is None:
            self.divergences.add(block.requests, compared or _LOST)
            return self._alone(block)
        scored, compared = scorer.score_against(block.requests, references)
        self.evaluator.keep(block, scorer, scored)
        self.kept.put(key, name, compared)
        self.divergences.add(block.requests, compared)
        return Answered(responses=(scored,), cached=False)

    def _alone(self, block: Block) -> Answered:
        responses, cached = self.evaluator.answered(block, self.candidate[1])
        return Answered(responses=(responses,), cached=cached)

    def _key(self) -> str | None:
        own = self.evaluator.key(self.candidate[1])
        if own is None or self.references.key is None:
            return None
        return digest_of([self.references.name, own, "reference"])


def _task(block: Block) -> str:
    return block.requests[0].task


_LOST = Compared(reason="what was to be kept of the base could not be kept")
