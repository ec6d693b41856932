"""Lockstep: both models of a comparison answer block by block, and their distributions meet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from evalguard.harness import Block
from evalguard.models.lm_scorer import LMScorer
from evalguard.models.lockstep import score_in_lockstep
from evalguard.pipeline.answering import Answered
from evalguard.pipeline.divergences import Divergences
from evalguard.pipeline.evaluate import Evaluator
from evalguard.pipeline.kept_blocks import Entry, KeptBlocks
from evalguard.pipeline.lazy_scorer import in_this_process
from evalguard.scorer import Compared, Scorer
from evalguard.settings import digest_of


@dataclass(slots=True, kw_only=True)
class Lockstep:
    """Answers of two models in this process, with the divergences of their distributions.

    Attributes:
        base, candidate: their names and scorers, both of this process.
        divergences_kept: finished divergences.
        seed: of models that draw random numbers.
        divergences: what was measured so far.
    """

    base: tuple[str, Scorer]
    candidate: tuple[str, Scorer]
    evaluator: Evaluator
    divergences_kept: KeptBlocks[Compared]
    seed: int
    divergences: Divergences = field(default_factory=Divergences)

    @property
    def models(self) -> Sequence[tuple[str, Scorer]]:
        """Base and candidate."""
        return (self.base, self.candidate)

    def entries(self, blocks: Sequence[Block]) -> Sequence[Entry]:
        """Answers of both models, and their divergences."""
        base, candidate = blocks
        answers = (
            self.evaluator.entry(base, self.base),
            self.evaluator.entry(candidate, self.candidate),
        )
        if not self._compares(base):
            return answers
        name = _name(base, candidate)
        return (*answers, Entry(self.divergences_kept, self._key(), name, self.models))

    def kept(self, blocks: Sequence[Block]) -> Answered | None:
        """Return the answers of both where they and their divergences are kept."""
        base, candidate = blocks
        compared = self._compared(base, candidate)
        if compared is None and self._compares(base):
            return None
        ours = self.evaluator.kept(base, self.base[1])
        theirs = self.evaluator.kept(candidate, self.candidate[1])
        if ours is None or theirs is None:
            return None
        if compared is not None:
            self.divergences.add(candidate.requests, compared)
        return Answered(responses=(ours, theirs), kept=(True, True))

    def answer(self, blocks: Sequence[Block]) -> Answered:
        """Answer a block by both models; every forward pass is done once."""
        base, candidate = blocks
        if not self._compares(base):
            return self._apart(base, candidate)
        compared = self._compared(base, candidate)
        if compared is not None:
            self.divergences.add(candidate.requests, compared)
            return self._apart(base, candidate)
        ours, theirs, compared = score_in_lockstep(
            *self._loaded(), base.requests, candidate.requests, seed=self.seed
        )
        self.evaluator.keep(base, self.base[1], ours)
        self.evaluator.keep(candidate, self.candidate[1], theirs)
        self.divergences_kept.put(self._key(), _name(base, candidate), compared)
        self.divergences.add(candidate.requests, compared)
        return Answered(responses=(ours, theirs), kept=(False, False))

    def _compares(self, base: Block) -> bool:
        """Whether this block has distributions that are to be compared."""
        given_up = base.requests[0].task in self.divergences.reasons
        return base.kind != "generate_until" and not given_up

    def _compared(self, base: Block, candidate: Block) -> Compared | None:
        if not self._compares(base):
            return None
        return self.divergences_kept.get(self._key(), _name(base, candidate))

    def _apart(self, base: Block, candidate: Block) -> Answered:
        """Answers of each model for itself; those that are kept where they are."""
        ours, ours_kept = self.evaluator.answered(base, self.base[1])
        theirs, theirs_kept = self.evaluator.answered(candidate, self.candidate[1])
        return Answered(responses=(ours, theirs), kept=(ours_kept, theirs_kept))

    def _loaded(self) -> tuple[LMScorer, LMScorer]:
        base, candidate = (in_this_process(scorer) for _, scorer in self.models)
        assert base is not None
        assert candidate is not None
        return base, candidate

    def _key(self) -> str | None:
        keys = [self.evaluator.key(scorer) for _, scorer in self.models]
        return None if None in keys else digest_of([*keys, "lockstep"])


def _name(base: Block, candidate: Block) -> str:
    return digest_of([base.digest, candidate.digest])
