"""Charts put numbers where they belong."""

from __future__ import annotations

import re
from itertools import pairwise
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from evalguard.bisect.bisect_charts import build_probe_tree, draw_settings_strip
from evalguard.nights.trend_plot import TrendLevel, TrendNight, draw_trend
from evalguard.page.charts import LETTER_WIDTH, AxisScale, tick_text
from evalguard.page.html_page import make_tag
from evalguard.report.compare_html import (
    ForestBar,
    ForestPlot,
    draw_histogram,
    draw_quantile_plot,
    draw_share_plot,
)
from evalguard.report.document_table import limit_texts, select_token_documents, share_budget
from evalguard.stats.influence import difference_shape

sizes = st.floats(allow_nan=False, allow_infinity=False)


@given(st.lists(sizes, min_size=1, max_size=20), st.booleans())
@example([1.0240163815189269e104, 0.1], True)
def test_a_scale_holds_its_values_in_their_order(values: list[float], bend: bool) -> None:
    scale = AxisScale.over(values, 10.0, 110.0, bend=bend)
    places = [scale.at(value) for value in sorted(values)]
    assert places == sorted(places)
    assert all(10.0 <= place <= 110.0 for place in places)
    ticks = scale.ticks()
    assert len(ticks) <= 12
    assert all(scale.low <= tick <= scale.high for tick in ticks)


@given(st.floats(0.01, 1000.0), st.floats(0.0, 1.0), st.sampled_from([4, 5, 6, 7]))
def test_an_axis_has_two_numbers_at_least(size: float, part: float, most: int) -> None:
    """Of one, such as 0 between -0.44 and 0.44, nobody knows what a step is."""
    scale = AxisScale(low=-size * part, high=size, start=0.0, stop=280.0)
    assert len(scale.ticks(most)) >= 2
    assert len(scale.ticks(most, letter=LETTER_WIDTH)) >= 2


def test_a_bent_scale_keeps_small_and_large_drifts_apart() -> None:
    scale = AxisScale.over([-0.3, 0.14, 1.0, 28.3], 0.0, 300.0, bend=True)
    assert scale.at(1.0) - scale.at(0.14) > 30.0
    assert {0.0, 1.0, 10.0} <= set(scale.ticks())
    assert AxisScale.over([-0.3, 5.0], 0.0, 300.0, bend=True).bent is False


@given(st.lists(sizes, min_size=1, max_size=9), st.sampled_from([1e-9, 1.0, 1e10]), st.booleans())
def test_the_texts_of_two_ticks_never_touch(values: list[float], size: float, bend: bool) -> None:
    scale = AxisScale.over([value % size for value in values] + [0.0, -size], 0.0, 280.0, bend=bend)
    ticks = scale.ticks(letter=LETTER_WIDTH)
    for one, other in pairwise(ticks):
        letters = (len(tick_text(one)) + len(tick_text(other))) / 2
        assert scale.at(other) - scale.at(one) > letters * LETTER_WIDTH
    assert len(ticks) > 1


@pytest.mark.parametrize("value", [0.01, -3.0, 1e-7])
def test_values_that_are_all_the_same_stand_in_the_middle_of_their_own_size(value: float) -> None:
    scale = AxisScale.over([value] * 3, 0.0, 100.0)
    assert scale.at(value) == pytest.approx(50.0)
    assert scale.at(0.0) < 10.0 or scale.at(0.0) > 90.0


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.5, "0.5"), (-3.0, "-3"), (30_000.0, "30,000"), (2e6, "2e6"), (-1e-7, "-1e-7"), (-0.0, "0")],
)
def test_a_tick_is_as_short_as_it_can_be(value: float, text: str) -> None:
    assert tick_text(value) == text


def test_the_forest_draws_point_interval_zero_and_margin() -> None:
    bar = ForestBar(sigma=1.46, low=1.3, high=1.63, kind="regressed", said="perplexity", margin=1.0)
    forest = ForestPlot.over([bar])
    drawn = ElementTree.fromstring(forest.row(bar))
    point = next(one for one in drawn.iter() if one.tag == "circle")
    rules = {one.get("class"): float(one.get("x1", "")) for one in drawn.iter("line")}
    whisker = next(one for one in drawn.iter("line") if one.get("class") == "whisker")
    x = float(point.get("cx", ""))
    assert rules["zero"] < rules["margin"] < float(whisker.get("x1", "")) < x
    assert x < float(whisker.get("x2", ""))
    assert drawn.get("aria-label") == "perplexity"


def test_each_row_has_its_own_margin_and_the_axis_names_one_that_all_share() -> None:
    own = [
        ForestBar(sigma=0.5, low=0.1, high=0.9, kind="degraded", said=name, margin=margin)
        for name, margin in (("acc", 0.4), ("perplexity", 3.0))
    ]
    forest = ForestPlot.over(own)
    places = [
        next(one.get("x1") for one in ElementTree.fromstring(row).iter("line")
             if one.get("class") == "margin")
        for row in map(forest.row, own)
    ]  # fmt: skip
    assert [float(place or 0.0) for place in places] == [
        pytest.approx(forest.scale.at(margin), abs=0.1) for margin in (0.4, 3.0)
    ]
    assert ">margin<" not in forest.axis()
    assert ">margin<" in ForestPlot.over(own[:1]).axis()


