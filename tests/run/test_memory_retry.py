"""Memory that holds one model, asked for two: nobody is blamed for who came last."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from fake_models import FakeScorer
from probe_works import source, work

from evalguard.core.question import Loads
from evalguard.core.scorer import ModelDescription, ScoringPolicy
from evalguard.engine.slots import FinishedUnit, WorkerPool
from evalguard.engine.sources import ModelSource
from evalguard.errors import EvalguardError, EvaluationError, WorkerError

FULL = EvaluationError("OutOfMemoryError: CUDA out of memory")
KILLED = WorkerError("was killed by SIGKILL (out of memory?)", cause="killed")


@dataclass
class Memory:
    """Holds so many models at a time, none larger than itself, and refuses the first ``refusals``.

    ``crowd``: whoever comes in first waits until somebody was refused.
    """

    room: int = 1
    error: EvalguardError = FULL
    refusals: int = 0
    crowd: bool = False
    inside: set[str] = field(default_factory=set)
    refused: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, name: str) -> None:
        with self.lock:
            self.refusals -= 1
            if len(self.inside) >= self.room or name == "huge" or self.refusals >= 0:
                self.refused.set()
                raise self.error
            self.inside.add(name)
        if self.crowd:
            assert self.refused.wait(60)


@dataclass
class Model:
    """One slot's model in the memory that all share."""

    memory: Memory
    held: str = ""
    loads: Loads = field(default_factory=lambda: Loads(started=1))

    def at(self, source: ModelSource) -> FakeScorer:
        if source.name != self.held:
            self.close()
            self.memory.take(source.name)
            self.held = source.name
        return FakeScorer(source.name)

    def close(self) -> None:
        self.memory.inside.discard(self.held)
        self.held = ""


Made = Callable[..., tuple[WorkerPool, list[str]]]


@pytest.fixture
def made() -> Any:
    runners: list[WorkerPool] = []

    def make(memory: Memory, jobs: int = 2) -> tuple[WorkerPool, list[str]]:
        said: list[str] = []
        runners.append(WorkerPool(lambda: Model(memory), jobs=jobs, say=said.append))
        return runners[-1], said

    yield make
    for runner in runners:
        runner.close()


def answered(events: Any) -> tuple[list[tuple[str, str]], list[str]]:
    """Which blocks of whom were answered, sorted; and whose work failed."""
    done, failed = [], []
    for event in events:
        if isinstance(event, FinishedUnit):
            done.append((event.work.source.name, event.answer.unit.block.digest))
        else:
            failed.append(event.work.source.name)
    return sorted(done), failed


ALL = [("a", "b0"), ("a", "b1"), ("b", "b0"), ("b", "b1")]


@pytest.mark.parametrize("error", [FULL, KILLED])
def test_two_models_that_memory_does_not_hold_together_are_answered_one_by_one(
    made: Made, error: EvalguardError
) -> None:
    runner, said = made(Memory(error=error, crowd=True))
    works = [work("a"), work("b")]
    events = list(runner.run(works))
    assert answered(events) == (ALL, [])
    assert {id(event.work) for event in events} == {id(one) for one in works}
    assert "from now on one model is asked at a time" in said[0]
    assert runner.jobs == 1
    assert answered(runner.run([work("b"), work("a")])) == (ALL, [])
    assert len(said) == 1


def test_what_needs_more_memory_than_there_is_fails_and_the_others_stay_side_by_side(
    made: Made,
) -> None:
    runner, said = made(Memory(room=2))
    assert answered(runner.run([work("huge"), work("a"), work("b")])) == (ALL, ["huge"])
    assert (runner.jobs, said) == (2, [])


def test_a_worker_that_is_killed_once_is_started_again(made: Made) -> None:
    runner, said = made(Memory(refusals=1, error=KILLED), jobs=1)
    assert answered(runner.run([work("a")])) == (ALL[:2], [])
    assert (runner.jobs, said) == (1, [])


def test_who_is_killed_every_time_has_failed(made: Made) -> None:
    runner, _ = made(Memory(error=KILLED))
    assert answered(runner.run([work("huge"), work("a")])) == (ALL[:2], ["huge"])


def test_without_others_beside_it_memory_that_ran_out_is_believed_at_once(made: Made) -> None:
    runner, _ = made(Memory(), jobs=1)
    assert answered(runner.run([work("huge"), work("a")])) == (ALL[:2], ["huge"])


def test_a_question_for_which_memory_ran_out_is_asked_again_alone(made: Made) -> None:
    met = threading.Barrier(2)

    class Both(Memory):
        """Each lane waits with its first model until the other one has one, too."""

        def take(self, name: str) -> None:
            super().take(name)
            if name in ("b", "c"):
                met.wait(60)

    memory = Both(room=2)
    runner, said = made(memory)
    list(runner.run([work("b", 1), work("c", 1)]))
    assert memory.inside == {"b", "c"}
    memory.room = 1
    assert runner.ask(source("a"), lambda scorer: 7) == 7
    assert "a runs alone" in said[0]
    with pytest.raises(EvaluationError, match="out of memory"):
        runner.ask(source("huge"), lambda scorer: 7)


class Shrunk(FakeScorer):
    """Takes to smaller batches, where it is not alone."""

    def __init__(self, name: str, tokens: int) -> None:
        super().__init__(name)
        self.tokens = tokens

    def describe(self) -> ModelDescription:
        return replace(super().describe(), computation={"token_budget": self.tokens})


def test_smaller_batches_for_want_of_memory_are_tried_again_in_the_right_ones(
    made: Made,
) -> None:
    budgets = iter([512, 1024, 1024])

    class Short(Model):
        def at(self, source: ModelSource) -> Shrunk:
            if source.name != self.held:
                self.tokens, self.held = next(budgets), source.name
            return Shrunk(source.name, self.tokens)

    memory, said = Memory(), list[str]()
    runner = WorkerPool(lambda: Short(memory), jobs=2, say=said.append)
    policy = ScoringPolicy(batch_size=0, token_budget=1024)
    one = replace(work("a", 1), source=replace(source("a"), policy=policy))
    (event,) = runner.run([one])
    runner.close()
    assert isinstance(event, FinishedUnit)
    assert event.description.computation["token_budget"] == 1024
    assert said
