"""RowSource: a model in this process that shows the distributions its scores are read from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from evalguard.models.no_room import NoRoomError
from evalguard.models.scored_tokens import FedTokens, ScoredTokens
from evalguard.scorer import Request, Response

if TYPE_CHECKING:
    import torch


class RowSource(Protocol):
    """What lock-step and references need of a model; ``LMScorer`` says what each method does."""

    def score(self, requests: Sequence[Request]) -> list[Response]: ...

    def pieces(self, requests: Sequence[Request]) -> list[list[FedTokens]]: ...

    def rows(
        self, requests: Sequence[Request], pieces: Iterable[FedTokens]
    ) -> Iterator[tuple[ScoredTokens, torch.Tensor]]: ...

    def make_room(self, found: NoRoomError) -> bool: ...

    def answer(
        self,
        requests: Sequence[Request],
        pieces: Sequence[Sequence[FedTokens]],
        known: Mapping[FedTokens, ScoredTokens],
    ) -> list[Response]: ...
