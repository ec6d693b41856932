"""The report of the calibration is the same on any machine, and marks what is too narrow."""

from __future__ import annotations

import numpy as np
import pytest
from calibration_cells import cells

from benchmarks.calibration import measured, report
from benchmarks.families import false_alarms
from benchmarks.tally import tally


def test_the_same_seed_gives_the_same_rows_on_any_number_of_processes():
    assert measured(["clusters-0-1"], 20, 1) == measured(["clusters-0-1"], 20, 2)


def test_the_report_marks_an_interval_that_is_too_narrow():
    (cell,) = [
        cell
        for cell in cells("mean", n=200)
        if cell.data == "99% identical, the rest losses" and not cell.null
    ]
    found = tally("mean", cell, 60)
    assert found.too_narrow(found.holds)
    text = "\n".join(report([found], 60))
    assert f"**{100 * found.holds.value:.1f}±" in text
    assert "1 rows, 1 with a bold figure" in text


@pytest.mark.slow
def test_what_is_printed_as_a_false_alarm_is_about_what_happens():
    for name, n, simulate in false_alarms():
        rng = np.random.default_rng(6)
        printed, crossed = np.array([simulate(rng) for _ in range(100)]).T
        assert crossed.mean() == pytest.approx(printed.mean(), abs=0.15), (name, n)
