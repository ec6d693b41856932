"""The calibration of benchmarks/, in small: every interval and test, with its own truth."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT))  # benchmarks/ is a folder of scripts, not a part of the package

from benchmarks.answers import answer_sheets  # noqa: E402
from benchmarks.calibration import ALL_METHODS, measured, report  # noqa: E402
from benchmarks.clusters import SIZES_OF_CLUSTERS, draw_members  # noqa: E402
from benchmarks.differences import DIFFERENCES  # noqa: E402
from benchmarks.families import false_alarms  # noqa: E402
from benchmarks.gate_rules import false_alarms as gate_alarms  # noqa: E402
from benchmarks.gate_rules import power as gate_power  # noqa: E402
from benchmarks.items import F1, MATTHEWS, MEDIAN, TOTALS  # noqa: E402
from benchmarks.tally import LOWEST, tally  # noqa: E402
from benchmarks.texts import TEXTS  # noqa: E402

# Where an interval is known to be too narrow even from 200 documents on (docs/calibration.md).
LIMITS = ("99% identical", "0.5% flips", "base always right")
CLOSED_FORMS = [name for name in ALL_METHODS if name not in ("bootstrap", "unit")]


def cells(method, *, n):
    return [cell for cell in ALL_METHODS[method]() if cell.n == n]


def beyond_chance(share, limit, *, errors=4.0):
    """Whether a share falls short of a limit by more than so many Monte Carlo errors."""
    return share.value < limit - errors * math.sqrt(limit * (1.0 - limit) / share.of)


_LONG = ("clusters", "joint-null", "groups")  # seconds each


@pytest.mark.parametrize(
    "method",
    [pytest.param(one, marks=pytest.mark.slow) if one in _LONG else one for one in CLOSED_FORMS],
)
def test_intervals_hold_the_truth_and_tests_keep_their_size(method):
    for cell in cells(method, n=200):
        found = tally(method, cell, 60)
        assert found.contradictions == 0
        known = any(limit in cell.data for limit in LIMITS)
        if found.holds is not None and not known:
            assert not beyond_chance(found.holds, LOWEST), cell.data
        if cell.null:
            size, _ = next(iter(found.rejected.values()))
            assert size.value <= 0.055 + 4.0 * math.sqrt(0.05 * 0.95 / size.of), cell.data


@pytest.mark.nightly
@pytest.mark.parametrize("n", [200, 2_000])
@pytest.mark.parametrize("method", ["mean", "perplexity", "weighted_perplexity", "0-1", "clusters"])
def test_in_many_runs_nothing_is_outside_the_limits_but_what_the_documentation_names(method, n):
    for cell in cells(method, n=n):
        found = tally(method, cell, 800 if n == 200 else 200)
        assert found.contradictions == 0
        if not any(limit in cell.data for limit in LIMITS):
            assert not beyond_chance(found.holds, LOWEST, errors=3.5), cell.data
            if found.plain is not None and beyond_chance(found.plain, LOWEST):
                assert found.flagged.value > 0.5, cell.data  # t alone would not: a caveat says so


@pytest.mark.nightly
def test_the_bootstrap_holds_the_truth():
    for cell in cells("bootstrap", n=200):
        found = tally("bootstrap", cell, 400)
        assert found.contradictions == 0
        assert not beyond_chance(found.holds, 0.92), cell.data


@pytest.mark.nightly
def test_the_joint_test_keeps_its_size_where_few_documents_gain_much():
    for cell in cells("joint-gains", n=2_000):
        found = tally("joint-gains", cell, 1_000)
        size, _ = next(iter(found.rejected.values()))
        assert size.value <= 0.05 + 2.0 * math.sqrt(0.05 * 0.95 / size.of), cell.data


# --- the simulations mean what they say


@pytest.mark.parametrize("data", DIFFERENCES)
@pytest.mark.parametrize("drift", [False, True])
def test_simulated_differences_have_the_mean_that_they_claim(data, drift):
    d, truth = DIFFERENCES[data].sample(np.random.default_rng(1), 400_000, drift=drift)
    assert d.mean() == pytest.approx(truth, abs=4.0 * d.std() / math.sqrt(d.size))


@pytest.mark.parametrize("data", TEXTS)
def test_simulated_texts_have_the_drift_a_word_that_they_claim(data):
    _, d, words, truth = TEXTS[data].sample(np.random.default_rng(2), 400_000, drift=True)
    assert d.sum() / words.sum() == pytest.approx(truth, abs=1.5e-3)


def test_simulated_answers_have_their_accuracy_and_their_flips():
    for name, answers in answer_sheets():
        rng = np.random.default_rng(3)
        base, candidate, truth = answers.sample(rng, 400_000, drift=not answers.has_null)
        assert base.mean() == pytest.approx(answers.accuracy, abs=4e-3), name
        assert np.mean(base != candidate) == pytest.approx(answers.flips, abs=2e-3), name
        assert base.mean() - candidate.mean() == pytest.approx(truth, abs=2e-3), name


@pytest.mark.parametrize("kind", [F1, MATTHEWS, MEDIAN, TOTALS], ids=lambda kind: kind.name)
def test_simulated_items_have_the_metrics_that_they_claim(kind):
    base, candidate, truth = kind.draw(np.random.default_rng(4), 100_000, True)
    assert kind.aggregate(base) - kind.aggregate(candidate) == pytest.approx(truth, abs=8e-3)


@pytest.mark.parametrize("shape", SIZES_OF_CLUSTERS)
def test_simulated_clusters_have_the_sizes_that_they_claim(shape):
    sizes = np.bincount(draw_members(shape, 4_000, np.random.default_rng(5)))
    giant = shape.startswith("one giant")
    assert sizes.max() / sizes.sum() == pytest.approx(0.3, abs=1e-3) if giant else sizes.max() < 100
    assert np.mean(sizes[1:]) == pytest.approx(5.0, abs=0.3)


# --- the report


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


# --- the gate's rules


def test_the_default_gate_fails_an_unchanged_candidate_in_a_twentieth_of_runs_at_most():
    by_count = gate_alarms(churn=0.15, repetitions=200, counts=(1, 7))
    for found in by_count.values():
        assert found.real <= 0.05 + 4.0 * math.sqrt(0.05 * 0.95 / found.of)
    assert by_count[7].margin > 0.3 > 3.0 * by_count[7].real  # the literal rule


@pytest.mark.nightly
@pytest.mark.parametrize("churn", [0.05, 0.15])
def test_so_it_does_with_fifty_metrics_that_share_their_documents(churn):
    by_count = gate_alarms(churn=churn, repetitions=100, counts=(20, 50))
    for found in by_count.values():
        assert found.real <= 0.05 + 4.0 * math.sqrt(0.05 * 0.95 / found.of)
        assert found.margin > 0.2


@pytest.mark.parametrize("ratio", [1 / 10, 1 / 50])
def test_a_perplexity_that_drifts_fails_the_default_gate_as_often_as_the_literal_one(ratio):
    for drift in (1.1, 2.0):
        found = gate_power(ratio, drift, beside=6, repetitions=60)
        assert found.differ == 0.0
        assert found.real == found.margin > (0.9 if drift == 2.0 else 0.5)
