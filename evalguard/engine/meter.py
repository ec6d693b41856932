"""Meter: where a comparison's time goes, and what its models answer."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from evalguard.core.compare_report import AnswerCounts, Phase, PhaseName, Resources
from evalguard.core.scorer import Response, Scorer
from evalguard.harness.request_blocks import RequestBlock
from evalguard.models.machine import peak_device_memory
from evalguard.worker.process_family import peak_memory

_PhaseKey = tuple[PhaseName, tuple[str, ...], str]


@dataclass(slots=True)
class _SpentTime:
    wall: float = 0.0
    cpu: float = 0.0


@dataclass(slots=True)
class _TaskWork:
    documents: int = 0
    kept: int = 0
    tokens: Counter[int] = field(default_factory=Counter)
    hidden: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPace:
    """What one model did for one task.

    Attributes:
        seconds: by the clock on the wall.
        tokens: that it read, by document.
        hidden: whether any response did not tell.
    """

    seconds: float
    tokens: Mapping[int, int]
    hidden: bool


@dataclass(slots=True, kw_only=True)
class Meter:
    """Counts from when it is made; time belongs to the innermost phase.

    Attributes:
        clock: seconds since 1970, which somebody may set; ``wall`` and ``cpu`` only go forward.
        loads: models that were loaded.
        steady: whether a model's first, slow requests are to count as loading it, so that the time
            of a few documents says what many take.
    """

    wall: Callable[[], float] = time.perf_counter
    cpu: Callable[[], float] = time.process_time
    clock: Callable[[], float] = time.time
    loads: int = 0
    steady: bool = False
    _inside: list[_PhaseKey] = field(default_factory=lambda: [("preparing", (), "")])
    _spent: dict[_PhaseKey, _SpentTime] = field(default_factory=dict)
    _work: dict[tuple[str, str], _TaskWork] = field(default_factory=dict)
    _scorers: list[Scorer] = field(default_factory=list)
    _mark: tuple[float, float] = field(init=False)
    _children: float = field(init=False)
    _began: tuple[float, float] = field(init=False)

    def __post_init__(self) -> None:
        """Start to count."""
        self._mark, self._children = (self.wall(), self.cpu()), _children_cpu()
        self._began = self.clock(), self.wall()

    def began(self) -> float:
        """When this began, in seconds since 1970: by the clock then or now, the earlier one."""
        clock, wall = self._began
        return min(clock, self.clock() - (self.wall() - wall))

    @contextmanager
    def phase(self, name: PhaseName, models: Sequence[str] = (), task: str = "") -> Iterator[None]:
        """Count the time spent inside as that of a phase."""
        self._charge()
        self._inside.append((name, tuple(models), task))
        try:
            yield
        finally:
            self._charge()
            self._inside.pop()

    def loaded(self, scorer: Scorer) -> None:
        """Count a model that was loaded, and see what memory it takes in the end."""
        self.loads += 1
        self._scorers.append(scorer)

    def start_over(self) -> None:
        """Forget what was answered, not the time: all models are asked once more."""
        self._work.clear()
        for name, models, task in [key for key in self._spent if key[2]]:
            before = self._spent.pop((name, models, task))
            whole = self._spent.setdefault((name, models, ""), _SpentTime())
            whole.wall += before.wall
            whole.cpu += before.cpu

    def count(
        self, model: str, block: RequestBlock, responses: Sequence[Response], *, kept: bool
    ) -> None:
        """Count what a model answered to a block; ``kept``: before this run."""
        work = self._work.setdefault((model, block.requests[0].task), _TaskWork())
        work.documents += len(block.doc_ids)
        if kept:
            work.kept += len(block.doc_ids)
        else:
            self._feed(work, block, responses)

    def pace(self, model: str, task: str) -> TaskPace | None:
        """What a model did for a task; None where it did nothing, or all was kept."""
        work = self._work.get((model, task), _TaskWork())
        if not work.tokens:
            return None
        spent = self._spent.get(("scoring", (model,), task), _SpentTime())
        return TaskPace(seconds=spent.wall, tokens=work.tokens, hidden=work.hidden)

    def seconds_per_document(self, model: str, task: str) -> float | None:
        """Wall-clock seconds that a model took for a document; None where all were kept."""
        work = self._work.get((model, task), _TaskWork())
        fresh = work.documents - work.kept
        spent = self._spent.get(("scoring", (model,), task), _SpentTime())
        return spent.wall / fresh if fresh else None

    def load_seconds(self, model: str) -> float:
        """Wall-clock seconds that loading a model took; 0 where it was not loaded."""
        return self._spent.get(("loading", (model,), ""), _SpentTime()).wall

    def seconds_per_load(self) -> float:
        """Wall-clock seconds that loading a model took, on average; 0 where none was loaded."""
        spent = [of.wall for (name, *_), of in self._spent.items() if name == "loading"]
        return sum(spent) / self.loads if self.loads else 0.0

    def resources(self) -> Resources:
        """What was counted up to now."""
        self._charge()
        phases: dict[tuple[PhaseName, tuple[str, ...]], _SpentTime] = {}
        for (name, models, _), spent in self._spent.items():
            whole = phases.setdefault((name, models), _SpentTime())
            whole.wall += spent.wall
            whole.cpu += spent.cpu
        workers = [getattr(scorer, "peak_memory", None) for scorer in self._scorers]
        return Resources(
            phases=tuple(
                Phase(phase=name, models=models, wall_seconds=of.wall, cpu_seconds=of.cpu)
                for (name, models), of in phases.items()
            ),
            answers=self._answers(),
            wall_seconds=sum(of.wall for of in phases.values()),
            cpu_seconds=sum(of.cpu for of in phases.values()),
            children_cpu_seconds=_children_cpu() - self._children,
            peak_memory=peak_memory(),
            worker_peak_memory=max((peak for peak in workers if peak is not None), default=None),
            device_peak_memory=peak_device_memory(),
        )

    def _answers(self) -> tuple[AnswerCounts, ...]:
        return tuple(
            AnswerCounts(
                model=model,
                documents=sum(work.documents for work in works),
                kept=sum(work.kept for work in works),
                tokens=None
                if any(work.hidden for work in works)
                else sum(work.tokens.total() for work in works),
            )
            for model in dict.fromkeys(model for model, _ in self._work)
            for works in [[work for (of, _), work in self._work.items() if of == model]]
        )

    @staticmethod
    def _feed(work: _TaskWork, block: RequestBlock, responses: Sequence[Response]) -> None:
        for request, response in zip(block.requests, responses, strict=True):
            work.tokens[request.doc_id] += response.n_tokens
        work.hidden = work.hidden or any(response.n_tokens == 0 for response in responses)

    def _charge(self) -> None:
        now = self.wall(), self.cpu()
        spent = self._spent.setdefault(self._inside[-1], _SpentTime())
        spent.wall += now[0] - self._mark[0]
        spent.cpu += now[1] - self._mark[1]
        self._mark = now


def _children_cpu() -> float:
    """CPU seconds of child processes that have ended."""
    times = os.times()
    return times.children_user + times.children_system
