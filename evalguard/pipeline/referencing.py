"""One model at a time: the base leaves a reference, the candidate is compared with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

from evalguard.errors import StoreError
from evalguard.harness import Block
from evalguard.pipeline.answering import Answered
from evalguard.pipeline.divergences import Divergences
from evalguard.pipeline.evaluate import Evaluator
from evalguard.pipeline.kept_blocks import Entry, KeptBlocks
from evalguard.pipeline.stored_base import StoredBase
from evalguard.reference import Reference
from evalguard.scorer import Compared, DistributionScorer, Response, Scorer
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

    def entries(self, block: Block, models: Sequence[tuple[str, Scorer]]) -> Sequence[Entry]:
        """Where the references of the base's block are kept."""
        return () if self.kept is None else (Entry(self.kept, self.name, block.digest, models),)

    def put(self, block: Block, references: Sequence[Reference | None]) -> None:
        """Keep the references of the base's block."""
        if self.kept is not None:
            self.kept.put(self.name, block.digest, references)

    def digest_beside(self, block: Block) -> str:
        """The digest of the base's block beside a candidate's."""
        return self._blocks[_task(block), block.index]

    def beside(self, block: Block) -> Sequence[Reference | None] | None:
        """The references of the base's block beside a candidate's."""
        return self._get(block, self.digest_beside(block))

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

    def entries(self, blocks: Sequence[Block]) -> Sequence[Entry]:
        """Its answers and its references."""
        answers = self.evaluator.entry(blocks[0], self.base)
        return (answers, *self.references.entries(blocks[0], self.models))

    def kept(self, blocks: Sequence[Block]) -> Answered | None:
        """Return the answers where they and the references are kept."""
        references = self._references(blocks[0])
        found = None if references is None else self.evaluator.kept(blocks[0], self.base[1])
        if references is None or found is None:
            return None
        return self._written(blocks[0], found, references, cached=True)

    def answer(self, blocks: Sequence[Block]) -> Answered:
        """Answer a block, and keep its references."""
        block, scorer = blocks[0], cast(DistributionScorer, self.base[1])
        references = self._references(block)
        if references is not None:
            responses, cached = self.evaluator.answered(block, scorer)
            return self._written(block, responses, references, cached=cached)
        responses, references = scorer.score_reference(
            block.requests, top_k=self.references.top_k, samples=SAMPLES
        )
        self.evaluator.keep(block, scorer, responses)
        self.references.put(block, references)
        return self._written(block, responses, references, cached=False)

    def _references(self, block: Block) -> Sequence[Reference | None] | None:
        if block.kind == "generate_until":
            return [None] * len(block.requests)
        return self.references.known(block)

    def _written(
        self,
        block: Block,
        responses: Sequence[Response],
        references: Sequence[Reference | None],
        *,
        cached: bool,
    ) -> Answered:
        if self.writer is not None:
            try:
                place = (self.evaluator.tasks.names.index(_task(block)), block.index)
                self.writer.add(_task(block), block.digest, responses, references, place=place)
            except StoreError as error:
                # The scores are in memory: they do not depend on a file that others may want.
                self.writer.give_up()
                self.writer = None
                self.evaluator.note(f"no reference file was written: {error}")
        return Answered(responses=(responses,), kept=(cached,))


@dataclass(slots=True, kw_only=True)
class FromFile:
    """Answers of a base that is not loaded, from its reference file."""

    base: tuple[str, StoredBase]
    references: References

    @property
    def models(self) -> Sequence[tuple[str, Scorer]]:
        """The base."""
        return (self.base,)

    def entries(self, blocks: Sequence[Block]) -> Sequence[Entry]:  # noqa: ARG002
        """Nothing: what is in the file is not kept once more."""
        return ()

    def kept(self, blocks: Sequence[Block]) -> Answered | None:
        """Read a block."""
        return self.answer(blocks)

    def answer(self, blocks: Sequence[Block]) -> Answered:
        """Read a block."""
        self.references.known(blocks[0])
        return Answered(responses=(self.base[1].score(blocks[0].requests),), kept=(True,))


@dataclass(slots=True, kw_only=True)
class Against:
    """Answers of the candidate, which are held against the base's references."""

    candidate: tuple[str, Scorer]
    evaluator: Evaluator
    references: References
    divergences_kept: KeptBlocks[Compared]
    divergences: Divergences = field(default_factory=Divergences)

    @property
    def models(self) -> Sequence[tuple[str, Scorer]]:
        """The candidate."""
        return (self.candidate,)

    def entries(self, blocks: Sequence[Block]) -> Sequence[Entry]:
        """Its answers, and how they diverge."""
        block = blocks[0]
        answers = self.evaluator.entry(block, self.candidate)
        if not self._compares(block):
            return (answers,)
        name = self._name(block)
        return (answers, Entry(self.divergences_kept, self._key(), name, self.models))

    def kept(self, blocks: Sequence[Block]) -> Answered | None:
        """Return the answers where they and how they diverge are kept."""
        compared = self._compared(blocks[0])
        if compared is None and self._compares(blocks[0]):
            return None
        found = self.evaluator.kept(blocks[0], self.candidate[1])
        if found is None:
            return None
        if compared is not None:
            self.divergences.add(blocks[0].requests, compared)
        return Answered(responses=(found,), kept=(True,))

    def answer(self, blocks: Sequence[Block]) -> Answered:
        """Answer a block, and compare it with what was kept of the base."""
        block, scorer = blocks[0], cast(DistributionScorer, self.candidate[1])
        if not self._compares(block):
            return self._alone(block)
        compared = self._compared(block)
        references = self.references.beside(block) if compared is None else None
        if references is None:
            self.divergences.add(block.requests, compared or _LOST)
            return self._alone(block)
        scored, compared = scorer.score_against(block.requests, references)
        self.evaluator.keep(block, scorer, scored)
        self.divergences_kept.put(self._key(), self._name(block), compared)
        self.divergences.add(block.requests, compared)
        return Answered(responses=(scored,), kept=(False,))

    def _compares(self, block: Block) -> bool:
        given_up = _task(block) in self.divergences.reasons
        return block.kind != "generate_until" and not given_up

    def _compared(self, block: Block) -> Compared | None:
        if not self._compares(block):
            return None
        return self.divergences_kept.get(self._key(), self._name(block))

    def _name(self, block: Block) -> str:
        return digest_of([self.references.digest_beside(block), block.digest])

    def _alone(self, block: Block) -> Answered:
        responses, cached = self.evaluator.answered(block, self.candidate[1])
        return Answered(responses=(responses,), kept=(cached,))

    def _key(self) -> str | None:
        own = self.evaluator.key(self.candidate[1])
        if own is None or self.references.key is None:
            return None
        return digest_of([self.references.name, own, "reference"])


def _task(block: Block) -> str:
    return block.requests[0].task


_LOST = Compared(reason="what was to be kept of the base could not be kept")
