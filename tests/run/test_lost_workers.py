"""What a lost machine was asked is asked elsewhere, and nothing is asked for ever."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Sequence

import pytest
from fake_models import FakeScorer
from probe_works import work

from evalguard.core.question import Loads
from evalguard.core.scorer import Request, Response, Scorer
from evalguard.engine.slots import FailedWork, FinishedUnit, WorkerPool
from evalguard.engine.sources import ModelSource
from evalguard.errors import WorkerEnd, WorkerError


class Machines:
    """Places for models, of which some are lost, or not there.

    ``fate`` says of the nth load how it goes: "" well, "unplaced", or "lost" with its first block.
    """

    def __init__(self, fate: Callable[[int], WorkerEnd]) -> None:
        self.fate = fate
        self.loads = itertools.count()
        self.lock = threading.Lock()
        self.ends: list[WorkerEnd] = []

    def open(self) -> Switching:
        return Switching(self)

    def place(self) -> WorkerEnd:
        with self.lock:
            self.ends.append(self.fate(next(self.loads)))
            return self.ends[-1]


class Losing(FakeScorer):
    def score(self, requests: Sequence[Request]) -> list[Response]:
        raise WorkerError("was lost with its Ray actor", cause="lost")


class Switching:
    loads = Loads(started=1)

    def __init__(self, machines: Machines) -> None:
        self.machines = machines
        self.scorer: Scorer | None = None

    def at(self, source: ModelSource) -> Scorer:
        if self.scorer is None:
            end = self.machines.place()
            if end == "unplaced":
                raise WorkerError("no machine has room", cause="unplaced")
            self.scorer = Losing(source.name) if end == "lost" else FakeScorer(source.name)
        return self.scorer

    def close(self) -> None:
        self.scorer = None


def run(machines: Machines, *, jobs: int, blocks: int = 6) -> tuple[Counter[str], list[FailedWork]]:
    runner = WorkerPool(machines.open, jobs=jobs, recovers=True)
    try:
        events = list(runner.run([work("a", blocks)]))
    finally:
        runner.close()
    scored = [event for event in events if isinstance(event, FinishedUnit)]
    failed = [event for event in events if isinstance(event, FailedWork)]
    return Counter(event.answer.unit.block.digest for event in scored), failed


@pytest.mark.parametrize("jobs", [1, 2, 4])
def test_the_block_of_a_lost_machine_is_scored_once_and_elsewhere(jobs: int) -> None:
    machines = Machines(lambda number: "lost" if number == 0 else "")
    scored, failed = run(machines, jobs=jobs)
    assert failed == []
    assert scored == dict.fromkeys(scored, 1)
    assert len(scored) == 6
    assert machines.ends.count("lost") == 1


def test_where_there_is_room_for_one_alone_it_does_everything() -> None:
    first = threading.Event()

    def fate(number: int) -> WorkerEnd:
        if number == 0:
            first.set()
            return ""
        first.wait(300)
        return "unplaced"

    scored, failed = run(Machines(fate), jobs=3)
    assert failed == []
    assert len(scored) == 6


def test_a_machine_that_is_lost_when_no_other_has_room_ends_the_work_in_the_end() -> None:
    machines = Machines(lambda number: "lost" if number == 0 else "unplaced")
    scored, (failed,) = run(machines, jobs=2)
    assert not scored
    assert isinstance(failed.error, WorkerError)
    assert failed.error.cause == "unplaced"


def test_a_block_that_loses_every_machine_is_not_given_to_all_of_them() -> None:
    machines = Machines(lambda number: "lost")
    _, (failed,) = run(machines, jobs=1, blocks=1)
    assert isinstance(failed.error, WorkerError)
    assert failed.error.cause == "lost"
    assert len(machines.ends) == 4


def test_without_a_cluster_what_is_lost_has_failed() -> None:
    machines = Machines(lambda number: "lost")
    runner = WorkerPool(machines.open, jobs=1)
    (failed,) = list(runner.run([work("a", 3)]))
    runner.close()
    assert isinstance(failed, FailedWork)
    assert machines.ends == ["lost"]


def test_a_question_is_asked_elsewhere_too() -> None:
    machines = Machines(lambda number: "unplaced" if number == 0 else "")
    runner = WorkerPool(machines.open, jobs=2, recovers=True)
    try:
        assert (
            runner.ask(work("a", 1).source, lambda scorer: scorer.describe().model_type) == "fake"
        )
    finally:
        runner.close()
