"""Two processes on one cache do each block once, and both have all the scores."""

from __future__ import annotations

import fcntl
import io
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from changed_worlds import Answers, answer_afresh, write_world
from fake_models import FakeScorer, executor, scores_of

from evalguard.core.scorer import Request, Response, Scorer
from evalguard.engine import executor as passage
from evalguard.engine.answer import ScoringJob, answer_unit
from evalguard.engine.block_store import LoadedModel, Unit
from evalguard.engine.executor import Executor
from evalguard.errors import EvaluationError
from evalguard.harness.requests import TaskRequests
from evalguard.harness.tasks import TaskSet
from evalguard.page.progress import ProgressLine
from evalguard.store import leases

BLOCKS = 17  # 300 documents of sw_long, 24 of sw_word


def called_m(scorer: FakeScorer) -> LoadedModel:
    return LoadedModel("m", scorer)


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passage, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(passage, "LONGEST_PAUSE", 0.002)


class Busy(FakeScorer):
    """Does something in the middle of its first block, as another process may."""

    def __init__(self, meanwhile: Callable[[Sequence[Request]], None], **options: object) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self._meanwhile: Callable[[Sequence[Request]], None] | None = meanwhile

    def score(self, requests: Sequence[Request]) -> list[Response]:
        meanwhile, self._meanwhile = self._meanwhile, None
        if meanwhile is not None:
            meanwhile(requests)
        return super().score(requests)


class Stopped(Exception):
    """The other process's turn is over."""


def rounds(monkeypatch: pytest.MonkeyPatch, stop_waiting: int) -> None:
    """Let a waiting process look so many times, and then leave it."""
    looked = [0]

    def sleep(_: float) -> None:
        looked[0] += 1
        if looked[0] >= stop_waiting:
            raise Stopped

    monkeypatch.setattr(passage.time, "sleep", sleep)


