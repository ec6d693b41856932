"""Lockstep: both models of a comparison answer block by block, and their distributions meet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from evalguard.harness import Block
from evalguard.models.lm_scorer import LMScorer
from evalguard.models.lockstep import score_in_lockstep
from evalguard.pipeline.divergences import Divergences
from evalguard.pipeline.evaluate import Answered, Evaluator
from evalguard.pipeline.kept_blocks import KeptBlocks
from evalguard.scorer import Compared, Scorer
from evalguard.settings import digest_of


@dataclass(slots=True, kw_only=True)
class Lockstep:
    """Answers of two models in this process, with the divergences of their distributions.

    Attributes:
        base, candidate: their names and scorers.
        kept: finished divergences.
        seed: of models that draw random numbers.
        divergences: what was measured so far.
    """

    base: tuple[str, LMScorer]
    candidate: tuple[str, LMScorer]
    evaluator: Evaluator
    kept: KeptBlocks[Compared]
    seed: int
    divergences: Divergences = field(default_factory=Divergences)

    @property
    def models(self) -> Sequence[tuple[str, Scorer]]:
        """Base and candidate."""
        return (self.base, self.candidate)

    def answer(self, blocks: Sequence[Block]) -> Answered:
        """Answer a block by both models; every forward pass is done once."""
        base, candidate = blocks
        task = base.requests[0].task
        if base.kind == "generate_until" or task in self.divergences.reasons:
            return self._apart(base, candidate)
        key, name = self._key(), digest_of([base.digest, candidate.digest])
        compared = self.kept.get(key, name)
        if compared is not None:
            self.divergences.add(candidate.requests, compared)
            return self._apart(base, candidate)
        ours, theirs, compared = score_in_lockstep(
            self.base[1], self.candidate[1], base.requests, candidate.requests, seed=self.seed
        )
        self.evaluator.keep(base, self.base[1], ours)
        self.evaluator.keep(candidate, self.candidate[1], theirs)
        self.kept.put(key, name, compared)
        self.divergences.add(candidate.requests, compared)
        return Answered(responses=(ours, theirs), cached=False)

    def _apart(self, base: Block, candidate: Block) -> Answered:
        """Answers of each model for itself; those that are kept where they are."""
        ours, ours_kept = self.evaluator.answered(base, self.base[1])
        theirs, theirs_kept = self.evaluator.answered(candidate, self.candidate[1])
        return Answered(responses=(ours, theirs), cached=ours_kept and theirs_kept)

    def _key(self) -> str | None:
        keys = [self.evaluator.key(scorer) for _, scorer in self.models]
        return None if None in keys else digest_of([*keys, "lockstep"])
