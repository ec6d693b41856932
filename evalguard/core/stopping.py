"""Stopping: how a sequential comparison came to its verdict, and what that guarantees."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

# flips-exact      betting on flips; exact for 0/1 scores
# bounded-betting  betting on any mean or ratio; robust, asymptotic in the base's standard error
# full             all documents were asked: the ordinary comparison
StoppingMethod = Literal["flips-exact", "bounded-betting", "full"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopping:
    """Of one metric, what stopping early means.

    Attributes:
        n_total: N, the documents whose verdict is given; ``n_used`` of them were asked.
        look: number of the look it stopped at, 1 for the first; ``looks`` are all that were
            planned, in documents.
        seed: of the random order the documents came in.
        alpha: the chance, over orders, that the gate's verdict is not that of all documents.
        alpha_below: the level at which sigma of all documents was to be shown below the margin;
            ``alpha_above``: above it (alpha over the number of gated metrics).
        error_chance: bound of the chance that an order brings the evidence seen although the
            verdict of all documents is the other one; at most the level. 0 with all documents.
        method: see ``StoppingMethod``.
        assumed_worst: the most that a document not asked may lose, in the unit of its score (nats
            for log-likelihoods); None where nothing is assumed. ``seen_worst`` is the most among
            those asked.
        assumption: what is taken for granted, "" where nothing is.
        guarantee: one sentence, with the assumption.
        n_used: documents that were asked.
        looks: planned looks, in documents; the last is all of them.
        seen_worst: the most among the documents asked.
    """

    n_total: int
    n_used: int
    look: int
    looks: tuple[int, ...]
    seed: int
    alpha: float
    alpha_below: float
    alpha_above: float
    error_chance: float
    method: StoppingMethod
    guarantee: str
    assumption: str = ""
    assumed_worst: float | None = None
    seen_worst: float | None = None

    @property
    def early(self) -> bool:
        """Whether documents were left out."""
        return self.n_used < self.n_total


@dataclass(frozen=True, slots=True, kw_only=True)
class SequentialTask:
    """One task of a sequential run.

    Attributes:
        n_used: documents that were asked, of ``n_total``.
        look: the one it stopped at, 1 for the first; ``looks`` are all that were planned, in
            documents.
        n_total: documents there are.
        looks: planned looks, in documents; the last is all of them.
        reason: why all documents were asked although stopping was allowed; "" where it was stopped
            early or simply not decided before the last look.
    """

    task: str
    n_used: int
    n_total: int
    look: int
    looks: tuple[int, ...]
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequentialRun:
    """What was allowed to stop early, and what that guarantees for the gate.

    Attributes:
        alpha: chance, over orders, that the gate's verdict is not that of all documents.
        gated: number of gated metrics; each may be shown above the margin at alpha / gated.
        seed: of the orders.
        loads: how often a model was loaded; 1 for each where both fit in memory together.
        saved_seconds: estimated wall-clock time that scoring the documents left out would have
            taken, less what loading models several times took; None where all answers came from
            the cache, so that no pace is known. Negative where stopping early did not pay. No part
            of a run's equality.
        tasks: every task.
    """

    alpha: float
    gated: int
    seed: int
    loads: int
    tasks: tuple[SequentialTask, ...]
    saved_seconds: float | None = field(default=None, compare=False)

    @property
    def early(self) -> bool:
        """Whether any document was left out."""
        return any(task.n_used < task.n_total for task in self.tasks)
