from __future__ import annotations

import warnings

import numpy as np
import pytest
import sklearn.metrics
from hypothesis import given
from hypothesis import strategies as st

from evalguard.core.scores import rescoring

RNG = np.random.default_rng(4)


def mean(items):
    return sum(items) / len(items)


def of_sklearn(function):
    def aggregate(items):
        gold, predicted = zip(*items, strict=True)
        return function(gold, predicted)

    return aggregate


F1 = of_sklearn(sklearn.metrics.f1_score)
MATTHEWS = of_sklearn(sklearn.metrics.matthews_corrcoef)


def test_the_aggregation_sees_the_items_of_the_rows_as_often_as_they_are_named():
    made = rescoring([1.0, 2.0, 6.0], "mine", mean)
    assert made.metric(np.array([0, 2, 2, 1])) == 15.0 / 4.0
    assert made.picked(np.array([2, 0])).metric(np.array([0, 0, 1])) == 13.0 / 3.0


def test_equal_items_have_equal_digests_whatever_holds_them():
    one = rescoring([(1, 0.5), {"a": 1}], "mine", len)
    other = rescoring([[np.int64(1), np.float64(0.5)], {"a": 1}], "mine", len)
    assert one.items == other.items
    assert one.items[0] != one.items[1]
    assert one.picked(np.array([1])).items == one.items[1:]


def test_costly_aggregations_are_resampled_less():
    assert rescoring([1.0], "median", mean).resamples == 2_000
    assert rescoring([1.0], "bleu", mean).resamples == 200


def test_warnings_of_an_aggregation_stay_inside():
    def warns(items):
        warnings.warn("no positives", stacklevel=1)
        return 0.0

    assert rescoring([1.0], "mine", warns).metric(np.array([0])) == 0.0


def test_an_aggregation_that_fails_fails_at_once():
    with pytest.raises(ZeroDivisionError):
        rescoring([1.0], "mine", lambda items: 1 / 0)


@pytest.mark.parametrize(("name", "aggregate"), [("f1", F1), ("matthews_corrcoef", MATTHEWS)])
@given(pairs=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=30))
def test_counted_f1_and_matthews_are_scikit_learns(name, aggregate, pairs):
    made = rescoring(pairs, name, aggregate)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = aggregate(pairs)
    assert made.metric(np.arange(len(pairs))) == pytest.approx(expected, abs=1e-12)


def test_matthews_of_many_classes_is_scikit_learns_and_is_counted():
    pairs = [tuple(pair) for pair in RNG.integers(0, 5, (200, 2)).tolist()]
    calls = []

    def aggregate(items):
        calls.append(len(items))
        return MATTHEWS(items)

    made = rescoring(pairs, "matthews_corrcoef", aggregate)
    before = len(calls)
    for _ in range(20):
        rows = RNG.integers(0, 200, 200)
        expected = MATTHEWS([pairs[row] for row in rows])
        assert made.metric(rows) == pytest.approx(expected, abs=1e-12)
    assert len(calls) == before


def test_another_function_under_a_known_name_is_used_itself():
    pairs = [tuple(pair) for pair in RNG.integers(0, 2, (50, 2)).tolist()]

    def macro(items):
        gold, predicted = zip(*items, strict=True)
        return sklearn.metrics.f1_score(gold, predicted, average="macro")

    made = rescoring(pairs, "f1", macro)
    assert made.metric(np.arange(50)) == macro(pairs)


@pytest.mark.parametrize(
    "items",
    [[1.0, 2.0], [(0, 1), (0, 1, 1)], [([0], [1]), ([1], [1])], [(0.5, 1), (1, 1)], [{"a": 1}] * 2],
    ids=["numbers", "lengths", "lists", "shares", "mappings"],
)
def test_items_that_are_no_classes_are_left_to_the_aggregation(items):
    made = rescoring(items, "f1", lambda chosen: float(len(chosen)))
    assert made.metric(np.array([0, 0, 1])) == 3.0


def test_items_that_json_cannot_hold_have_digests_too():
    one, other = {(1, 2): 3.0}, {(1, 2): 4.0}
    made = rescoring([one, other, dict(one)], "mine", len)
    assert made.items[0] == made.items[2] != made.items[1]
