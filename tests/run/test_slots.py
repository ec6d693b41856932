"""Lanes: every block of every work once, and what fails or hangs ends alone."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
from fake_models import FakeScorer
from hypothesis import given
from hypothesis import strategies as st
from probe_works import source, work

from evalguard.core.question import Loads
from evalguard.engine import slots
from evalguard.engine.slots import (
    FailedWork,
    FinishedUnit,
    Work,
    WorkerPool,
    WorkerSlot,
    WorkSchedule,
)
from evalguard.engine.sources import ModelSource
from evalguard.errors import EvaluationError, WorkerError
from evalguard.worker.process import WorkerProcess


class Fake:
    """Becomes any model; those of ``broken`` cannot be loaded, or fail as they answer."""

    loads = Loads(started=1)

    def __init__(self, broken: tuple[str, ...] = ()) -> None:
        self.broken = broken
        self.closed = 0

    def at(self, source: ModelSource) -> FakeScorer:
        if f"load {source.name}" in self.broken:
            raise EvaluationError(f"{source.name} cannot be loaded")
        fails = {0: ValueError("no")} if f"score {source.name}" in self.broken else {}
        return FakeScorer(source.name, fails=fails)

    def close(self) -> None:
        self.closed += 1


def ran(runner: WorkerPool, works: list[Work]) -> Counter[tuple[str, str]]:
    try:
        return Counter(
            (event.work.source.name, event.answer.unit.block.digest)
            for event in runner.run(works)
            if isinstance(event, FinishedUnit)
        )
    finally:
        runner.close()


@pytest.mark.parametrize("jobs", [1, 2, 5])
def test_every_block_of_every_work_is_answered_once(jobs: int) -> None:
    works = [work("a", 3), work("b", 1), work("c", 7)]
    found = ran(WorkerPool(Fake, jobs=jobs), works)
    wanted = {(one.source.name, of.block.digest) for one in works for of in one.units}
    assert found == dict.fromkeys(wanted, 1)


@pytest.mark.parametrize("jobs", [1, 3])
@pytest.mark.parametrize(("broken", "loaded"), [("load b", False), ("score b", True)])
def test_a_failure_ends_its_work_and_no_other(jobs: int, broken: str, loaded: bool) -> None:
    runner = WorkerPool(lambda: Fake((broken,)), jobs=jobs)
    events = list(runner.run([work("a", 2), work("b", 4), work("c", 2)]))
    runner.close()
    failed = [event for event in events if isinstance(event, FailedWork)]
    assert {event.work.source.name for event in failed} == {"b"}
    assert all(event.loaded is loaded for event in failed)
    done = Counter(event.work.source.name for event in events if isinstance(event, FinishedUnit))
    assert (done["a"], done["c"]) == (2, 2)


def test_one_question_may_be_asked_of_a_model_and_its_error_is_the_callers() -> None:
    runner = WorkerPool(lambda: Fake(("load b",)), jobs=2)
    assert runner.ask(source("a"), lambda scorer: scorer.describe().identity) == {"weights": "a"}
    with pytest.raises(EvaluationError, match="b cannot be loaded"):
        runner.ask(source("b"), lambda scorer: scorer.describe())
    assert runner.ask(source("a"), lambda scorer: 7) == 7
    runner.close()
    runner.close()


def test_who_stops_listening_gets_no_further_blocks_answered() -> None:
    asked: list[tuple[int, ...]] = []

    class Slow(FakeScorer):
        def score(self, requests: Any) -> Any:
            asked.append(tuple(request.doc_id for request in requests))
            time.sleep(0.02)
            return super().score(requests)

    class Model(Fake):
        def at(self, source: ModelSource) -> FakeScorer:
            return Slow(source.name)

    runner = WorkerPool(Model, jobs=1)
    events = runner.run([work("a", 500)])
    next(events)
    events.close()
    before = len(asked)
    time.sleep(0.1)
    assert before < 500
    assert len(asked) == before
    assert ran(runner, [work("b", 2)]).total() == 2


class Stuck(Fake):
    """Waits for a worker process that never answers."""

    log = Path()

    def at(self, source: ModelSource) -> FakeScorer:
        if source.name != "stuck":
            return super().at(source)
        sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
        process = WorkerProcess(sleep, env={}, log=self.log)
        try:
            os.read(process.replies_fd, 1)
        finally:
            process.kill()
        raise WorkerError("closed its pipe", cause="killed")


def test_a_probe_that_takes_far_longer_than_any_before_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "LEAST", 0.5)
    monkeypatch.setattr(Stuck, "log", tmp_path / "log")
    runner = WorkerPool(Stuck, jobs=2)
    list(runner.run([work("a", 1)]))
    events = list(runner.run([work("stuck", 2), work("b", 2)]))
    runner.close()
    (failed,) = [event for event in events if isinstance(event, FailedWork)]
    assert isinstance(failed.error, WorkerError)
    assert failed.error.cause == "late"
    assert "far longer than any probe before" in str(failed.error)
    assert sum(isinstance(event, FinishedUnit) for event in events) == 2


def test_a_first_probe_that_never_ends_is_ended_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "UNKNOWN_PATIENCE", 0.5)
    monkeypatch.setattr(Stuck, "log", tmp_path / "log")
    runner = WorkerPool(Stuck)
    (failed,) = list(runner.run([work("stuck", 2)]))
    with pytest.raises(WorkerError, match="none before it says how long") as caught:
        runner.ask(source("stuck"), lambda scorer: scorer.describe())
    runner.close()
    assert isinstance(failed, FailedWork)
    for error in (failed.error, caught.value):
        assert isinstance(error, WorkerError)
        assert error.cause == "late"
        assert "run: {timeout: SECONDS}" in error.hint


def test_an_error_after_a_probe_that_ended_just_in_time_is_its_own() -> None:
    slot, out = WorkerSlot(1, lambda: Fake(("load b",))), SimpleQueue[Any]()
    slot.overdue = "far longer than any probe before it"
    slot.ask(source("b"), lambda _: None, out)
    assert str(out.get(timeout=60)) == "b cannot be loaded"
    slot.stop()
    slot.thread.join(60)


def test_a_question_may_take_as_long_as_it_likes_once_the_model_is_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slots, "UNKNOWN_PATIENCE", 0.1)
    monkeypatch.setattr(slots, "POLL_SECONDS", 0.05)
    runner = WorkerPool(Fake)
    assert runner.ask(source("a"), lambda scorer: time.sleep(0.5) or 7) == 7
    runner.close()


def test_stopping_kills_the_workers_that_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Stuck, "log", tmp_path / "log")
    before = threading.enumerate()
    runner = WorkerPool(Stuck, jobs=2)
    events = runner.run([work("stuck", 1), work("b", 3)])
    next(events)
    events.close()
    runner.close()
    assert [thread for thread in threading.enumerate() if thread not in before] == []


@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    lanes=st.integers(1, 6),
    turns=st.lists(st.integers(0, 5), max_size=200),
    costs=st.tuples(st.floats(0, 9), st.floats(0, 9)),
)
def test_whichever_lane_is_next_every_block_is_taken_once(
    sizes: list[int], lanes: int, turns: list[int], costs: tuple[float, float]
) -> None:
    works = [work(f"w{number}", size) for number, size in enumerate(sizes)]
    schedule = WorkSchedule(works, loading=costs[0], scoring=costs[1])
    before: dict[int, Work | None] = dict.fromkeys(range(lanes))
    resting: set[int] = set()
    taken: list[tuple[str, str]] = []
    for turn in [*turns, *range(lanes)] * 60:
        lane = turn % lanes
        if lane in resting:
            continue
        last = before[lane]
        found = schedule.take(None if last is None else last.source, last)
        if found is None:
            resting.add(lane)
            continue
        before[lane] = found[0]
        taken.append((found[0].source.name, found[1].block.digest))
    assert sorted(taken) == sorted((w.source.name, u.block.digest) for w in works for u in w.units)


def test_a_lane_helps_only_where_that_is_worth_loading() -> None:
    slow_to_load = WorkSchedule([work("a", 4)], loading=100.0, scoring=1.0)
    assert slow_to_load.take(None, None) is not None
    assert slow_to_load.take(None, None) is None
    quick_to_load = WorkSchedule([work("a", 4)], loading=0.1, scoring=1.0)
    assert quick_to_load.take(None, None) is not None
    assert quick_to_load.take(None, None) is not None


def test_loads_of_all_lanes_are_counted_together() -> None:
    both = threading.Barrier(2, timeout=60.0)

    class Meeting(Fake):
        def at(self, source: ModelSource) -> FakeScorer:
            if source.name in ("a", "b"):
                both.wait()
            return super().at(source)

    runner = WorkerPool(Meeting, jobs=2)
    assert runner.loads == Loads()
    ran(runner, [work("a", 1), work("b", 1)])
    assert runner.loads == Loads(started=2)
    runner.close()
