"""The benchmark of the gate draws what its page says, and its oracle is a z test."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.corrections import CORRECTIONS, Correction
from benchmarks.gate_follow_ups import follow_up
from benchmarks.gate_populations import Cell, follow_ups, list_cells
from benchmarks.gate_table import COLUMNS, record, row_of, simulate, tabulate

CELLS = list(list_cells())


def cell(table: str, name: str, n: int, drift: float) -> Cell:
    wanted = (table, name, n, drift)
    return next(c for c in CELLS if (c.table, c.name, c.n, c.drift) == wanted)


def test_no_two_rows_are_of_the_same_population() -> None:
    rows = [(c.table, c.name, c.n, c.drift) for c in CELLS]
    assert len(set(rows)) == len(rows)


@pytest.mark.parametrize("drawn", CELLS[::29], ids=lambda c: f"{c.table} {c.name} {c.n} {c.drift}")
def test_documents_drift_by_so_many_margins_with_the_standard_error_that_is_told(
    drawn: Cell,
) -> None:
    rng = np.random.default_rng(5)
    metric, runs = drawn.metrics[0], 400
    points = np.array([metric.draw(rng, "m").d.mean() for _ in range(runs)])
    expected = drawn.drift * metric.tolerated
    if metric.aggregation == "perplexity":  # a margin is one of the metric: log scale
        expected = float(np.log1p(drawn.drift * np.expm1(metric.tolerated)))
    assert points.mean() == pytest.approx(expected, abs=4.0 * metric.stderr / np.sqrt(runs))
    if "lognormal(2)" not in drawn.name:
        assert points.std() == pytest.approx(metric.stderr, rel=0.2)


def test_every_run_has_one_state_in_every_column() -> None:
    drawn = cell("families", "answers, churn 15%", 500, 3.0)
    found = simulate(drawn, 3)
    assert set(found) == {1, 7, 20}
    for columns in found.values():
        assert set(columns) == set(COLUMNS)
        assert all(sum(states.values()) == 3 for states in columns.values())


def test_a_drift_far_above_the_margin_fails_and_none_passes() -> None:
    worse = simulate(cell("perplexity", "ratio 1/10", 500, 3.0), 5)[1]
    same = simulate(cell("perplexity", "ratio 1/10", 500, 0.0), 5)[1]
    for column in COLUMNS:
        assert worse[column] == {"regressed": 5}
        assert same[column] == {"passed": 5}


def test_what_was_measured_before_stands_beside() -> None:
    drawn = cell("answers, margin 1pp", "churn 15%", 50, 2.0)
    records = list(record(drawn, simulate(drawn, 2), 2))
    lines = list(tabulate(records, {row_of(one): one for one in records}))
    cells = [text.strip() for text in lines[-1].strip("|").split("|")]
    assert cells[:4] == ["churn 15%", "50", "1", "2"]
    assert cells[4:6] == cells[6:8]


def test_an_undecided_run_is_asked_what_it_needs() -> None:
    found = follow_up(next(follow_ups()), 2)
    assert found.longer is not None
    assert found.median_n > found.cell.n


@pytest.mark.parametrize("correction", CORRECTIONS, ids=lambda one: one.name)
def test_a_correction_is_taken_out_of_where_the_package_has_it(correction: Correction) -> None:
    assert all(hasattr(where, name) for where, name, _ in correction.without)
