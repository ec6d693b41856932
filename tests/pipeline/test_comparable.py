from __future__ import annotations

import numpy as np

from evalguard.errors import EvaluationError
from evalguard.gate import Gate
from evalguard.pipeline.judging import comparable, compare_tables
from evalguard.rescoring import rescoring
from evalguard.scores import NotCompared, ScoreTable

N = 30
ITEMS = [float(i % 7) for i in range(N)]


def table(aggregate=max, items=ITEMS) -> ScoreTable:
    hashes = tuple(str(i) for i in range(N))
    return ScoreTable(
        task="mine", filter="none", metric="best", aggregation="other", higher_is_better=True,
        doc_ids=np.arange(N), values=np.zeros(N), rescoring=rescoring(items, "best", aggregate),
        doc_hashes=hashes, prompt_hashes=hashes, target_hashes=hashes,
    )  # fmt: skip


def test_what_the_other_side_could_not_rescore_is_left_out_here_too():
    left = NotCompared(task="mine", metric="best", reason="a stored run does not hold it")
    assert comparable([table()], [left]) == ()
    assert len(comparable([table()], [])) == 1
    other = NotCompared(task="mine", metric="best", filter="strict", reason="another filter")
    assert len(comparable([table()], [other])) == 1


def test_an_aggregation_that_fails_on_a_resample_fails_its_metric_and_no_other():
    def needs_all(chosen):
        if len(set(chosen)) < len(set(ITEMS)) or chosen[0] != ITEMS[0]:
            raise EvaluationError("aggregation 'best': ValueError: only one class")
        return 1.0

    changed = [*ITEMS[:-1], ITEMS[-2]]
    (found,) = compare_tables([table(needs_all)], [table(max, changed)], gate=Gate())
    assert found.outcome == "failed"
    assert "only one class" in found.reason
