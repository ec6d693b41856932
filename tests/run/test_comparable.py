from __future__ import annotations

import numpy as np

from evalguard.comparison.table_comparisons import (
    compare_by_document,
    drop_incomparable,
    split_comparable,
)
from evalguard.core.gate import Gate
from evalguard.core.scores import NotCompared, ScoreTable, rescoring
from evalguard.errors import EvaluationError

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
    assert drop_incomparable([table()], [left]) == ()
    assert len(drop_incomparable([table()], [])) == 1
    other = NotCompared(task="mine", metric="best", filter="strict", reason="another filter")
    assert len(drop_incomparable([table()], [other])) == 1


def of_categories(chosen):
    """As bbq's: a number for each category, and none where one is missing."""
    by_category = {kind: [value for other, value in chosen if other == kind] for kind in "ab"}
    if not all(by_category.values()):
        raise EvaluationError("aggregation 'best': ZeroDivisionError: division by zero")
    return sum(sum(values) / len(values) for values in by_category.values())


def in_categories(of_a: int, *, shift: float = 0.0) -> ScoreTable:
    """``of_a`` documents of the rarer of two categories."""
    items = [("a" if at < of_a else "b", value + shift) for at, value in enumerate(ITEMS)]
    return table(of_categories, items)


def compared(base, candidate):
    return split_comparable(compare_by_document([base], [candidate], gate=Gate()))


def test_resamples_without_a_category_are_left_out_and_that_is_said():
    ((found,), left_out) = compared(in_categories(3), in_categories(3, shift=-0.5))
    assert left_out == ()
    assert found.comparison.sigma_interval is not None
    assert any("of the resamples have no number" in text for text in found.comparison.caveats)


def test_a_category_in_too_few_documents_leaves_the_metric_out_and_not_failed():
    kept, (left,) = compared(in_categories(1), in_categories(1, shift=-0.5))
    assert kept == ()
    assert (left.task, left.metric) == ("mine", "best")
    assert "of the resamples of these 30 documents" in left.reason


def test_a_metric_without_a_number_on_both_sides_is_left_out_and_on_one_side_failed():
    without = table(lambda chosen: float("nan"), ITEMS[::-1])
    kept, (left,) = compared(table(lambda chosen: float("nan")), without)
    assert kept == ()
    assert "on either side" in left.reason
    (failed,), left_out = compared(table(max), without)
    assert (failed.comparison.outcome, left_out) == ("failed", ())