def test_what_another_process_is_scoring_is_put_off_across_tasks(
    tasks: TaskSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, said = FakeScorer(), io.StringIO()

    def another_process(requests: Sequence[Request]) -> None:
        rounds(monkeypatch, stop_waiting=3)
        with pytest.raises(Stopped):
            executor(tasks, tmp_path, said).evaluate(LoadedModel("m", other))
        monkeypatch.undo()

    mine = Busy(another_process)
    evaluation = executor(tasks, tmp_path).evaluate(LoadedModel("m", mine))
    assert len(other.scored) == BLOCKS - 1  # all but the block that is held, of both tasks
    assert len(mine.scored) == 1
    assert set(mine.scored) & set(other.scored) == set()
    assert said.getvalue().count("waiting for 18 documents of sw_long that another") == 1
    assert scores_of(evaluation) == scores_of(
        executor(tasks, tmp_path).evaluate(LoadedModel("m", FakeScorer()))
    )
    assert list(evaluation.scores) == ["sw_long", "sw_word"]
    assert not list(tmp_path.rglob("*.lock"))


def test_machines_whose_locks_do_not_reach_each_other_do_each_block_once(
    tasks: TaskSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a network disk with locks that count on one machine only: flock refuses nothing."""
    monkeypatch.setattr(fcntl, "flock", lambda descriptor, how: None)
    other = FakeScorer()

    def another_machine(requests: Sequence[Request]) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(leases, "this_machine", lambda: "another machine")
            rounds(patch, stop_waiting=3)
            with pytest.raises(Stopped):
                executor(tasks, tmp_path).evaluate(LoadedModel("m", other))

    mine = Busy(another_machine)
    evaluation = executor(tasks, tmp_path).evaluate(LoadedModel("m", mine))
    assert len(other.scored) == BLOCKS - 1
    assert len(mine.scored) == 1
    alone = Executor(tasks=tasks, kept=None, progress=ProgressLine(quiet=True))
    assert scores_of(evaluation) == scores_of(alone.evaluate(LoadedModel("m", FakeScorer())))


@pytest.mark.parametrize("end", ["finished", "failed"])
def test_what_was_put_off_is_read_or_scored_when_its_holder_is_done(
    tasks: TaskSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """The other process holds the first block until this one has looked three times."""
    holder = executor(tasks, tmp_path)
    theirs, mine = FakeScorer(), FakeScorer()
    block = holder.blocks(holder.requests("sw_long", theirs))[0]
    looked: list[float] = []
    turn = holder.store.entry(block, called_m(theirs)).kept.locked(
        holder.store.key(theirs), block.digest
    )
    turn.__enter__()

    def sleep(seconds: float) -> None:
        looked.append(seconds)
        if len(looked) == 3:
            if end == "finished":
                answer_unit(Unit(block=block), [theirs], holder.store)
            turn.__exit__(None, None, None)

    monkeypatch.setattr(passage.time, "sleep", sleep)
    evaluation = executor(tasks, tmp_path).evaluate(LoadedModel("m", mine))
    assert len(looked) == 3
    assert len(mine.scored) == (BLOCKS - 1 if end == "finished" else BLOCKS)
    alone = Executor(tasks=tasks, kept=None, progress=ProgressLine(quiet=True))
    assert scores_of(evaluation) == scores_of(alone.evaluate(LoadedModel("m", FakeScorer())))


def test_a_holder_that_does_not_get_on_holds_nobody_up(
    tasks: TaskSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder, said = executor(tasks, tmp_path), io.StringIO()
    mine = FakeScorer()
    block = holder.blocks(holder.requests("sw_word", mine))[0]
    monkeypatch.setattr(passage, "BLOCK_PATIENCE", 0.05)
    with holder.store.entry(block, called_m(mine)).kept.locked(
        holder.store.key(mine), block.digest
    ):
        evaluation = executor(tasks, tmp_path, said).evaluate(LoadedModel("m", mine))
    assert len(mine.scored) == BLOCKS
    assert set(evaluation.scores) == {"sw_long", "sw_word"}
    assert "not getting on with its documents: they are scored here too" in said.getvalue()
    assert evaluation.notes == ()  # it changes no number


def test_a_process_that_fails_keeps_finished_blocks_and_frees_its_own(
    tasks: TaskSet, tmp_path: Path
) -> None:
    failing = FakeScorer(fails={1: EvaluationError("out of memory")})
    with pytest.raises(EvaluationError, match="out of memory"):
        executor(tasks, tmp_path).evaluate(LoadedModel("m", failing))
    assert not list(tmp_path.rglob("*.lock"))
    rest = FakeScorer()
    executor(tasks, tmp_path).evaluate(LoadedModel("m", rest))
    assert len(rest.scored) == BLOCKS - 1


def test_a_model_compared_with_itself_does_not_wait_for_itself(
    tasks: TaskSet, tmp_path: Path
) -> None:
    from evalguard.engine.block_store import lock_blocks

    mine = executor(tasks, tmp_path)
    scorer = FakeScorer()
    block = mine.blocks(mine.requests("sw_word", scorer))[0]
    with lock_blocks(
        [mine.store.entry(block, called_m(scorer)), mine.store.entry(block, called_m(scorer))]
    ) as ours:
        assert ours


def test_all_blocks_or_none_are_held(tasks: TaskSet, tmp_path: Path) -> None:
    from evalguard.engine.block_store import lock_blocks

    mine, theirs = executor(tasks, tmp_path), executor(tasks, tmp_path)
    base, candidate, other = FakeScorer("base"), FakeScorer("cand"), FakeScorer("other")
    block = mine.blocks(mine.requests("sw_word", base))[0]
    with lock_blocks([theirs.store.entry(block, called_m(candidate))]) as first:
        assert first
        with lock_blocks(
            [
                mine.store.entry(block, called_m(base)),
                mine.store.entry(block, called_m(candidate)),
            ]
        ) as both:
            assert not both
        # what was held for a moment is free again
        with lock_blocks(
            [
                theirs.store.entry(block, called_m(base)),
                theirs.store.entry(block, called_m(other)),
            ]
        ) as free:
            assert free


class AskedAhead(FakeScorer):
    """Behind a server, which is asked for blocks before they are waited for."""

    served = object()
    answers_kept = None

    def __init__(self, **options: object) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self.ahead: list[tuple[int, ...]] = []

    def check_unchanged(self) -> None:
        pass

    def ask_ahead(self, blocks: Iterable[Sequence[Request]]) -> None:
        for requests in blocks:
            self.ahead.append(tuple(dict.fromkeys(one.doc_id for one in requests)))


def test_a_server_is_asked_once_for_what_two_processes_want(tasks: TaskSet, tmp_path: Path) -> None:
    one, other = AskedAhead(), AskedAhead()
    first, second = executor(tasks, tmp_path), executor(tasks, tmp_path)
    first.begin(ScoringJob(models=[called_m(one)]))
    second.begin(ScoringJob(models=[called_m(other)]))
    assert len(one.ahead) == BLOCKS
    assert other.ahead == []
    evaluation = first.evaluate(LoadedModel("m", one))
    assert scores_of(second.evaluate(LoadedModel("m", other))) == scores_of(evaluation)
    assert len(one.scored) == BLOCKS
    assert other.scored == []
    assert other.ahead == []


def test_a_server_begins_with_a_task_before_the_next_ones_requests_are_built(
    tasks: TaskSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scorer, asked_before = AskedAhead(), dict[str, int]()
    build = Executor.requests

    def noted(self: Executor, task: str, of: Scorer) -> TaskRequests:
        asked_before.setdefault(task, len(scorer.ahead))
        return build(self, task, of)

    monkeypatch.setattr(Executor, "requests", noted)
    one = executor(tasks, tmp_path)
    one.begin(ScoringJob(models=[called_m(scorer)]))
    first, second = tasks.names
    assert asked_before[first] == 0
    assert asked_before[second] == len(one.blocks(one.requests(first, scorer)))


def test_what_a_process_gives_up_of_a_server_another_one_asks(
    tasks: TaskSet, tmp_path: Path
) -> None:
    one, other = AskedAhead(fails={3: EvaluationError("the server died")}), AskedAhead()
    first, second = executor(tasks, tmp_path), executor(tasks, tmp_path)
    with pytest.raises(EvaluationError, match="the server died"):
        first.evaluate(LoadedModel("m", one))
    second.evaluate(LoadedModel("m", other))
    assert len(other.ahead) == len(other.scored) == BLOCKS - 3


def test_a_run_that_ends_early_holds_no_block_of_a_server(tasks: TaskSet, tmp_path: Path) -> None:
    one, other = AskedAhead(), AskedAhead()
    first, second = executor(tasks, tmp_path), executor(tasks, tmp_path)
    first.begin(ScoringJob(models=[called_m(one)]))
    first.close()
    second.begin(ScoringJob(models=[called_m(other)]))
    assert len(other.ahead) == BLOCKS


@pytest.mark.slow
def test_four_processes_on_one_cache_score_each_block_once_and_give_the_same_answers(
    tiny_llama: Path, tmp_path: Path
) -> None:
    folder = write_world(tmp_path / "world", tiny_llama)
    alone = answer_afresh(folder, tmp_path / "alone", {}, {})

    def answers(_: int) -> Answers:
        return answer_afresh(folder, tmp_path / "shared", {}, {})

    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(answers, range(4)))
    assert [one.told for one in found] == [alone.told] * 4
    assert sum(one.scored for one in found) == alone.scored > 0
    assert not list((tmp_path / "shared").rglob("*.lock"))
    assert not list((tmp_path / "shared").rglob("*.partial"))
