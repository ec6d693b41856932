"""RowSource: a model in this process that shows the distributions its scores are read from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from evalguard.core.scorer import Request, Response
from evalguard.models.hf.smaller_batches import BatchTooLargeError

if TYPE_CHECKING:
    import torch
from evalguard.models.hf.scored_tokens import InputTokens, ScoredTokens


class RowSource(Protocol):
    """What lock-step and references need of a model; ``LMScorer`` says what each method does."""

    def score(self, requests: Sequence[Request]) -> list[Response]: ...

    def pieces(self, requests: Sequence[Request]) -> list[list[InputTokens]]: ...

    def rows(
        self, requests: Sequence[Request], pieces: Iterable[InputTokens]
    ) -> Iterator[tuple[ScoredTokens, torch.Tensor | NDArray[np.float32]]]: ...

    def make_room(self, found: BatchTooLargeError) -> bool: ...

    def answer(
        self,
        requests: Sequence[Request],
        pieces: Sequence[Sequence[InputTokens]],
        known: Mapping[InputTokens, ScoredTokens],
    ) -> list[Response]: ...
