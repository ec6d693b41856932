"""lm-eval's per-document items as values and weights."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalguard.core.document_statistics import NotComparableError, read_items, request_hash
from evalguard.core.settings import digest_of

numbers = st.one_of(st.floats(), st.booleans(), st.integers(-10, 10))


@given(st.lists(numbers, min_size=1))
def test_numbers_are_kept_as_they_are(items: list[float]) -> None:
    found = read_items(items, "mean")
    np.testing.assert_array_equal(found.values, np.array(items, dtype=np.float64))
    assert found.weights is None


@given(st.lists(st.tuples(st.floats(-1e6, 0), st.integers(1, 999)), min_size=1))
@pytest.mark.parametrize("aggregation", ["weighted_perplexity", "bits_per_byte"])
def test_pairs_become_values_and_weights(aggregation: str, items: list[tuple[float, int]]) -> None:
    found = read_items(items, aggregation)
    assert found.aggregation == aggregation
    assert found.weights is not None
    assert list(zip(found.values, found.weights, strict=True)) == items
    assert found.values.flags.c_contiguous


def test_numpy_numbers_count_as_numbers() -> None:
    items = [np.float32(0.5), np.int64(1), np.bool_(True)]
    assert read_items(items, "perplexity").values.tolist() == [0.5, 1.0, 1.0]


def test_nanmean_is_a_mean_unless_it_leaves_documents_out() -> None:
    assert read_items([1.0, 0.0], "nanmean").aggregation == "mean"
    with pytest.raises(NotComparableError, match="leaves out 1 documents"):
        read_items([1.0, math.nan], "nanmean")


@pytest.mark.parametrize(
    ("items", "aggregation", "reason"),
    [
        ([1.0], "f1", "'f1'"),
        ([1.0], "other", "'other'"),
        ([(0, 1)], "mean", "found tuple"),
        (["1"], "mean", "found str"),
        ([None], "perplexity", "found NoneType"),
        ([1.0], "bits_per_byte", "found float"),
        ([(1.0, 2.0, 3.0)], "weighted_perplexity", "found tuple"),
    ],
)
def test_other_items_are_refused_with_a_reason(
    items: list[object], aggregation: str, reason: str
) -> None:
    with pytest.raises(NotComparableError, match=reason):
        read_items(items, aggregation)


def test_what_was_asked_is_told_apart_by_its_texts_and_their_borders():
    choices = [("Q: A:", " yes"), ("Q: A:", " no")]
    same = request_hash(choices)
    assert request_hash([list(arguments) for arguments in choices]) == same
    assert request_hash([*choices[:1], *choices]) == same  # a repeat
    for other in (
        choices[::-1],
        choices[:1],
        [("Q: A:", "yes"), ("Q: A:", "no")],
        [("Q: A: ", "yes"), ("Q: A:", " no")],
    ):
        assert request_hash(other) != same


@given(st.lists(st.lists(st.text(st.characters(codec=None, exclude_categories=())), max_size=3)))
def test_the_hash_of_what_was_asked_is_that_of_its_canonical_json(asked: list[list[str]]) -> None:
    once = [one for at, one in enumerate(asked) if one not in asked[max(0, at - 1) : at]]
    assert request_hash(asked) == digest_of(once)


def test_generation_arguments_are_no_part_of_what_was_asked():
    assert request_hash([("Q:", {"until": ["."]})]) == request_hash([("Q:", {"max_gen_toks": 5})])
