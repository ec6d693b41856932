"""Counter: the worker's side of calls whose records travel piece by piece."""

from __future__ import annotations

from collections import deque
from typing import Any, cast

from evalguard.errors import WorkerError
from evalguard.execution.messages import Call, ComparisonWanted, InParcels, ReferenceWanted
from evalguard.execution.parcels import Parcels, unpacked
from evalguard.reference import Reference
from evalguard.scorer import DistributionScorer, Scorer


class Counter:
    """Takes references in, and hands references and divergences out, one piece a call."""

    def __init__(self) -> None:
        self._given: list[Reference] = []
        self._waiting: deque[Any] = deque()

    def answer(self, call: Call, argument: Any, scorer: Scorer) -> Any:
        """Return the value of a call about distributions.

        Raises:
            WorkerError: for a piece that is not there.
            EvaluationError: as scoring does.
        """
        if call.name == "give_reference":
            self._given.append(argument)
            return None
        if call.name in ("next_reference", "next_divergence"):
            if not self._waiting:
                raise WorkerError("asked for a piece that is not there")
            return self._waiting.popleft()
        self._waiting.clear()
        if call.name == "score_reference":
            return self._referenced(argument, cast(DistributionScorer, scorer))
        return self._compared(argument, cast(DistributionScorer, scorer))

    def _referenced(self, wanted: ReferenceWanted, scorer: DistributionScorer) -> InParcels:
        responses, references = scorer.score_reference(
            wanted.requests, top_k=wanted.top_k, samples=wanted.samples
        )
        parcels = Parcels.of(references)
        self._waiting.extend(parcels.pieces)
        return InParcels(responses=tuple(responses), lengths=parcels.lengths)

    def _compared(self, wanted: ComparisonWanted, scorer: DistributionScorer) -> InParcels:
        given, self._given = self._given, []
        references = unpacked(wanted.lengths, given)
        responses, compared = scorer.score_against(wanted.requests, references)
        parcels = Parcels.of(compared.divergences)
        self._waiting.extend(parcels.pieces)
        return InParcels(
            responses=tuple(responses), lengths=parcels.lengths, reason=compared.reason
        )