def test_what_is_infinite_reaches_the_end_of_the_axis() -> None:
    inf = float("inf")
    open_ended = ForestBar(
        sigma=1.5, low=0.5, high=inf, kind="regressed", said="perplexity", margin=1.0
    )
    endless = ForestBar(
        sigma=inf, low=5.0, high=inf, kind="regressed", said="perplexity", margin=1.0
    )
    forest = ForestPlot.over([open_ended, endless])
    for bar in (open_ended, endless):
        drawn = ElementTree.fromstring(forest.row(bar))
        whisker = next(one for one in drawn.iter("line") if one.get("class") == "whisker")
        assert float(whisker.get("x2", "")) == forest.scale.stop
    assert "<circle" not in forest.row(endless)
    kinds = [
        [one.get("class") for one in ElementTree.fromstring(forest.row(bar)).iter("polygon")]
        for bar in (open_ended, endless)
    ]
    assert kinds == [["endless"], ["endless", "point"]]


def test_a_metric_without_a_number_has_an_empty_row() -> None:
    bar = ForestBar(sigma=None, low=None, high=None, kind="failed", said="acc failed", margin=1.0)
    row = ForestPlot.over([bar]).row(bar)
    assert "circle" not in row


@given(st.lists(sizes, min_size=2, max_size=60).map(np.array))
def test_pictures_of_any_differences_are_well_formed(values: np.ndarray) -> None:
    shape = difference_shape(values)
    if shape is not None:
        for picture in (draw_histogram(shape), draw_quantile_plot(shape), draw_share_plot(shape)):
            root = ElementTree.fromstring(picture)
            numbers = [one.get("cx", "0") for one in root.iter("circle")]
            assert all(np.isfinite(float(number)) for number in numbers)


def test_the_histogram_has_a_bar_for_every_bin_that_is_not_empty() -> None:
    shape = difference_shape(np.random.default_rng(0).normal(size=500))
    assert shape is not None
    bars = re.findall("<rect", draw_histogram(shape))
    assert len(bars) == sum(count > 0 for count in shape.counts)


def test_a_trend_draws_nights_levels_and_where_they_change() -> None:
    nights = [
        TrendNight(drift=float(n > 4), low=0.0, high=1.0, said=f"night {n}") for n in range(9)
    ]
    nights.append(TrendNight(drift=None))
    drawn = draw_trend(
        nights,
        [TrendLevel(start=0, stop=5, mean=0.0), TrendLevel(start=5, stop=10, mean=1.0)],
        margin=1.0,
        ends=("2026-11-01", "2026-11-10"),
        said="sigma over 10 nights",
    )
    root = ElementTree.fromstring(drawn)
    kinds = [one.get("class") for one in root.iter()]
    assert (kinds.count("point"), kinds.count("level"), kinds.count("change")) == (9, 2, 1)


@pytest.mark.parametrize(("nights", "kind"), [(120, "level"), (121, "night")])
def test_dots_of_many_nights_do_not_hide_their_level(nights: int, kind: str) -> None:
    drawn = draw_trend(
        [TrendNight(drift=0.5)] * nights,
        [TrendLevel(start=0, stop=nights, mean=0.5)],
        margin=1.0,
        ends=("a", "b"),
        said="",
    )
    kinds = [one.get("class") for one in ElementTree.fromstring(drawn)]
    assert next(one for one in kinds if one in ("level", "night")) == kind


def test_a_strip_marks_what_was_at_its_candidate_value_and_what_is_guilty() -> None:
    drawn = draw_settings_strip(("a", "b", "c"), {"a", "b"}, {"b"})
    kinds = [one.get("class") for one in ElementTree.fromstring(drawn).iter("rect")]
    assert kinds == ["at-candidate", "at-candidate guilty", "at-reference"]


def test_text_in_markup_is_escaped_and_numbers_are_short() -> None:
    made = make_tag("text", "<b>&", make_tag("b", "x"), x=1.23456, class_='a"b', none=None)
    assert made == '<text x="1.23" class="a&#34;b">&lt;b&gt;&amp;<b>x</b></text>'


def test_probes_stand_below_the_smallest_that_holds_them() -> None:
    sets = [frozenset(one) for one in ("abcd", "ab", "a", "cd", "abc", "a", "e")]
    laid = [(one.probe, one.depth) for one in build_probe_tree(sets)]
    assert laid == [(0, 1), (1, 2), (2, 3), (5, 3), (3, 2), (4, 2), (6, 1)]


@given(st.lists(st.sets(st.sampled_from("abcdef")).map(frozenset), max_size=25))
def test_every_probe_stands_in_the_tree_once(sets: list[frozenset[str]]) -> None:
    laid = build_probe_tree(sets)
    assert sorted(one.probe for one in laid) == list(range(len(sets)))


def test_all_texts_are_kept_where_there_is_room() -> None:
    assert limit_texts([10, 20, 30], [2, 1, 0], 60) == [None] * 3


def test_what_matters_most_is_kept_whole_and_the_rest_alike() -> None:
    limits = limit_texts([1000] * 100, list(range(99, -1, -1)), 50_000)
    assert limits[99] is None
    assert limits[0] == 250
    kept = sum(1000 if limit is None else limit for limit in limits)
    assert kept <= 50_000


def test_tokens_are_kept_for_those_that_matter_most() -> None:
    assert select_token_documents([10, 10, 10], [1, 2, 0], 20) == [False, True, True]


def test_tasks_share_a_budget_by_their_size() -> None:
    orders = [range(100), range(10)]
    many, few = share_budget(select_token_documents, [[10] * 100, [10] * 10], orders, 220)
    assert (sum(many), sum(few)) == (20, 2)
    assert share_budget(select_token_documents, [[10] * 100, [10] * 10], orders, 1100) == [
        [True] * 100,
        [True] * 10,
    ]


@pytest.mark.parametrize("values", [[5e-324, 0.0], [1e-300, -1e-300], [0.1] * 5])
def test_differences_of_the_strangest_sizes_have_a_histogram(values: list[float]) -> None:
    shape = difference_shape(np.array(values))
    assert shape is not None
    assert sum(shape.counts) == shape.moved
