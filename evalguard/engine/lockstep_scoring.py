"""Both models of a comparison answer block by block, and their distributions meet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from evalguard.core.scorer import ComparedAnswer
from evalguard.core.settings import digest_of
from evalguard.distributions.task_distributions import DivergenceTables
from evalguard.engine.block_store import BlockStore
from evalguard.engine.kept_blocks import BlockEntry, LoadedModel
from evalguard.engine.loading.lazy_scorer import local_scorer
from evalguard.engine.task_progress import ScoredBlocks
from evalguard.engine.work import Unit, UnitAnswer
from evalguard.harness.request_blocks import RequestBlock
from evalguard.models.hf.lockstep import score_in_lockstep
from evalguard.models.hf.side_by_side import threads_side_by_side
from evalguard.models.lm_scorer import LMScorer


@dataclass(slots=True, kw_only=True)
class LockstepScoring:
    """Answers of two models in this process, with the divergences of their distributions.

    Attributes:
        base, candidate: their names and scorers, both of this process.
        store: what is kept of both.
        seed: of models that draw random numbers.
        divergences: what was measured so far.
    """

    base: LoadedModel
    candidate: LoadedModel
    store: BlockStore
    seed: int
    divergences: DivergenceTables = field(default_factory=DivergenceTables)

    @property
    def models(self) -> Sequence[LoadedModel]:
        """Base and candidate."""
        return (self.base, self.candidate)

    def entries(self, blocks: Sequence[RequestBlock]) -> Sequence[BlockEntry]:
        """Answers of both models, and their divergences."""
        base, candidate = blocks
        answers = (
            self.store.entry(base, self.base),
            self.store.entry(candidate, self.candidate),
        )
        if not self._compares(base):
            return answers
        name = _pair_name(base, candidate)
        return (*answers, BlockEntry(self.store.divergences, self._key(), name, self.models))

    def find_cached(self, blocks: Sequence[RequestBlock]) -> ScoredBlocks | None:
        """Return the answers of both where they and their divergences are kept."""
        base, candidate = blocks
        compared = self._compared(base, candidate)
        if compared is None and self._compares(base):
            return None
        ours = self.store.find_responses(base, self.base.scorer)
        theirs = self.store.find_responses(candidate, self.candidate.scorer)
        if ours is None or theirs is None:
            return None
        if compared is not None:
            self.divergences.add(candidate.requests, compared)
        return ScoredBlocks(responses=(ours, theirs), kept=(True, True))

    def answer(self, blocks: Sequence[RequestBlock]) -> ScoredBlocks:
        """Answer a block by both models; every forward pass is done once."""
        base, candidate = blocks
        compared = self._compared(base, candidate)
        if compared is not None:
            self.divergences.add(candidate.requests, compared)
        if compared is not None or not self._compares(base):
            return self._apart(base, candidate)
        first, second = self._loaded()
        ours, theirs, compared = score_in_lockstep(
            first,
            second,
            base.requests,
            candidate.requests,
            seed=self.seed,
            beside=threads_side_by_side(
                (first.module, second.module), (first.threads, second.threads)
            ),
        )
        for block, (_, scorer), told in (
            (base, self.base, ours),
            (candidate, self.candidate, theirs),
        ):
            answer = UnitAnswer(unit=Unit(block=block), responses=told)
            self.store.keep(answer, self.store.key(scorer))
        self.store.divergences.put(self._key(), _pair_name(base, candidate), compared)
        self.divergences.add(candidate.requests, compared)
        return ScoredBlocks(responses=(ours, theirs), kept=(False, False))

    def _compares(self, base: RequestBlock) -> bool:
        """Whether this block has distributions that are to be compared."""
        given_up = base.requests[0].task in self.divergences.reasons
        return base.kind != "generate_until" and not given_up

    def _compared(self, base: RequestBlock, candidate: RequestBlock) -> ComparedAnswer | None:
        if not self._compares(base):
            return None
        return self.store.divergences.get(self._key(), _pair_name(base, candidate))

    def _apart(self, base: RequestBlock, candidate: RequestBlock) -> ScoredBlocks:
        """Answers of each model for itself; those that are kept where they are."""
        ours = self.store.answer(Unit(block=base), self.base.scorer)
        theirs = self.store.answer(Unit(block=candidate), self.candidate.scorer)
        return ScoredBlocks(
            responses=(ours.responses, theirs.responses), kept=(ours.kept, theirs.kept)
        )

    def _loaded(self) -> tuple[LMScorer, LMScorer]:
        base, candidate = (local_scorer(scorer) for _, scorer in self.models)
        assert base is not None
        assert candidate is not None
        return base, candidate

    def _key(self) -> str | None:
        keys = [self.store.key(scorer) for _, scorer in self.models]
        return None if None in keys else digest_of([*keys, "lockstep"])


def _pair_name(base: RequestBlock, candidate: RequestBlock) -> str:
    return digest_of([base.digest, candidate.digest])
