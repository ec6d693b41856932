"""Metrics that are no mean keep their word where few documents differ."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.few_differing import ROWS, Row, coverage, f1
from evalguard.stats.bootstrap import ENOUGH_DIFFERING, Bootstrap, paired_bootstrap

BASE = np.repeat([0.0, 1.0, 3.0], 20)
CANDIDATE = BASE - np.where(np.arange(60) % 5 == 0, 0.5, 0.0)


def bootstrap(differing: int | None) -> Bootstrap:
    return paired_bootstrap(
        lambda rows: float(np.median(BASE[rows]) + np.mean(BASE[rows])),
        lambda rows: float(np.median(CANDIDATE[rows]) + np.mean(CANDIDATE[rows])),
        60, resamples=200, confidence=0.95, sign=-1, differing=differing,
    )  # fmt: skip


def test_the_interval_is_wider_and_p_larger_the_fewer_documents_differ() -> None:
    alone, several, few = (bootstrap(count).estimate for count in (None, 40, 4))
    assert few.low <= several.low <= alone.low
    assert few.high >= several.high >= alone.high
    assert few.p_value >= several.p_value >= alone.p_value
    assert few.high - few.low > alone.high - alone.low


def test_with_many_that_differ_it_is_the_bootstraps_own() -> None:
    assert bootstrap(ENOUGH_DIFFERING) == bootstrap(None)


@pytest.mark.parametrize("differing", [0, 1, 2, 10, 60])
def test_interval_and_p_value_agree(differing: int) -> None:
    estimate = bootstrap(differing).estimate
    assert (estimate.low > 0.0) == (estimate.p_value <= 0.025)


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_intervals_of_f1_hold_the_truth(row: Row) -> None:
    runs = 200
    alone, joined = coverage(row, f1, runs)
    assert joined >= alone
    assert joined >= 0.93 - 3.0 * np.sqrt(0.93 * 0.07 / runs)
