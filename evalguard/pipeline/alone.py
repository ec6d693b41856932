"""Alone: one model answers by itself, from the score cache where it can."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from evalguard.harness import Block
from evalguard.pipeline.answering import Answered
from evalguard.pipeline.kept_blocks import Entry
from evalguard.scorer import Response, Scorer


class Keeping(Protocol):
    """What answers and keeps blocks, as ``Evaluator`` does."""

    def entry(self, block: Block, model: tuple[str, Scorer]) -> Entry: ...

    def kept(self, block: Block, scorer: Scorer) -> Sequence[Response] | None: ...

    def answered(self, block: Block, scorer: Scorer) -> tuple[Sequence[Response], bool]: ...


@dataclass(slots=True)
class Alone:
    """One model answers by itself."""

    name: str
    scorer: Scorer
    evaluator: Keeping

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
