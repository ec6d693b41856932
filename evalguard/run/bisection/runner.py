"""What runs probes takes and gives.

Units of (assignment, block), their order, and why one failed.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from threading import Condition
from typing import Protocol, TypeVar

from evalguard.bisect.oracle import Refusal, Untestable
from evalguard.core.reference import Reference
from evalguard.core.reports.bisection import Loads
from evalguard.core.scorer import ComparedAnswer, ModelDescription, Response, Scorer, ScoringPolicy
from evalguard.errors import EvalguardError, FallbackError, StoreError, WorkerError
from evalguard.harness.blocks import RequestBlock
from evalguard.models.arguments import HF_TYPES
from evalguard.run.sources import ModelSource

Reply = TypeVar("Reply")
# What the base left of its distributions, for a block of requests.
BlockReferences = Callable[[RequestBlock], Sequence[Reference | None]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ProbeWork:
    """Blocks that one assignment has to answer; ``source`` is the candidate under it.

    ``beside``: what its distributions are held against; None where its scores are asked for.
    ``top_k``: tokens of its distributions that are to be left as references; 0: none are.
    """

    source: ModelSource
    blocks: tuple[RequestBlock, ...]
    beside: BlockReferences | None = None
    top_k: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScoredBlock:
    """One answered block, with the description of what answered it, and what that took.

    ``compared``: with the base, where that was asked for; ``references``: what others are compared
    with. ``loading``: seconds that loading took, 0
    where the model was there already.
    """

    work: ProbeWork
    block: RequestBlock
    responses: Sequence[Response]
    description: ModelDescription
    seconds: float
    compared: ComparedAnswer | None = None
    references: Sequence[Reference | None] = ()
    loading: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FailedWork:
    """A work that ended: its model could not be loaded, or failed at a block (``loaded``)."""

    work: ProbeWork
    error: EvalguardError
    loaded: bool
    seconds: float


class ProbeRunner(Protocol):
    """Runs probes, in whatever processes on whatever machines; one call at a time."""

    @property
    def jobs(self) -> int:
        """How many units run at the same time."""

    @property
    def loads(self) -> Loads:
        """How the models came about so far."""

    def run(self, works: Sequence[ProbeWork]) -> Generator[ScoredBlock | FailedWork, None, None]:
        """Answer all blocks of all works, in any order; each is yielded as soon as it is there.

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


# Schedule: which slot takes which block next.


_MOST_LOSSES = 3


@dataclass(slots=True)
class _RemainingBlocks:
    work: ProbeWork
    blocks: deque[RequestBlock]
    slots: int = 0


@dataclass(slots=True)
class BlockSchedule:
    """Blocks that are left, by work; slots on several threads take from it.

    Attributes:
        loading: seconds that loading takes, and ``scoring`` a block; 0 where nothing is known.
        slots: how many slots take from it, where what one loses is given to another: nobody is
            told that nothing is left while a block may come back. 0: what is lost has failed.
    """

    works: Sequence[ProbeWork]
    loading: float = 0.0
    scoring: float = 0.0
    slots: int = 0
    _left: list[_RemainingBlocks] = field(default_factory=list)
    _turn: Condition = field(default_factory=Condition)
    _in_work: int = 0
    _losses: Counter[tuple[int, str]] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        """Begin with everything."""
        self._left = [_RemainingBlocks(work, deque(work.blocks)) for work in self.works]

    def take(
        self, loaded: ModelSource | None, before: ProbeWork | None
    ) -> tuple[ProbeWork, RequestBlock] | None:
        """The next block for a slot, or None where nothing is left that is worth its while.

        Args:
            loaded: the model that the slot has loaded.
            before: the work that its last block was of.
        """
        with self._turn:
            while (found := self._best(loaded, before)) is None:
                if not (self.slots and self._in_work):
                    return None
                self._turn.wait()
            if found.work is not before:
                found.slots += 1
            self._in_work += 1
            return found.work, found.blocks.popleft()

    def finish(self) -> None:
        """Note that a block that was taken is done, or has failed."""
        with self._turn:
            self._in_work -= 1
            self._turn.notify_all()

    def give_back(self, work: ProbeWork, block: RequestBlock, *, lost: bool) -> bool:
        """Let another slot take a block that could not be answered; whether one may.

        Args:
            lost: what answered it is gone; a block with which that goes on happening is not
                innocent. False: it was not even begun.
        """
        with self._turn:
            if not self.slots:
                return False
            self._losses[id(work), block.digest] += lost
            if self._losses[id(work), block.digest] > _MOST_LOSSES:
                return False
            for left in self._left:
                if left.work is work:
                    left.blocks.appendleft(block)
            return True

    def leave(self) -> bool:
        """Take no more blocks, unless this is the last slot that does; whether it may leave."""
        with self._turn:
            if self.slots < 2:
                return False
            self.slots -= 1
            return True

    def drop(self, work: ProbeWork) -> None:
        """Leave out what is left of a work."""
        with self._turn:
            for left in self._left:
                if left.work is work:
                    left.blocks.clear()

    def stop(self) -> None:
        """Leave out everything."""
        with self._turn:
            self.slots = 0
            for left in self._left:
                left.blocks.clear()
            self._turn.notify_all()

    def _best(
        self, loaded: ModelSource | None, before: ProbeWork | None
    ) -> _RemainingBlocks | None:
        """Go on; else what is loaded; else what nobody works on; else help where most is left."""
        open_ = [left for left in self._left if left.blocks]
        for left in open_:
            if left.work is before:
                return left
        for left in open_:
            if loaded is not None and left.work.source.variant == loaded.variant:
                return left
        for left in open_:
            if not left.slots:
                return left
        most = max(open_, key=lambda left: len(left.blocks), default=None)
        return most if most is not None and self._helps(most) else None

    def _helps(self, left: _RemainingBlocks) -> bool:
        """Whether one more slot would finish before those that work on it already."""
        alone = len(left.blocks) * self.scoring / left.slots
        return not self.scoring or alone > self.loading + self.scoring


