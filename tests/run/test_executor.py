"""Executor: finished blocks are kept, and only what is not kept is scored."""

from __future__ import annotations

import io
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from fake_models import FakeScorer, executor, scores_of
from probe_works import source

from evalguard.core.findings import unstored
from evalguard.core.scorer import Request, Response, ScoringPolicy
from evalguard.engine.answer import ScoringJob
from evalguard.engine.block_store import BlockStore, LoadedModel, Unit
from evalguard.engine.executor import Executor
from evalguard.engine.meter import Meter
from evalguard.engine.slots import ClusterSlots, SlotAnswers, Work, WorkerPool
from evalguard.engine.sources import ModelSource
from evalguard.errors import EvaluationError, Interrupted, StoreError
from evalguard.harness.requests import documents_of
from evalguard.harness.tasks import TaskSet
from evalguard.store.block_cache import ScoreCache

BLOCKS = 16  # of sw_long: 300 documents


def test_every_document_is_scored_once_in_whole_blocks(tasks: TaskSet) -> None:
    scorer = FakeScorer()
    evaluation = executor(tasks, None).evaluate(LoadedModel("m", scorer))
    assert len(scorer.scored) == BLOCKS + 1
    assert len(scorer.scored[0]) in (18, 19)
    assert sorted(id for block in scorer.scored[:BLOCKS] for id in block) == list(range(300))
    assert {key[0] for key in scores_of(evaluation)} == {"sw_long", "sw_word"}
    assert evaluation.scores["sw_long"].tables[0].source == "m"


def test_what_is_kept_is_not_scored_again_and_gives_the_same_scores(
    tasks: TaskSet, tmp_path: Path
) -> None:
    first = executor(tasks, tmp_path).evaluate(LoadedModel("m", FakeScorer()))
    again = FakeScorer()
    second = executor(tasks, tmp_path).evaluate(LoadedModel("under another name", again))
    assert again.scored == []
    assert scores_of(first) == scores_of(second)


def test_another_model_finds_nothing_of_the_first(tasks: TaskSet, tmp_path: Path) -> None:
    executor(tasks, tmp_path).evaluate(LoadedModel("m", FakeScorer()))
    other = FakeScorer("other")
    executor(tasks, tmp_path).evaluate(LoadedModel("m", other))
    assert len(other.scored) == BLOCKS + 1


def test_of_a_model_without_an_identity_nothing_is_kept_or_held(
    tasks: TaskSet, tmp_path: Path
) -> None:
    for _ in range(2):
        scorer = FakeScorer(cached=False)
        executor(tasks, tmp_path).evaluate(LoadedModel("m", scorer))
        assert len(scorer.scored) == BLOCKS + 1
    assert list(tmp_path.iterdir()) == []


def test_an_interruption_keeps_finished_blocks_and_the_second_run_scores_the_rest(
    tasks: TaskSet, tmp_path: Path
) -> None:
    stopped = FakeScorer(fails={BLOCKS - 1: KeyboardInterrupt()})
    with pytest.raises(Interrupted, match="interrupted: m on sw_long, 281 of 300") as raised:
        executor(tasks, tmp_path).evaluate(LoadedModel("m", stopped))
    assert raised.value.hint == (
        "finished blocks of documents are kept; the same command goes on from there"
    )
    rest = FakeScorer()
    evaluation = executor(tasks, tmp_path).evaluate(LoadedModel("m", rest))
    of_long = {id for block in (*stopped.scored[: BLOCKS - 1], rest.scored[0]) for id in block}
    assert of_long == set(range(300))
    assert len(rest.scored) == 2
    whole = executor(tasks, None).evaluate(LoadedModel("m", FakeScorer()))
    assert scores_of(evaluation) == scores_of(whole)


@pytest.mark.parametrize("cached", [True, False])
def test_where_nothing_is_kept_nothing_is_promised(
    tasks: TaskSet, tmp_path: Path, cached: bool
) -> None:
    stopped = FakeScorer(cached=cached, fails={1: KeyboardInterrupt()})
    with pytest.raises(Interrupted) as raised:
        executor(tasks, None if cached else tmp_path).evaluate(LoadedModel("m", stopped))
    assert "starts anew" in raised.value.hint


def test_a_damaged_block_is_scored_again_and_said_once(tasks: TaskSet, tmp_path: Path) -> None:
    executor(tasks, tmp_path).evaluate(LoadedModel("m", FakeScorer()))
    for path in list(tmp_path.rglob("*.parquet"))[:2]:
        path.write_bytes(path.read_bytes()[:-20])
    said = io.StringIO()
    both = executor(tasks, tmp_path, said=said)
    again = FakeScorer()
    evaluation = both.evaluate(LoadedModel("m", again))
    assert len(again.scored) == len(evaluation.notes) == 2
    assert all("scored again" in note for note in evaluation.notes)
    assert said.getvalue().count("scored again") == 2
    assert both.evaluate(LoadedModel("m", FakeScorer())).notes == ()


