"""Of a stored side, a sequential run keeps the documents that it drew: scores and answers."""

from __future__ import annotations

import numpy as np

from evalguard.comparison.draws import TaskSample, only_sampled
from evalguard.core.compare_report import RunIdentity
from evalguard.core.scores import ScoreTable
from evalguard.engine.scored_side import ScoredSide
from evalguard.harness.score_tables import TaskScores

ORDER = (4, 2, 0, 1, 3)


def stored() -> ScoredSide:
    table = ScoreTable(
        task="t", filter="none", metric="acc", aggregation="mean", higher_is_better=True,
        doc_ids=np.arange(5), values=np.arange(5.0),
        doc_hashes=tuple("abcde"), prompt_hashes=tuple("abcde"), target_hashes=tuple("abcde"),
    )  # fmt: skip
    samples = tuple({"doc_id": number, "text": [f"said {number}"]} for number in range(5))
    of_task = TaskScores(task="t", tables=(table,), not_compared=(), samples=samples)
    identity = RunIdentity(name="orig", digest="d", kind="stored run")
    return ScoredSide(identity=identity, tables=(table,), samples={"t": of_task})


def test_documents_that_were_not_drawn_are_left_out_of_scores_and_answers() -> None:
    draw = TaskSample(task="t", order=ORDER, looks=(3, 5), place=0)
    kept = only_sampled(stored(), {"t": draw})
    assert [row["doc_id"] for row in kept.samples["t"].samples] == [0, 2, 4]
    assert kept.tables[0].doc_ids.tolist() == [0, 2, 4]
    assert kept.samples["t"].tables[0].values.tolist() == [0.0, 2.0, 4.0]


def test_where_all_were_drawn_and_of_other_tasks_nothing_is_left_out() -> None:
    draw = TaskSample(task="t", order=ORDER, looks=(3, 5), place=1)
    assert len(only_sampled(stored(), {"t": draw}).samples["t"].samples) == 5
    assert len(only_sampled(stored(), {}).samples["t"].samples) == 5