# Batches: every assignment is scored in the batches that base and candidate were scored in.
#
# One that cannot be is untestable, and does not fall back to other batches by itself: a difference
# of batches would look like a drift.


def policy_for_ends(
    policy: ScoringPolicy, ends: Sequence[ModelDescription], model_type: str
) -> ScoringPolicy:
    """A policy with the batches of both ends, the plainer ones where they differ.

    Args:
        policy: as it was chosen for the comparison.
        ends: descriptions of base and candidate, as far as they are models.
    """
    told = [end.computation for end in ends]
    if model_type not in HF_TYPES or not all(one.get("shares_prefixes") for one in told):
        policy = replace(policy, share_prefixes=False)
    if any(one.get("scorer") == "harness" for one in told):
        policy = replace(policy, scorer="harness")
    budgets = [budget for one in told if isinstance(budget := one.get("token_budget"), int)]
    return replace(policy, token_budget=min(budgets)) if budgets else policy


def uses_batches_of(policy: ScoringPolicy, found: ModelDescription) -> bool:
    """Whether a model was scored in the batches of a settled policy."""
    return not _batch_difference(policy, found)


def check_batches(policy: ScoringPolicy, found: ModelDescription) -> None:
    """Refuse a probe that was scored in other batches.

    Raises:
        Untestable: typed; other batches would be taken for a drift.
    """
    difference = _batch_difference(policy, found)
    if difference == "token_budget":
        raise Untestable(
            f"memory ran out with batches of {policy.token_budget:,} tokens, which base and "
            "candidate were scored in",
            kind="out_of_memory",
            hint=f"--token-budget {max(policy.token_budget // 2, 1)} for the whole comparison",
        )
    if difference:
        raise Untestable(
            "it cannot be scored as base and candidate were: it shares no prefixes"
            if difference == "shares_prefixes"
            else "it cannot be scored as base and candidate were: by another path to the scores",
            hint="--no-share-prefixes for the whole comparison"
            if difference == "shares_prefixes"
            else "--scorer harness for the whole comparison",
        )


def _batch_difference(policy: ScoringPolicy, found: ModelDescription) -> str:
    told = found.computation
    budget = told.get("token_budget")
    if isinstance(budget, int) and policy.token_budget and budget != policy.token_budget:
        return "token_budget"
    shares = told.get("shares_prefixes")
    if shares is not None and bool(shares) != policy.share_prefixes:
        return "shares_prefixes"
    scorer = told.get("scorer")
    if scorer is not None and (scorer == "harness") != (policy.scorer == "harness"):
        return "scorer"
    return ""


# Why a probe gave no scores: what belongs to its assignment, and what must stop everything.


# What torch, its allocators and evalguard itself say where memory ran out; in small letters.
_NO_MEMORY = (
    "memory ran out", "out of memory", "outofmemory", "can't allocate", "cannot allocate memory",
    "memoryerror", "std::bad_alloc", "alloc_failed",
)  # fmt: skip
_FULL_DISK = ("no space left on device", "the disk is full", "disk quota exceeded")


def refusal_of(error: EvalguardError, *, loaded: bool) -> Untestable:
    """What an error says about the assignment that met it.

    Args:
        loaded: whether the model was loaded, and failed while it answered.

    Raises:
        StoreError: a disk is full: that is not a property of an assignment.
    """
    if isinstance(error, StoreError):
        raise error
    if _mentions(error, _FULL_DISK):
        raise StoreError(str(error), hint="free some space, and resume") from error
    return Untestable(_refusal_reason(error), kind=_refusal_kind(error, loaded), hint=error.hint)


def _refusal_reason(error: EvalguardError) -> str:
    """The first line; of a worker's log, whose end comes behind it, the place."""
    first = next(iter(str(error).splitlines()), "") or type(error).__name__
    what, log, _ = first.partition("; the end of its log ")
    if log and isinstance(error, WorkerError) and error.log:
        return f"{what}; its log is {error.log}"
    return first


def was_killed(error: EvalguardError) -> bool:
    """Whether somebody else ended its worker at once, as a kernel does that is short of memory."""
    return isinstance(error, WorkerError) and error.cause == "killed"


def ran_out_of_memory(error: EvalguardError) -> bool:
    """Whether there was too little memory, as far as an error tells."""
    return was_killed(error) or _mentions(error, _NO_MEMORY)


def _mentions(error: EvalguardError, words: tuple[str, ...]) -> bool:
    text = f"{error} {error.hint}".lower()
    return any(one in text for one in words)


def _refusal_kind(error: EvalguardError, loaded: bool) -> Refusal:
    if isinstance(error, WorkerError) and error.cause == "late":
        return "timed_out"
    if ran_out_of_memory(error):
        return "out_of_memory"
    if isinstance(error, WorkerError):
        return "crashed"
    return "crashed" if loaded and not isinstance(error, FallbackError) else "cannot_build"
