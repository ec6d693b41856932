"""Answering: how a block of documents is answered, by one model or by several side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from evalguard.harness import Block
from evalguard.pipeline.kept_blocks import Entry
from evalguard.scorer import Response, Scorer


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """One block's answers, of every model that goes through the documents together.

    ``kept`` says of each model whether its answers had been kept.
    """

    responses: tuple[Sequence[Response], ...]
    kept: tuple[bool, ...]

    @property
    def cached(self) -> bool:
        """Whether nothing had to be scored."""
        return all(self.kept)


class Answering(Protocol):
    """How blocks are answered; each model has its own blocks, of the same documents."""

    @property
    def models(self) -> Sequence[tuple[str, Scorer]]:
        """Names and scorers of the models that answer."""

    def entries(self, blocks: Sequence[Block]) -> Sequence[Entry]:
        """Return what answering these blocks may put into caches."""

    def kept(self, blocks: Sequence[Block]) -> Answered | None:
        """Return what is kept, where nothing has to be scored."""

    def answer(self, blocks: Sequence[Block]) -> Answered:
        """Answer blocks: take what is kept, and score the rest."""
