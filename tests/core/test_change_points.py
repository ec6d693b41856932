"""Change points: false alarms at most as often as stated, steps of 1 and 2 sigma found."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.signal import lfilter

from evalguard.nights.change_points import change_points

NIGHTS = 60
ALPHA = 0.05
Rng = np.random.Generator
Series = tuple[np.ndarray, np.ndarray]


def trending() -> np.ndarray:
    return np.linspace(0.1, 0.4, NIGHTS)


def errors_of_their_own(rng: Rng) -> Series:
    errors = rng.uniform(0.1, 0.4, NIGHTS)
    return errors * rng.normal(size=NIGHTS), errors


def errors_that_grow(rng: Rng) -> Series:
    return trending() * rng.normal(size=NIGHTS), trending()


def errors_that_tell_nothing(rng: Rng) -> Series:
    """The same documents every night: their error is shared, and something else varies."""
    return 0.05 * rng.normal(size=NIGHTS), trending()


def errors_that_jump(rng: Rng) -> Series:
    errors = np.where(np.arange(NIGHTS) < 30, 0.1, 0.5)
    return errors * rng.normal(size=NIGHTS), errors


def heavy_tails(rng: Rng) -> Series:
    return rng.standard_t(3, NIGHTS), np.full(NIGHTS, 0.2)


def few_nights(rng: Rng) -> Series:
    return rng.normal(size=8), np.full(8, 0.2)


def no_errors(rng: Rng) -> Series:
    return rng.normal(size=NIGHTS), np.zeros(NIGHTS)


QUIET = [
    errors_of_their_own,
    errors_that_grow,
    errors_that_tell_nothing,
    errors_that_jump,
    heavy_tails,
    few_nights,
    no_errors,
]


def false_alarms(series: Callable[[Rng], Series], runs: int, *, seed: int) -> float:
    alarms = 0
    for run in range(runs):
        values, errors = series(np.random.default_rng([seed, run]))
        found = change_points(values, errors, alpha=ALPHA, smallest_step=0.0, seed=run)
        alarms += bool(found.points)
    return alarms / runs


def bound(share: float, runs: int) -> float:
    """Three Monte Carlo standard errors above a share."""
    return float(share + 3.0 * np.sqrt(share * (1.0 - share) / runs))


@pytest.mark.parametrize("series", QUIET)
def test_false_alarms_are_at_most_as_often_as_stated(series: Callable[[Rng], Series]) -> None:
    assert false_alarms(series, 100, seed=1) <= bound(ALPHA, 100)


@pytest.mark.slow
@pytest.mark.parametrize("series", QUIET)
def test_false_alarms_over_many_histories(series: Callable[[Rng], Series]) -> None:
    assert false_alarms(series, 2_000, seed=2) <= bound(ALPHA, 2_000)


def persistent(rng: Rng, correlation: float, nights: int = 120) -> Series:
    noise = np.sqrt(1.0 - correlation**2) * rng.normal(size=nights + 100)
    return lfilter([1.0], [1.0, -correlation], noise)[100:], np.full(nights, 0.2)


@pytest.mark.parametrize("correlation", [0.3, 0.6, 0.8])
def test_nights_in_a_row_that_are_alike_are_no_steps(correlation: float) -> None:
    """Of nights that were taken as independent half of all windows alarmed at 0.6."""
    runs = 60
    share = false_alarms(lambda rng: persistent(rng, correlation), runs, seed=4)
    assert share <= bound(0.10, runs)


@pytest.mark.slow
@pytest.mark.parametrize("nights", [60, 120])
@pytest.mark.parametrize("correlation", [0.0, 0.2, 0.4, 0.6, 0.8])
def test_false_alarms_over_many_windows_of_nights_that_are_alike(
    correlation: float, nights: int
) -> None:
    runs = 500
    share = false_alarms(lambda rng: persistent(rng, correlation, nights), runs, seed=5)
    assert share <= bound(0.10, runs)


@pytest.mark.parametrize(
    ("step", "correlation", "least"), [(3.0, 0.3, 0.95), (3.0, 0.6, 0.85), (5.0, 0.8, 0.75)]
)
def test_steps_among_nights_that_are_alike_are_found(
    step: float, correlation: float, least: float
) -> None:
    hits, runs = 0, 40
    for run in range(runs):
        values, errors = persistent(np.random.default_rng([6, run]), correlation)
        values[60:] += step
        hits += bool(change_points(values, errors, alpha=ALPHA, seed=run).points)
    assert hits / runs >= least - 3.0 * np.sqrt(least * (1 - least) / runs)


def test_the_correlation_of_nights_is_seen_around_steps_and_counts_in_their_errors() -> None:
    rng = np.random.default_rng(9)
    alike, errors = persistent(rng, 0.7)
    alone = rng.normal(size=120)
    steps = np.where(np.arange(120) < 60, 0.0, 8.0)
    (first, second) = (change_points(noise + steps, errors) for noise in (alike, alone))
    assert 0.5 < first.correlation < 0.9
    assert second.correlation == 0.0
    assert [len(scan.points) for scan in (first, second)] == [1, 1]
    assert first.points[0].stderr > 1.5 * second.points[0].stderr


def found_steps(step: float, spread: float, at: int, runs: int) -> tuple[float, float, float]:
    """Share of histories in which the step is found, with another one, and within its range."""
    hits = others = within = 0
    for run in range(runs):
        values = spread * np.random.default_rng([3, run]).normal(size=NIGHTS)
        values[at:] += step
        points = change_points(values, np.full(NIGHTS, spread), alpha=ALPHA, seed=run).points
        near = [point for point in points if abs(point.position - at) <= 5]
        hits += bool(near)
        others += len(points) > len(near[:1])
        within += any(point.earliest <= at <= point.latest for point in near)
    return hits / runs, others / runs, within / max(hits, 1)


@pytest.mark.parametrize(
    ("step", "spread", "at", "least"),
    [
        (1.0, 0.3, 30, 0.98),
        (2.0, 0.3, 30, 0.98),
        (1.0, 0.3, 55, 0.95),
        (2.0, 1.0, 30, 0.90),
        (2.0, 1.0, 55, 0.70),
        (1.0, 1.0, 30, 0.55),
    ],
)
def test_steps_of_one_and_two_sigma_are_found(
    step: float, spread: float, at: int, least: float
) -> None:
    runs = 60
    hits, others, within = found_steps(step, spread, at, runs)
    assert hits >= least - 3.0 * np.sqrt(least * (1 - least) / runs)
    assert others <= 0.2 if spread == 1.0 else others <= bound(ALPHA, runs)
    assert within >= 0.95 - 3.0 * np.sqrt(0.95 * 0.05 / runs)


def test_several_steps_are_all_found_with_their_levels() -> None:
    rng = np.random.default_rng(5)
    truth = np.repeat([0.0, 1.0, -0.5, 2.0], 20)
    scan = change_points(truth + 0.1 * rng.normal(size=80), np.full(80, 0.1))
    assert [point.position for point in scan.points] == [20, 40, 60]
    assert [level.mean for level in scan.levels] == pytest.approx([0.0, 1.0, -0.5, 2.0], abs=0.1)
    assert [point.step for point in scan.points] == pytest.approx([1.0, -1.5, 2.5], abs=0.15)
    assert all(0.01 < level.stderr < 0.05 for level in scan.levels)


def test_a_deterministic_run_that_changes_once_is_found_exactly() -> None:
    values = np.repeat([0.31, 0.95], [20, 5])
    (point,) = change_points(values, np.full(25, 0.1)).points
    assert (point.position, point.earliest, point.latest) == (20, 20, 20)
    assert point.step == pytest.approx(0.64, abs=1e-12)


def test_rounding_is_no_change() -> None:
    values = np.repeat([0.31, 0.31 + 1e-9], [20, 20])
    assert change_points(values, np.full(40, 0.1)).points == ()


def test_one_odd_night_is_no_change_of_level() -> None:
    values = np.zeros(40)
    values[17] = 5.0
    assert change_points(values, np.full(40, 0.1)).points == ()


def test_nights_with_small_errors_count_more() -> None:
    rng = np.random.default_rng(8)
    errors = np.where(rng.random(NIGHTS) < 0.5, 0.1, 0.4)
    values = errors * rng.normal(size=NIGHTS)
    (level,) = change_points(values, errors).levels
    assert level.mean == pytest.approx(np.average(values, weights=errors**-2.0), rel=1e-9)


@pytest.mark.parametrize("n", [0, 1, 2, 5])
def test_too_few_nights_have_no_change_point(n: int) -> None:
    scan = change_points(np.arange(n, dtype=float), np.ones(n))
    assert scan.points == ()
    assert len(scan.levels) == min(n, 1)


@pytest.mark.parametrize(
    ("values", "errors"), [([np.nan], [1.0]), ([1.0], [np.inf]), ([1.0], [-1.0]), ([1.0], [1, 1])]
)
def test_impossible_numbers_are_refused(values: list[float], errors: list[float]) -> None:
    with pytest.raises(ValueError, match=r"change points need|impossible"):
        change_points(np.array(values, float), np.array(errors, float))


@given(
    arrays(np.float64, 24, elements=st.floats(-5, 5, width=32)),
    st.floats(0.5, 4.0),
    st.floats(-3, 3),
)
@settings(max_examples=30, deadline=None)
def test_shift_mirror_and_scale_change_nothing(
    values: np.ndarray, factor: float, shift: float
) -> None:
    errors = np.full(24, 0.2)
    found = [point.position for point in change_points(values, errors, smallest_step=0.0).points]
    moved = values * -factor + shift
    if np.ptp(values) > 1e-3:  # else rounding decides
        again = change_points(moved, errors * factor, smallest_step=0.0).points
        assert [point.position for point in again] == found


def test_ruptures_finds_the_same_change_points() -> None:
    import ruptures

    rng = np.random.default_rng(6)
    values = np.repeat([0.0, 1.0, 3.0], 25) + 0.1 * rng.normal(size=75)
    found = [point.position for point in change_points(values, np.full(75, 0.1)).points]
    assert found == ruptures.Binseg(model="l2").fit(values).predict(n_bkps=2)[:-1]
