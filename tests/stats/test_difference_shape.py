"""The shape of differences says what numpy and scipy say of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from evalguard.stats.influence import difference_shape

values = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=300).map(np.array)


@given(values)
def test_every_document_that_moved_is_in_one_bin(of: np.ndarray) -> None:
    shape = difference_shape(of)
    if shape is None:
        assert not of.any()
        return
    assert sum(shape.counts) == shape.moved == np.count_nonzero(of)
    assert len(shape.edges) == len(shape.counts) + 1
    assert all(a < b for a, b in zip(shape.edges, shape.edges[1:], strict=False))
    assert shape.edges[0] < 0.0 < shape.edges[-1]
    assert 0.0 in shape.edges  # no bin holds better and worse documents


@given(values)
def test_shares_rise_to_all_documents_and_all_change(of: np.ndarray) -> None:
    shape = difference_shape(of)
    if shape is None:
        return
    documents, change = np.array(shape.shares).T
    assert (np.diff(documents) > 0).all()
    assert (np.diff(change) >= -1e-12).all()
    assert documents[-1] == 1.0
    assert change[-1] == pytest.approx(1.0)
    assert (change >= documents - 1e-9).all()  # the most changed come first


def test_differences_from_a_normal_lie_on_a_line() -> None:
    drawn = np.random.default_rng(1).normal(2.0, 3.0, 20_000)
    shape = difference_shape(drawn)
    assert shape is not None
    places, found = np.array(shape.quantiles).T
    inner = np.abs(places) < 2.5
    assert found[inner] == pytest.approx(2.0 + 3.0 * places[inner], abs=0.2)
    expected = stats.norm.cdf(-stats.norm.ppf(0.995)) * 2  # 1% of them beyond 2.576 sd
    assert expected == pytest.approx(0.01)
    assert shape.top == 200


def test_quantiles_are_those_of_scipys_probability_plot() -> None:
    drawn = np.random.default_rng(2).standard_t(3, 101)
    shape = difference_shape(drawn)
    assert shape is not None
    places = stats.norm.ppf((np.arange(101) + 0.5) / 101)
    expected = dict(zip(np.sort(drawn).tolist(), places.tolist(), strict=True))
    assert all(expected[value] == pytest.approx(place) for place, value in shape.quantiles)
    assert shape.quantiles[0][1] == drawn.min()
    assert shape.quantiles[-1][1] == drawn.max()


def test_one_document_in_a_hundred_can_carry_half_of_all_change() -> None:
    drawn = np.full(200, 1.0)
    drawn[:2] = 99.0
    shape = difference_shape(drawn)
    assert shape is not None
    assert (shape.top, shape.top_share) == (2, pytest.approx(0.5))


def test_what_lies_far_outside_is_counted_in_the_end_bins() -> None:
    drawn = np.concatenate([np.linspace(-1, 1, 2001), [1e6]])
    shape = difference_shape(drawn)
    assert shape is not None
    assert shape.above >= 1
    assert shape.edges[-1] < 2.0


def test_without_change_there_is_no_shape() -> None:
    assert difference_shape(np.zeros(10)) is None
    assert difference_shape(np.array([np.nan, np.inf, 0.0])) is None


@given(st.lists(st.floats(-1e6, 1e6).filter(bool), min_size=1, max_size=200).map(np.array))
def test_of_few_documents_none_lies_beyond_the_histogram(of: np.ndarray) -> None:
    shape = difference_shape(of)
    assert shape is not None
    assert (shape.below, shape.above) == (0, 0)


def test_of_many_documents_the_outermost_are_in_the_end_bins() -> None:
    drawn = np.random.default_rng(3).standard_t(2, 4_000)
    shape = difference_shape(drawn)
    assert shape is not None
    assert 10 <= shape.below <= 20
    assert 10 <= shape.above <= 20
