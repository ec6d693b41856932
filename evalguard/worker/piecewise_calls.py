"""The worker's side of calls whose records travel piece by piece."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from typing import Any, cast

from evalguard.core.reference import Reference
from evalguard.core.reports.trace_report import Trace
from evalguard.core.scorer import (
    DistributionScorer,
    Scorer,
)
from evalguard.core.tracing.scorers import ActivationScorer, TracingScorer
from evalguard.errors import UsageError, WorkerError
from evalguard.worker.activation_parts import cut_activations
from evalguard.worker.messages import (
    ActivationPart,
    ActivationsCall,
    Call,
    ChunkedAnswer,
    ComparisonCall,
    ReferenceCall,
    TraceCall,
)
from evalguard.worker.record_chunks import RecordChunks, join_chunks


class DistributionCalls:
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

    def _referenced(self, wanted: ReferenceCall, scorer: DistributionScorer) -> ChunkedAnswer:
        responses, references = scorer.score_reference(
            wanted.requests, top_k=wanted.top_k, samples=wanted.samples
        )
        parcels = RecordChunks.of(references)
        self._waiting.extend(parcels.pieces)
        return ChunkedAnswer(responses=tuple(responses), lengths=parcels.lengths)

    def _compared(self, wanted: ComparisonCall, scorer: DistributionScorer) -> ChunkedAnswer:
        given, self._given = self._given, []
        references = join_chunks(wanted.lengths, given)
        responses, compared = scorer.score_against(wanted.requests, references)
        parcels = RecordChunks.of(compared.divergences)
        self._waiting.extend(parcels.pieces)
        return ChunkedAnswer(
            responses=tuple(responses), lengths=parcels.lengths, reason=compared.reason
        )


class ActivationCalls:
    """Hands out what flows in a model, one part a call; the model waits in between."""

    def __init__(self) -> None:
        self._parts: Generator[ActivationPart] | None = None

    def open(self, wanted: ActivationsCall, scorer: Scorer) -> None:
        """Begin a pass.

        Raises:
            UsageError: the model shows no activations.
        """
        if not hasattr(scorer, "activations"):
            raise UsageError(
                "this model type shows no activations when it runs in a worker",
                hint="dump them to files, and name their folder in place of the model",
            )
        found = cast(ActivationScorer, scorer).activations(wanted.ids, wanted.wanted, wanted.forced)
        self._parts = cut_activations(found)

    def next_part(self) -> ActivationPart | None:
        """Return the next part; None after the last one.

        Raises:
            WorkerError: no pass was begun.
        """
        if self._parts is None:
            raise WorkerError("asked for an activation where no pass was begun")
        return next(self._parts, None)

    def close(self) -> None:
        """Break off a pass whose values nobody takes any more."""
        if self._parts is not None:
            self._parts.close()
            self._parts = None


def trace_recorded(wanted: TraceCall, scorer: Scorer) -> Trace:
    if not hasattr(scorer, "trace_recorded"):
        raise UsageError(
            "a model of this type is no base of a trace when it runs in a worker",
            hint="name a model: hf of evalguard's own environment as the base",
        )
    return cast(TracingScorer, scorer).trace_recorded(
        wanted.sequences,
        wanted.recorded,
        rounding=wanted.rounding,
        memory=wanted.memory,
        detail=wanted.detail,
    )
