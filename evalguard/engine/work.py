"""Units of work: blocks of requests that a model answers, and what is wanted beside the answers."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar, cast

from evalguard.core.divergence import SAMPLES, Reference
from evalguard.core.question import Loads
from evalguard.core.scorer import (
    ComparedAnswer,
    DistributionScorer,
    ModelDescription,
    Response,
    Scorer,
)
from evalguard.engine.base_references import BaseReferences
from evalguard.engine.sources import ModelSource
from evalguard.errors import EvalguardError, StoreError
from evalguard.harness.request_blocks import RequestBlock

Reply = TypeVar("Reply")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Unit:
    """A block that a model is to answer, by its likelihoods and texts alone or with more.

    Attributes:
        leaves: of a base: what is to be kept of its distributions, too.
        beside: of a candidate: what its distributions are to be held against.
    """

    block: RequestBlock
    leaves: BaseReferences | None = None
    beside: BaseReferences | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UnitAnswer:
    """What a model answered to a unit.

    Attributes:
        responses: one for each request of the block.
        references: where the unit leaves them, one for each request.
        compared: where the unit stands beside a base, how the distributions differ.
        kept: whether the responses had been kept.
    """

    unit: Unit
    responses: Sequence[Response]
    references: Sequence[Reference | None] = ()
    compared: ComparedAnswer | None = None
    kept: bool = False


class ReferencesGoneError(StoreError):
    """What was kept of the base's distributions is there no more: nobody's settings did that."""


def score_unit(scorer: Scorer, unit: Unit) -> UnitAnswer:
    """Have a model answer a unit; nothing is looked up or kept.

    Raises:
        ReferencesGoneError: what it is to be held against is gone: a full disk, a cleared cache.
        EvalguardError: as scoring does.
    """
    # Whoever shows no distributions says so.
    showing, asked = cast(DistributionScorer, scorer), unit.block.requests
    if unit.leaves is not None:
        top_k = unit.leaves.top_k
        responses, references = showing.score_reference(asked, top_k=top_k, samples=SAMPLES)
        return UnitAnswer(unit=unit, responses=responses, references=references)
    if unit.beside is not None:
        beside = unit.beside.beside(unit.block)
        if beside is None:
            raise ReferencesGoneError(
                "what was kept of the base's distributions is gone from the cache",
                hint="the same command makes it again; scores in the cache are not computed twice",
            )
        responses, compared = showing.score_against(asked, beside)
        return UnitAnswer(unit=unit, responses=responses, compared=compared)
    return UnitAnswer(unit=unit, responses=scorer.score(asked))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Work:
    """Units of one model, which is loaded for them from ``source``."""

    source: ModelSource
    units: tuple[Unit, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FinishedUnit:
    """An answer to a unit of a work, what gave it, and what that took.

    Attributes:
        description: of the model as it was when it had answered.
        seconds: that scoring took.
        loading: seconds that loading took; 0 where the model was there already.
    """

    work: Work
    answer: UnitAnswer
    description: ModelDescription
    seconds: float
    loading: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FailedWork:
    """A work that ended: its model could not be loaded, or failed at a unit (``loaded``)."""

    work: Work
    error: EvalguardError
    loaded: bool
    seconds: float


class WorkRunner(Protocol):
    """Runs works, in whatever processes on whatever machines; one call at a time."""

    @property
    def jobs(self) -> int:
        """How many units run at the same time."""

    @property
    def loads(self) -> Loads:
        """How the models came about so far."""

    def run(self, works: Sequence[Work]) -> Generator[FinishedUnit | FailedWork, None, None]:
        """Answer all units of all works, in any order; each is yielded as soon as it is there.

        A failure ends its work and no other. Where the caller stops early, or is interrupted, what
        is under way is ended.
        """

    def ask(self, source: ModelSource, question: Callable[[Scorer], Reply]) -> Reply:
        """Load a model and ask it something.

        Raises:
            EvalguardError: as loading and asking do.
        """

    def close(self) -> None:
        """End all processes. May be called twice."""
