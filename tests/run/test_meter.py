"""The meter: whose time it is, what was answered, and the pace that follows from it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from evalguard.core.scorer import Request, Response
from evalguard.engine.meter import Meter, TaskPace
from evalguard.harness.request_blocks import RequestBlock


class Clock:
    """Seconds that a test lets pass."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def meter(clock: Clock) -> Meter:
    return Meter(wall=clock, cpu=lambda: clock.now / 2.0)


def block(task: str, documents: Sequence[int]) -> RequestBlock:
    requests = tuple(
        Request(task=task, doc_id=doc_id, index=0, kind="loglikelihood", arguments=("a", "b"))
        for doc_id in documents
    )
    return RequestBlock(index=0, requests=requests, digest=task, doc_ids=tuple(documents))


def count(meter: Meter, model: str, task: str, *tokens: int, kept: bool = False) -> None:
    """Count a block of a task: tokens of its documents, from the first on."""
    told = tuple(Response(n_tokens=n) for n in tokens)
    meter.count(model, block(task, range(len(tokens))), told, kept=kept)


def test_time_belongs_to_the_innermost_phase(meter: Meter, clock: Clock) -> None:
    clock.now += 1.0
    with meter.phase("scoring", ("a", "b"), "t"):
        clock.now += 2.0
        with meter.phase("loading", ("b",)):
            clock.now += 4.0
        clock.now += 8.0
    clock.now += 16.0
    resources = meter.resources()
    seconds = {(one.phase, one.models): one.wall_seconds for one in resources.phases}
    assert seconds == {
        ("preparing", ()): 17.0,
        ("scoring", ("a", "b")): 10.0,
        ("loading", ("b",)): 4.0,
    }
    assert resources.wall_seconds == 31.0
    assert resources.cpu_seconds == 15.5


def test_a_phase_ends_when_it_fails(meter: Meter, clock: Clock) -> None:
    def fail() -> None:
        with meter.phase("scoring", ("a",)):
            clock.now += 1.0
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    clock.now += 3.0
    assert meter.resources().seconds("scoring") == 1.0
    assert meter.resources().seconds("preparing") == 3.0


def test_tasks_of_one_model_are_one_phase_of_the_report(meter: Meter, clock: Clock) -> None:
    for task in ("t", "u"):
        with meter.phase("scoring", ("a",), task):
            clock.now += 1.0
    assert [one.wall_seconds for one in meter.resources().phases if one.phase == "scoring"] == [2.0]


def test_kept_answers_cost_no_tokens_and_no_pace(meter: Meter, clock: Clock) -> None:
    with meter.phase("scoring", ("a",), "t"):
        clock.now += 6.0
        count(meter, "a", "t", 10, 20)
        count(meter, "a", "t", *[10] * 6, kept=True)
    (answers,) = meter.resources().answers
    assert (answers.documents, answers.kept, answers.tokens) == (8, 6, 30)
    assert meter.seconds_per_document("a", "t") == 3.0
    assert meter.resources().tokens_per_second == 5.0
    assert meter.resources().kept_share == 0.75


def test_where_all_was_kept_no_pace_is_known(meter: Meter) -> None:
    count(meter, "a", "t", *[10] * 6, kept=True)
    assert meter.seconds_per_document("a", "t") is None
    assert meter.seconds_per_document("unheard-of", "t") is None
    assert meter.resources().tokens_per_second is None


def test_hidden_tokens_are_not_counted_as_none_at_all(meter: Meter) -> None:
    count(meter, "a", "t", 0, 5)
    count(meter, "b", "t", 5)
    assert [one.tokens for one in meter.resources().answers] == [None, 5]
    assert meter.resources().tokens is None


def test_each_model_has_its_own_share_of_a_block(meter: Meter) -> None:
    count(meter, "a", "t", 3, kept=True)
    count(meter, "b", "t", 4)
    assert [(one.kept, one.tokens) for one in meter.resources().answers] == [(1, 0), (0, 4)]


def test_models_that_start_over_keep_the_time_and_forget_the_answers(
    meter: Meter, clock: Clock
) -> None:
    for seconds in (6.0, 1.0):
        meter.start_over()
        with meter.phase("scoring", ("a",), "t"):
            clock.now += seconds
            count(meter, "a", "t", 10, 20)
    assert meter.resources().seconds("scoring") == 7.0
    assert [one.documents for one in meter.resources().answers] == [2]
    assert meter.seconds_per_document("a", "t") == 0.5


def test_the_pace_of_a_task_has_the_tokens_of_each_document(meter: Meter, clock: Clock) -> None:
    with meter.phase("loading", ("a",)):
        clock.now += 5.0
    for tokens in ((10, 20), (1, 2)):  # a task that asks in two ways
        with meter.phase("scoring", ("a",), "t"):
            clock.now += 3.0
            count(meter, "a", "t", *tokens)
    pace = meter.pace("a", "t")
    assert pace == TaskPace(seconds=6.0, tokens={0: 11, 1: 22}, hidden=False)
    assert meter.load_seconds("a") == 5.0
    assert meter.pace("a", "u") is None
