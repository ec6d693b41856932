"""Rows of a ladder: KL over several tasks, recovery, and what is not known."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalguard.core.compare_report import CompareReport, RunIdentity
from evalguard.core.distribution_comparison import DistributionComparison, Figure, Percentile
from evalguard.core.gate import Gate
from evalguard.several.ladder import ladder_rows, pool_tasks
from evalguard.several.several_report import NoVerdict


def figure(value: float, low: float, high: float, stderr: float = 0.1) -> Figure:
    return Figure(value=value, stderr=stderr, interval=(low, high))


def task(name: str = "wiki", **changes: Any) -> DistributionComparison:
    fields: dict[str, Any] = {
        "n": 10,
        "positions": 100,
        "top_k": 10,
        "confidence": 0.95,
        "kl": figure(0.02, 0.01, 0.04),
        "kl_percentiles": (Percentile(percent=99.9, figure=figure(0.5, 0.3, 0.9)),),
        "same_top1": figure(0.97, 0.95, 0.98),
    }
    return DistributionComparison(task=name, **{**fields, **changes})


def report(*distributions: DistributionComparison) -> CompareReport:
    return CompareReport(
        created="2026-11-26T00:00:00+00:00",
        base=RunIdentity(name="f16", digest="a"),
        candidate=RunIdentity(name="q4", digest="b"),
        comparisons=(),
        gate=Gate().judge(()),
        exit_code=3,
        distributions=distributions,
    )


def test_the_mean_over_tasks_is_the_mean_over_their_tokens() -> None:
    pooled = pool_tasks([(300, figure(0.01, 0.0, 0.02)), (100, figure(0.05, 0.03, 0.09))])
    assert pooled.value == pytest.approx(0.75 * 0.01 + 0.25 * 0.05)
    # By hand, from the distances of each end, weighted: Zou and Donner (2008), equation 5.
    low, high = pooled.interval or (math.nan, math.nan)
    assert 0.02 - low == pytest.approx(math.hypot(0.75 * 0.01, 0.25 * 0.02))
    assert high - 0.02 == pytest.approx(math.hypot(0.75 * 0.01, 0.25 * 0.04))
    assert pooled.stderr == pytest.approx(math.hypot(0.75 * 0.1, 0.25 * 0.1))


@given(st.lists(st.tuples(st.integers(1, 10**6), st.floats(0, 10), st.floats(0, 5)), min_size=2))
def test_symmetric_intervals_pool_as_normal_ones_do(parts: list[tuple[int, float, float]]) -> None:
    pooled = pool_tasks([(n, figure(v, v - 1.96 * e, v + 1.96 * e, e)) for n, v, e in parts])
    assert pooled.value is not None
    assert pooled.stderr is not None
    assert pooled.interval == pytest.approx(
        (pooled.value - 1.96 * pooled.stderr, pooled.value + 1.96 * pooled.stderr), abs=1e-9
    )


def test_a_single_task_keeps_its_own_figures() -> None:
    one = figure(0.02, 0.01, 0.04)
    assert pool_tasks([(100, one)]) is one


def test_an_error_that_one_task_lacks_is_lacking_over_all() -> None:
    pooled = pool_tasks([(1, figure(1.0, 0.5, 2.0)), (1, Figure(value=3.0))])
    assert (pooled.value, pooled.stderr, pooled.interval) == (2.0, None, None)
    assert pool_tasks([(1, figure(1.0, 0.5, 2.0)), (1, Figure())]) == Figure()
    assert pool_tasks([(1, Figure(value=math.inf)), (1, Figure(value=3.0))]).value == math.inf


def test_bounds_of_an_estimate_stay_bounds() -> None:
    estimated = Figure(value=2.0, bounds=(1.0, 4.0))
    assert pool_tasks([(1, estimated), (3, Figure(value=1.0))]).bounds == (1.0, 1.75)


def test_the_tail_is_that_of_the_task_where_it_is_largest() -> None:
    tail = (Percentile(percent=99.9, figure=figure(2.0, 1.0, 3.0)),)
    (row,) = ladder_rows([report(task(), task("code", kl_percentiles=tail))])
    assert row.kl_tail.value == 2.0


def test_kl_of_other_tasks_than_the_other_rows_is_none() -> None:
    rows = ladder_rows([report(task(), task("code")), report(task())])
    assert rows[0].kl.value == pytest.approx(0.02)
    assert rows[1].kl == Figure()
    assert rows[1].unknown == "code: distributions were not compared"


def test_why_there_is_no_kl_is_said() -> None:
    failed = task(failure="the vocabularies differ")
    gone = NoVerdict(name="int4", reason="there is no model folder")
    rows = ladder_rows([report(), report(failed), gone])
    assert [row.unknown for row in rows] == [
        "distributions were not compared",
        "the vocabularies differ",
        "no verdict: there is no model folder",
    ]
    assert [row.state for row in rows] == ["failed"] * 3
    assert rows[2].size is None
