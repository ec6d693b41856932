"""Pairs in a process of their own: what takes it down, or never ends, takes itself alone."""

from __future__ import annotations

import gc
import os
import signal
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from fake_pairs import FakePairs, wait_until

from evalguard.config.options import CompareOptions
from evalguard.errors import EvaluationError, WorkerError
from evalguard.nights import pair_process as pair_worker
from evalguard.nights.night_report import PairNight, build_failed_pair
from evalguard.nights.pair_process import PairRunner, PairWork
from evalguard.worker.messages import Call


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakePairs]:
    """Processes that compare nothing; nothing of them is left."""
    made = FakePairs(tmp_path / "journal", monkeypatch)
    before, family = len(os.listdir("/dev/fd")), children()
    yield made
    assert len(os.listdir("/dev/fd")) <= before  # the collector may have closed some of others
    assert [pid for pid in children() - family if alive(pid)] == []


def work(candidate: str, verdict: PairNight | None = None) -> PairWork:
    return PairWork(
        base="orig",
        candidate=candidate,
        options=CompareOptions(limit=3, include_path=(Path("tasks"),)),
        cwd=Path.cwd(),
        verdict=verdict,
    )


def children() -> set[int]:
    return {one.pid for one in psutil.Process().children(recursive=True)}


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_work_is_the_same_after_its_journey() -> None:
    verdict = PairNight(base="a", candidate="b", state="passed", exit_code=0, reason="all")
    for given in (work("b"), work("b", verdict)):
        assert PairWork.read(given.as_record()) == given


def test_pairs_share_a_process_until_one_gives_no_report(fakes: FakePairs) -> None:
    with PairRunner() as runner:
        states = [runner.run(work(name)).state for name in ("a", "b", "fails", "c")]
    assert states == ["passed", "passed", "failed", "passed"]
    (first, *_), (again, *_), (third, *_), _, (fourth, *_), _ = lines = fakes.told()
    assert [line[1:] for line in lines][3] == ["closed"]
    assert first == again == third != fourth
    assert lines[-1] == [fourth, "closed"]


def test_a_bisection_leaves_its_process_to_nobody(fakes: FakePairs) -> None:
    with PairRunner() as runner:
        verdict = runner.run(work("a"))
        assert runner.run(work("a", verdict)).bisection == "minimal"
        runner.run(work("b"))
    assert [words[1] for words in fakes.told()] == ["asked", "asked", "closed", "asked", "closed"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("candidate", "fate", "cause"),
    [
        ("killed", "was killed by SIGKILL (out of memory?)", "killed"),
        ("segfault", "was killed by SIGSEGV", ""),
        ("exits", "exited with code 7", ""),
        ("garbage", "sent what is not a frame", ""),
        ("damaged", "sent a damaged answer", ""),
    ],
)
def test_what_takes_its_process_down_is_an_error_and_the_next_has_another(
    candidate: str, fate: str, cause: str
) -> None:
    with PairRunner() as runner:
        with pytest.raises(WorkerError, match=r"^its process ") as caught:
            runner.run(work(candidate))
        assert fate in str(caught.value)
        assert caught.value.cause == cause
        assert runner.run(work("a")).state == "passed"


@pytest.mark.slow
def test_what_dies_where_others_were_before_is_tried_once_more_alone(fakes: FakePairs) -> None:
    with PairRunner() as runner:
        runner.run(work("a"))
        assert runner.run(work("killed-if-shared")).state == "passed"
        with pytest.raises(WorkerError):
            runner.run(work("killed"))
    assert fakes.asked() == [
        "a", "killed-if-shared", "killed-if-shared", "killed", "killed",
    ]  # fmt: skip


def test_an_error_of_the_process_itself_says_what_it_is() -> None:
    with PairRunner() as runner, pytest.raises(EvaluationError, match="no such library"):
        runner.run(work("broken"))


def test_an_evalguard_that_was_replaced_while_the_night_ran_compares_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTHER_EVALGUARD", "9.9")
    with PairRunner() as runner, pytest.raises(EvaluationError, match=r"was replaced by 9\.9"):
        runner.run(work("a"))


def late(fakes: FakePairs, candidate: str) -> None:
    """Ask for a pair that hangs; its time is up once it does."""
    with pytest.MonkeyPatch.context() as patch:
        fakes.late_where_one_hangs(patch)
        with PairRunner() as runner, pytest.raises(WorkerError) as caught:
            runner.run(work(candidate), seconds=3600)
    assert caught.value.cause == "late"


def test_a_pair_whose_time_is_up_is_stopped_as_by_ctrl_c(fakes: FakePairs) -> None:
    late(fakes, "hangs")
    assert [words[1] for words in fakes.told()] == ["asked", "hangs", "interrupted"]


def test_one_that_does_not_listen_is_killed_with_all_that_it_started(
    fakes: FakePairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evalguard.engine.own_process.STOP_SECONDS", 0.1)
    late(fakes, "deaf")
    (pid, _, grandchild) = fakes.told()[-1]
    wait_until(lambda: not alive(int(pid)) and not alive(int(grandchild)))


def test_ctrl_c_stops_the_pair_and_goes_on_from_here(fakes: FakePairs) -> None:
    def press() -> None:
        wait_until(fakes.hangs)
        os.kill(os.getpid(), signal.SIGINT)

    presser = threading.Thread(target=press)
    presser.start()
    with PairRunner() as runner, pytest.raises(KeyboardInterrupt):
        runner.run(work("hangs"))
    presser.join()
    assert [words[1] for words in fakes.told()] == ["asked", "hangs", "interrupted"]


def test_a_pair_leaves_no_garbage_to_the_next_in_its_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Model:
        def __init__(self) -> None:
            self.layer = self

    models = []

    def compared(base: str, candidate: str, _: object) -> PairNight:
        models.append(weakref.ref(Model()))
        return build_failed_pair(base, candidate, EvaluationError("no report"))

    monkeypatch.setattr("evalguard.nights.pair_process.compare_pair", compared)
    gc.disable()
    try:
        pair_worker.PairDesk().answer(Call(number=1, name="pair", argument=work("a").as_record()))
        assert models[0]() is None
    finally:
        gc.enable()
