"""Runner: where probes run. Units of (assignment, block) go in, answers come out as they finish."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from evalguard.bisect_report import Loads
from evalguard.errors import EvalguardError
from evalguard.harness import Block
from evalguard.pipeline.sources import ModelSource
from evalguard.reference import Reference
from evalguard.scorer import Compared, ModelDescription, Response, Scorer

Found = TypeVar("Found")
# What the base left of its distributions, for a block of requests.
Beside = Callable[[Block], Sequence[Reference | None]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Work:
    """Blocks that one assignment has to answer; ``source`` is the candidate under it.

    ``beside``: what its distributions are held against; None where its scores are asked for.
    """

    source: ModelSource
    blocks: tuple[Block, ...]
    beside: Beside | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Done:
    """One answered block, with the description of what answered it, and what that took.

    ``compared``: with the base, where that was asked for. ``loading``: seconds that loading took, 0
    where the model was there already.
    """

    work: Work
    block: Block
    responses: Sequence[Response]
    description: ModelDescription
    seconds: float
    compared: Compared | None = None
    loading: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Failed:
    """A work that ended: its model could not be loaded, or failed at a block (``loaded``)."""

    work: Work
    error: EvalguardError
    loaded: bool
    seconds: float


class Runner(Protocol):
    """Runs probes, in whatever processes on whatever machines; one call at a time."""

    @property
    def jobs(self) -> int:
        """How many units run at the same time."""

    @property
    def loads(self) -> Loads:
        """How the models came about so far."""

    def run(self, works: Sequence[Work]) -> Generator[Done | Failed, None, None]:
        """Answer all blocks of all works, in any order; each is yielded as soon as it is there.

        A failure ends its work and no other. Where the caller stops early, or is interrupted, what
        is under way is ended.
        """

    def ask(self, source: ModelSource, question: Callable[[Scorer], Found]) -> Found:
        """Load a model and ask it something.

        Raises:
            EvalguardError: as loading and asking do.
        """

    def close(self) -> None:
        """End all processes. May be called twice."""
