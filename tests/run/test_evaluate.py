"""Evaluator: finished blocks are kept, and only what is not kept is scored."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fake_models import FakeScorer, evaluator, scores_of

from evalguard.core.findings import unstored
from evalguard.core.scorer import Response
from evalguard.engine.evaluate import Evaluator
from evalguard.engine.kept_blocks import LoadedModel
from evalguard.engine.work import Unit
from evalguard.errors import EvaluationError, Interrupted, StoreError
from evalguard.harness.requests import documents_of
from evalguard.harness.tasks import TaskSet
from evalguard.store.block_cache import ScoreCache

BLOCKS = 16  # of sw_long: 300 documents


def test_every_document_is_scored_once_in_whole_blocks(tasks: TaskSet) -> None:
    scorer = FakeScorer()
    evaluation = evaluator(tasks, None).evaluate("m", scorer)
    assert len(scorer.scored) == BLOCKS + 1
    assert len(scorer.scored[0]) in (18, 19)
    assert sorted(id for block in scorer.scored[:BLOCKS] for id in block) == list(range(300))
    assert {key[0] for key in scores_of(evaluation)} == {"sw_long", "sw_word"}
    assert evaluation.scores["sw_long"].tables[0].source == "m"


def test_what_is_kept_is_not_scored_again_and_gives_the_same_scores(
    tasks: TaskSet, tmp_path: Path
) -> None:
    first = evaluator(tasks, tmp_path).evaluate("m", FakeScorer())
    again = FakeScorer()
    second = evaluator(tasks, tmp_path).evaluate("under another name", again)
    assert again.scored == []
    assert scores_of(first) == scores_of(second)


def test_another_model_finds_nothing_of_the_first(tasks: TaskSet, tmp_path: Path) -> None:
    evaluator(tasks, tmp_path).evaluate("m", FakeScorer())
    other = FakeScorer("other")
    evaluator(tasks, tmp_path).evaluate("m", other)
    assert len(other.scored) == BLOCKS + 1


def test_of_a_model_without_an_identity_nothing_is_kept_or_held(
    tasks: TaskSet, tmp_path: Path
) -> None:
    for _ in range(2):
        scorer = FakeScorer(cached=False)
        evaluator(tasks, tmp_path).evaluate("m", scorer)
        assert len(scorer.scored) == BLOCKS + 1
    assert list(tmp_path.iterdir()) == []


def test_an_interruption_keeps_finished_blocks_and_the_second_run_scores_the_rest(
    tasks: TaskSet, tmp_path: Path
) -> None:
    stopped = FakeScorer(fails={BLOCKS - 1: KeyboardInterrupt()})
    with pytest.raises(Interrupted, match="interrupted: m on sw_long, 281 of 300") as raised:
        evaluator(tasks, tmp_path).evaluate("m", stopped)
    assert raised.value.hint == (
        "finished blocks of documents are kept; the same command goes on from there"
    )
    rest = FakeScorer()
    evaluation = evaluator(tasks, tmp_path).evaluate("m", rest)
    of_long = {id for block in (*stopped.scored[: BLOCKS - 1], rest.scored[0]) for id in block}
    assert of_long == set(range(300))
    assert len(rest.scored) == 2
    whole = evaluator(tasks, None).evaluate("m", FakeScorer())
    assert scores_of(evaluation) == scores_of(whole)


@pytest.mark.parametrize("cached", [True, False])
def test_where_nothing_is_kept_nothing_is_promised(
    tasks: TaskSet, tmp_path: Path, cached: bool
) -> None:
    stopped = FakeScorer(cached=cached, fails={1: KeyboardInterrupt()})
    with pytest.raises(Interrupted) as raised:
        evaluator(tasks, None if cached else tmp_path).evaluate("m", stopped)
    assert "starts anew" in raised.value.hint


def test_a_damaged_block_is_scored_again_and_said_once(tasks: TaskSet, tmp_path: Path) -> None:
    evaluator(tasks, tmp_path).evaluate("m", FakeScorer())
    for path in list(tmp_path.rglob("*.parquet"))[:2]:
        path.write_bytes(path.read_bytes()[:-20])
    said = io.StringIO()
    both = evaluator(tasks, tmp_path, said=said)
    again = FakeScorer()
    evaluation = both.evaluate("m", again)
    assert len(again.scored) == len(evaluation.notes) == 2
    assert all("scored again" in note for note in evaluation.notes)
    assert said.getvalue().count("scored again") == 2
    assert both.evaluate("m", FakeScorer()).notes == ()


def test_scores_that_cannot_be_kept_are_used_and_said_once(
    tasks: TaskSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def put(*_: object) -> None:
        raise StoreError("the disk is full")

    monkeypatch.setattr(ScoreCache, "put", put)
    full = evaluator(tasks, tmp_path)
    evaluation = full.evaluate("m", FakeScorer())
    (found,) = evaluation.findings
    assert found == unstored("not everything could be kept in the cache: the disk is full")
    assert len(scores_of(evaluation)) > 0
    with pytest.raises(Interrupted) as raised:
        full.evaluate("m", FakeScorer(fails={1: KeyboardInterrupt()}))
    assert "starts anew" in raised.value.hint


def test_answers_that_are_missing_are_an_error_with_both_numbers(tasks: TaskSet) -> None:
    with pytest.raises(EvaluationError, match="18 requests were asked, 5 answers came back"):
        evaluator(tasks, None).evaluate("m", FakeScorer(answers=5))


def test_a_likelihood_of_nan_takes_every_metric_of_its_document(
    tasks: TaskSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    respond = FakeScorer._respond

    def broken(self: FakeScorer, request: object) -> Response:
        if request.doc_id == 3:  # type: ignore[attr-defined]
            return Response(loglikelihood=float("nan"), is_greedy=True, token_hash="x")
        return respond(self, request)  # type: ignore[arg-type]

    monkeypatch.setattr(FakeScorer, "_respond", broken)
    evaluation = evaluator(tasks, None).evaluate("m", FakeScorer())
    for scores in evaluation.scores.values():
        for table in scores.tables:
            assert np.flatnonzero(np.isnan(table.values)).tolist() == [3]


def test_workers_are_given_what_is_not_kept_of_all_tasks_or_of_a_part(
    tasks: TaskSet, tmp_path: Path
) -> None:
    """As actors of a cluster: before a comparison its blocks, before a look those of the look."""
    given: list[list[str]] = []

    def note_units(_: Evaluator, model: LoadedModel, units: Sequence[Unit]) -> None:
        assert model.name == "m"
        given.append([unit.block.requests[0].task for unit in units])

    shared = replace(evaluator(tasks, tmp_path), score_ahead=note_units)
    scorer = FakeScorer()
    asked = shared.requests("sw_word", scorer)
    part = documents_of(asked, asked.doc_ids[:5])
    shared.score_requests([part], shared.scoring_of(LoadedModel("m", scorer)))
    shared.evaluate("m", scorer)
    shared.evaluate("m", FakeScorer())
    look, whole, again = given
    assert set(look) == {"sw_word"}
    assert set(whole) == {"sw_long", "sw_word"}
    assert again == []
