"""One model answers by itself, as any other, as the base of a reference, or held against one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from evalguard.distributions.task_distributions import DivergenceTables
from evalguard.engine.base_references import BaseReferences
from evalguard.engine.block_store import BlockStore
from evalguard.engine.kept_blocks import BlockEntry, LoadedModel
from evalguard.engine.task_progress import ScoredBlocks
from evalguard.engine.work import ReferencesGoneError, Unit, UnitAnswer
from evalguard.harness.request_blocks import RequestBlock

_REFERENCE_LOST = "what was to be kept of the base could not be kept"


@dataclass(slots=True, kw_only=True)
class SingleModelScoring:
    """Answers of one model; a ``BlockScorer``.

    Attributes:
        leaves: of a base: what is to be kept of its distributions.
        beside: of a candidate: what its distributions are held against.
        divergences: how they differ, as far as that was measured.
        write: takes every answer.
    """

    model: LoadedModel
    store: BlockStore
    leaves: BaseReferences | None = None
    beside: BaseReferences | None = None
    divergences: DivergenceTables = field(default_factory=DivergenceTables)
    write: Callable[[UnitAnswer], None] = lambda _answer: None

    @property
    def models(self) -> Sequence[LoadedModel]:
        """The one model."""
        return (self.model,)

    def unit(self, block: RequestBlock) -> Unit:
        """What is wanted of a block; generated texts have no distributions to be compared."""
        if block.kind == "generate_until":
            return Unit(block=block)
        given_up = block.requests[0].task in self.divergences.reasons
        beside = None if given_up else self.beside
        return Unit(block=block, leaves=self.leaves, beside=beside)

    def entries(self, blocks: Sequence[RequestBlock]) -> Sequence[BlockEntry]:
        """Where all that is wanted of a block is kept."""
        return self.store.entries(self.unit(blocks[0]), self.model)

    def find_cached(self, blocks: Sequence[RequestBlock]) -> ScoredBlocks | None:
        """Return the answers where all that is wanted is kept."""
        answer = self.store.find(self.unit(blocks[0]), self.model.scorer)
        return None if answer is None else self._taken(answer)

    def answer(self, blocks: Sequence[RequestBlock]) -> ScoredBlocks:
        """Answer a block; of what is kept, nothing is scored."""
        unit = self.unit(blocks[0])
        try:
            return self._taken(self.store.answer(unit, self.model.scorer))
        except ReferencesGoneError:
            # A full disk costs the distributions of a task, and no scores.
            self.divergences.give_up(unit.block.requests[0].task, _REFERENCE_LOST)
            return self._taken(self.store.answer(self.unit(unit.block), self.model.scorer))

    def _taken(self, answer: UnitAnswer) -> ScoredBlocks:
        if answer.compared is not None:
            self.divergences.add(answer.unit.block.requests, answer.compared)
        self.write(answer)
        return ScoredBlocks(responses=(answer.responses,), kept=(answer.kept,))


@dataclass(slots=True, kw_only=True)
class FileBase:
    """Answers of a base that is not loaded, from its reference file; a ``BlockScorer``."""

    base: LoadedModel
    references: BaseReferences

    @property
    def models(self) -> Sequence[LoadedModel]:
        """The base."""
        return (self.base,)

    def entries(self, blocks: Sequence[RequestBlock]) -> Sequence[BlockEntry]:  # noqa: ARG002
        """Nothing: what is in the file is not kept once more."""
        return ()

    def find_cached(self, blocks: Sequence[RequestBlock]) -> ScoredBlocks | None:
        """Read a block."""
        return self.answer(blocks)

    def answer(self, blocks: Sequence[RequestBlock]) -> ScoredBlocks:
        """Read a block."""
        self.references.known(blocks[0])
        return ScoredBlocks(responses=(self.base.scorer.score(blocks[0].requests),), kept=(True,))
