"""Alone: one model answers by itself, from the score cache where it can."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from evalguard.harness import Block
from evalguard.pipeline.answering import Answered
from evalguard.pipeline.kept_blocks import Entry
from evalguard.scorer import Scorer

if TYPE_CHECKING:
    from evalguard.pipeline.evaluate import Evaluator


@dataclass(slots=True)
class Alone:
    """One model answers by itself."""

    name: str
    scorer: Scorer
    evaluator: Evaluator

    @property
    def models(self) -> Sequence[tuple[str, Scorer]]:
        """The one model."""
        return ((self.name, self.scorer),)

    def entries(self, blocks: Sequence[Block]) -> Sequence[Entry]:
        """The model's answers."""
        return (self.evaluator.entry(blocks[0], self.models[0]),)

    def kept(self, blocks: Sequence[Block]) -> Answered | None:
        """Return the answers where they are kept."""
        found = self.evaluator.kept(blocks[0], self.scorer)
        return None if found is None else Answered(responses=(found,), kept=(True,))

    def answer(self, blocks: Sequence[Block]) -> Answered:
        """Answer a block, from the cache where it is there."""
        responses, cached = self.evaluator.answered(blocks[0], self.scorer)
        return Answered(responses=(responses,), kept=(cached,))