def test_scores_that_cannot_be_kept_are_used_and_said_once(
    tasks: TaskSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def put(*_: object) -> None:
        raise StoreError("the disk is full")

    monkeypatch.setattr(ScoreCache, "put", put)
    full = executor(tasks, tmp_path)
    evaluation = full.evaluate(LoadedModel("m", FakeScorer()))
    (found,) = evaluation.findings
    assert found == unstored("not everything could be kept in the cache: the disk is full")
    assert len(scores_of(evaluation)) > 0
    with pytest.raises(Interrupted) as raised:
        full.evaluate(LoadedModel("m", FakeScorer(fails={1: KeyboardInterrupt()})))
    assert "starts anew" in raised.value.hint


def test_answers_that_are_missing_are_an_error_with_both_numbers(tasks: TaskSet) -> None:
    with pytest.raises(EvaluationError, match="18 requests were asked, 5 answers came back"):
        executor(tasks, None).evaluate(LoadedModel("m", FakeScorer(answers=5)))


def test_a_likelihood_of_nan_takes_every_metric_of_its_document(
    tasks: TaskSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    respond = FakeScorer._respond

    def broken(self: FakeScorer, request: object) -> Response:
        if request.doc_id == 3:  # type: ignore[attr-defined]
            return Response(loglikelihood=float("nan"), is_greedy=True, token_hash="x")
        return respond(self, request)  # type: ignore[arg-type]

    monkeypatch.setattr(FakeScorer, "_respond", broken)
    evaluation = executor(tasks, None).evaluate(LoadedModel("m", FakeScorer()))
    for scores in evaluation.scores.values():
        for table in scores.tables:
            assert np.flatnonzero(np.isnan(table.values)).tolist() == [3]


class Slots:
    """Two slots in this process, as actors of a cluster; the first one has the open model."""

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.given: list[list[str]] = []
        self.scorers: list[FakeScorer] = []
        self.pool: WorkerPool | None = None
        self.closed = 0

    def begin(self, model: LoadedModel, units: Sequence[Unit], store: BlockStore) -> SlotAnswers:
        assert model.source is not None
        self.given.append([unit.block.requests[0].task for unit in units])
        self.pool = self.pool or WorkerPool(lambda: self, jobs=2)  # type: ignore[arg-type, return-value]
        work = Work(source=model.source, units=tuple(units))
        return SlotAnswers(self.pool, model, work, store)

    def at(self, source: ModelSource) -> FakeScorer:
        self.scorers.append(FakeScorer(source.name, **self.options))
        return self.scorers[-1]

    def close(self) -> None:
        self.closed += 1


def opened(scorer: FakeScorer) -> LoadedModel:
    return LoadedModel("m", scorer, replace(source("m"), policy=ScoringPolicy()))


def with_slots(tasks: TaskSet, folder: Path, slots: Slots) -> Executor:
    return replace(executor(tasks, folder), slots=cast(ClusterSlots, slots), meter=Meter())


def test_slots_are_given_what_is_not_kept_of_all_tasks_or_of_a_part(
    tasks: TaskSet, tmp_path: Path
) -> None:
    """As actors of a cluster: before a comparison its blocks, before a look those of the look."""
    slots = Slots()
    shared = with_slots(tasks, tmp_path, slots)
    scorer = FakeScorer()
    asked = shared.requests("sw_word", scorer)
    part = documents_of(asked, asked.doc_ids[:5])
    shared.score_requests([part], ScoringJob(models=[opened(scorer)]))
    shared.evaluate(opened(scorer))
    shared.evaluate(opened(FakeScorer()))
    assert [set(one) for one in slots.given] == [{"sw_long", "sw_word"}]


def test_answers_of_slots_are_those_of_one_process_each_counted_once_and_kept(
    tasks: TaskSet, tmp_path: Path
) -> None:
    slots, scorer = Slots(), FakeScorer()
    shared = with_slots(tasks, tmp_path / "shared", slots)
    evaluation = shared.evaluate(opened(scorer))
    alone = executor(tasks, tmp_path / "alone")
    assert scores_of(evaluation) == scores_of(alone.evaluate(opened(FakeScorer())))
    (answers,), (one,) = shared.meter.resources().answers, alone.meter.resources().answers
    assert answers == one
    assert answers.kept == 0
    everyone = [scorer, *slots.scorers]
    assert sum(len(one.scored) for one in everyone) == BLOCKS + 1
    again = FakeScorer()
    executor(tasks, tmp_path / "shared").evaluate(opened(again))
    assert again.scored == []
    assert not list(tmp_path.rglob("*.lock"))


def test_what_fails_in_a_slot_ends_them_and_frees_what_they_were_at(
    tasks: TaskSet, tmp_path: Path
) -> None:
    failing = FakeScorer(fails={1: EvaluationError("it broke")})
    slots = Slots(fails={0: EvaluationError("it broke")})
    with pytest.raises(EvaluationError, match="it broke"):
        with_slots(tasks, tmp_path, slots).evaluate(opened(failing))
    assert slots.closed > 0
    assert not list(tmp_path.rglob("*.lock"))


def test_a_slot_whose_model_is_another_one_is_refused(tasks: TaskSet, tmp_path: Path) -> None:
    begun = threading.Event()

    class Others(Slots):
        def at(self, source: ModelSource) -> FakeScorer:
            begun.set()
            return FakeScorer("another")

    class Patient(FakeScorer):
        def score(self, requests: Sequence[Request]) -> list[Response]:
            assert begun.wait(60)
            return super().score(requests)

    with pytest.raises(EvaluationError, match="is not the model that was loaded first"):
        with_slots(tasks, tmp_path, Others()).evaluate(opened(Patient()))


def test_of_a_model_whose_scores_cannot_be_kept_all_is_answered_here(
    tasks: TaskSet, tmp_path: Path
) -> None:
    slots, scorer = Slots(), FakeScorer(cached=False)
    evaluation = with_slots(tasks, tmp_path, slots).evaluate(opened(scorer))
    assert evaluation.notes == ("m is scored by one actor: its scores cannot be kept",)
    assert (slots.given, len(scorer.scored)) == ([], BLOCKS + 1)
