"""Resources: what a comparison took, in time, memory and tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# preparing  reading guard file and tasks, building requests, whatever is not one of the others
# loading    a model
# scoring    models answering, and their distributions being compared
# comparing  metrics and statistics
PhaseName = Literal["preparing", "loading", "scoring", "comparing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """Time spent in one phase, that of phases inside of it left out.

    Attributes:
        phase: what was done; preparing is whatever is none of the others.
        wall_seconds: wall-clock time.
        models: names of those that it is about: both where they are asked side by side.
        cpu_seconds: of this process, all threads together.
    """

    phase: PhaseName
    models: tuple[str, ...] = ()
    wall_seconds: float
    cpu_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerCounts:
    """What one model answered.

    Attributes:
        documents: of all tasks; those of a task that asks in two ways count twice.
        kept: those of them whose answers were in the score cache.
        tokens: fed for the others, each request by itself; None where a model type hides them.
        model: its name.
    """

    model: str
    documents: int
    kept: int
    tokens: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What a comparison took, up to its verdict; another run of the same takes something else.

    Attributes:
        wall_seconds, cpu_seconds: of this process, from the call of ``compare`` on.
        children_cpu_seconds: of processes that were started and have ended: workers, builds.
        peak_memory: largest resident set of this process so far, in bytes; None where the
            system does not say.
        worker_peak_memory: the same of the largest worker; None without one.
        device_peak_memory: most bytes that torch held on one CUDA device; None without one.
        phases: where the time went; a phase inside another one is left out there.
        answers: what each model answered.
    """

    phases: tuple[Phase, ...]
    answers: tuple[AnswerCounts, ...]
    wall_seconds: float
    cpu_seconds: float
    children_cpu_seconds: float
    peak_memory: int | None = None
    worker_peak_memory: int | None = None
    device_peak_memory: int | None = None

    def seconds(self, phase: PhaseName) -> float:
        """Wall-clock seconds of a phase, over all models."""
        return sum(one.wall_seconds for one in self.phases if one.phase == phase)

    @property
    def tokens(self) -> int | None:
        """Tokens fed to all models; None where one of them hides them."""
        told = [one.tokens for one in self.answers if one.tokens is not None]
        return sum(told) if len(told) == len(self.answers) else None

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens fed per wall-clock second of scoring; None where nothing was fed."""
        seconds = self.seconds("scoring")
        return self.tokens / seconds if self.tokens and seconds > 0.0 else None

    @property
    def kept_share(self) -> float:
        """Share of the answered documents that came from the score cache; 0 without any."""
        documents = sum(one.documents for one in self.answers)
        return sum(one.kept for one in self.answers) / documents if documents else 0.0
