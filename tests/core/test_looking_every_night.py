"""Nights are looked at every night: the rate of false alarms holds for a year of looks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from history_examples import METRIC, night, right
from history_examples import documents as scored

from benchmarks.night_series import OUTSIDE, QUIET, Make, answered
from benchmarks.nightly_looks import PER_NIGHT, PER_YEAR, YEAR, first_alarm
from evalguard.nights.change_points import change_points, most_drawn
from evalguard.nights.history.history_file import HistoryFile, StoredMetric
from evalguard.nights.history_questions import HistorySelection, find_trends
from evalguard.nights.night_changes import (
    RECENT_NIGHTS,
    find_changes_tonight,
    read_night_trends,
    recently_found,
)
from evalguard.nights.night_report import ALPHA, LOOKS, NightStep, PairNight

PAIR = PairNight(
    base="orig", candidate="port", state="passed", exit_code=0, reason="", created="2026"
)


def kept(path: Path, sigmas: np.ndarray, n_used: np.ndarray | None = None) -> Path:
    """A history with a night per sigma, each with a standard error of 0.5 sigma."""
    counts = np.full(sigmas.shape[0], METRIC.n_used) if n_used is None else n_used
    with HistoryFile(path, create=True) as history:
        for day, (sigma, count) in enumerate(zip(sigmas, counts, strict=True)):
            metric = replace(METRIC, sigma=float(sigma), n_used=int(count))
            history.add(night(day), [StoredMetric(metric=metric, documents=scored(right()))], {})
    return path


def told(history: Path) -> tuple[NightStep, ...]:
    (changes,) = find_changes_tonight([PAIR], [], history)
    assert changes.problem == ""
    return changes.steps


def test_a_night_shares_its_chance_with_the_looks_of_a_year_and_the_metrics(tmp_path: Path) -> None:
    history = kept(tmp_path / "h.sqlite", np.zeros(7))
    report = read_night_trends(history, HistorySelection())
    assert (report.alpha, report.looks) == (ALPHA, LOOKS) == (0.05, 365)
    assert [trend.scan.alpha for trend in report.trends] == [pytest.approx(0.05 / 365)]


def test_what_one_look_believes_is_not_told_of_every_morning(tmp_path: Path) -> None:
    """Ten nights can be split in 252 ways, so that a step is seen by chance twice in 252 looks."""
    history = kept(tmp_path / "h.sqlite", np.repeat([0.1, 0.9], 5))
    (once,) = find_trends(history, HistorySelection()).trends
    assert [point.position for point in once.scan.points] == [5]
    assert told(history) == ()


def test_a_step_that_is_clear_is_told_of_for_a_week_and_no_longer(tmp_path: Path) -> None:
    sigmas = np.repeat([0.1, 0.9], [20, 20])
    for nights, expected in ((23, 0), (25, 1), (20 + 4 + RECENT_NIGHTS - 1, 1), (40, 0)):
        history = kept(tmp_path / f"{nights}.sqlite", sigmas[:nights])
        assert len(told(history)) == expected, nights


def test_a_small_step_is_told_of_when_it_is_found_however_long_it_has_been_there() -> None:
    values = np.where(np.arange(120) % 2, 0.8, -0.8) + np.where(np.arange(120) < 40, 0.0, 1.0)
    errors = np.full(120, 0.5)
    scans = {n: change_points(values[:n], errors[:n], alpha=PER_YEAR) for n in range(50, 91, 5)}
    found = [n for n, scan in scans.items() if scan.points]
    first = found[0]
    assert found == list(range(first, 91, 5))
    assert first - scans[first].points[0].position > RECENT_NIGHTS
    assert recently_found(values[:first], errors[:first], scans[first], nights=5) == (True,)
    later = first + 5
    assert recently_found(values[:later], errors[:later], scans[later], nights=5) == (False,)


def test_another_number_of_documents_is_named_where_sigma_moves(tmp_path: Path) -> None:
    """Sigma is in units of the base's error: four times the documents double it."""
    new = np.arange(40) >= 25
    history = kept(tmp_path / "h.sqlite", np.where(new, 1.0, 0.5), np.where(new, 40, 10))
    (trend,) = find_trends(history, HistorySelection()).trends
    ((change,),) = trend.changes
    assert (change.what, change.before, change.after, change.run) == ("documents", "10", "40", 26)


@pytest.mark.parametrize("level", [0.05, 1e-3, PER_YEAR, PER_YEAR / 10, PER_YEAR / 500])
def test_enough_permutations_are_drawn_to_come_below_every_level(level: float) -> None:
    assert 1.0 / (most_drawn(level) + 1) <= level


def alarms(make: Make, runs: int, level: float) -> int:
    found = (first_alarm(make(np.random.default_rng([9, run]), YEAR), level) for run in range(runs))
    return sum(alarm is not None for alarm in found)


@pytest.mark.slow
@pytest.mark.parametrize("name", QUIET)
def test_a_year_of_looks_has_a_false_alarm_at_most_as_often_as_promised(name: str) -> None:
    runs = 12
    allowed = runs * ALPHA + 3.0 * np.sqrt(runs * ALPHA * (1.0 - ALPHA))
    assert alarms(QUIET[name], runs, PER_YEAR) <= allowed


@pytest.mark.slow
def test_looks_that_are_each_held_to_5_percent_break_the_promise() -> None:
    """Why a year's looks share it: the simulation is able to see what goes wrong."""
    assert alarms(lambda rng, n: answered(rng, n, same=True), 12, PER_NIGHT) >= 5


@pytest.mark.parametrize("name", [*QUIET, *OUTSIDE])
def test_simulated_nights_are_what_a_history_holds(name: str) -> None:
    values, errors = {**QUIET, **OUTSIDE}[name](np.random.default_rng(3), 60)
    assert values.shape == errors.shape == (60,)
    assert np.all(np.isfinite(values))
    assert np.all(errors > 0.0)
