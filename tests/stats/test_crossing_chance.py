"""The chance that an unchanged candidate crosses any margin, by joint sign flips."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from document_drifts import drift_of
from scipy import stats

from evalguard.stats.few_documents import crossing_chance

FEW = [0.5, -0.2, 0.0, 0.7, 0.3, -0.1]
OTHER = [0.1, 0.4, 0.0, 0.6, -0.3, 0.2]


def by_every_pattern(columns, margins):
    patterns = np.array(list(itertools.product((1.0, -1.0), repeat=columns.shape[1]))).T
    return float(np.mean(np.any(columns @ patterns > np.array(margins)[:, None], axis=0)))


def test_the_chance_that_any_metric_crosses_its_margin_is_that_of_every_sign_pattern():
    columns = np.array([np.array(FEW) / 6.0, np.array(OTHER) / 12.0])
    metrics = drift_of(FEW), drift_of(OTHER, metric="acc_norm", unit=2.0)
    expected = by_every_pattern(columns, (0.15, 0.06))
    assert crossing_chance(metrics, (0.15, 0.06)) == pytest.approx(expected, abs=1e-15)


def test_one_metric_twice_counts_as_one():
    same = drift_of(FEW), drift_of(FEW, metric="acc_norm")
    assert crossing_chance(same, (0.15, 0.15)) == crossing_chance(same[:1], (0.15,))


def test_documents_of_two_tasks_have_signs_of_their_own_unless_they_are_the_same_documents():
    columns = np.array([[*np.array(FEW) / 6, *np.zeros(6)], [*np.zeros(6), *np.array(FEW) / 6]])
    apart = drift_of(FEW), drift_of(FEW, task="b")
    margins = (0.15, 0.15)
    expected = by_every_pattern(columns, margins)
    assert crossing_chance(apart, margins) == pytest.approx(expected, abs=1e-15)
    hashes = tuple(f"document {i}" for i in range(6))
    shared = drift_of(FEW, doc_hashes=hashes), drift_of(FEW, task="b", doc_hashes=hashes)
    assert crossing_chance(shared, margins) == crossing_chance(shared[:1], (0.15,))


def test_clusters_change_sign_as_a_whole():
    labels = ("x", "x", "y", "y", "z", "z")
    sums = np.array([np.add.reduceat(np.array(FEW), [0, 2, 4]) / 6])
    got = crossing_chance([drift_of(FEW, clusters=labels)], (0.1,))
    assert got == pytest.approx(by_every_pattern(sums, (0.1,)), abs=1e-15)


def test_many_documents_take_random_patterns_whose_order_of_documents_changes_nothing():
    d = np.random.default_rng(1).normal(0.0, 1.0, 300)
    got = crossing_chance([drift_of(d)], (0.1,))
    beyond = stats.norm.sf(0.1 * np.sqrt(300) / np.sqrt(np.mean(d**2)))
    assert got == pytest.approx(beyond, abs=0.005)
    assert crossing_chance([drift_of(d[::-1])], (0.1,)) == got


def test_equal_documents_cross_no_margin():
    assert crossing_chance([drift_of([0.0] * 6)], (0.0,)) == 0.0


def test_metrics_without_a_unit_are_refused():
    with pytest.raises(ValueError, match="each with a standard error"):
        crossing_chance([drift_of(FEW), drift_of(FEW, "b", unit=0.0)], (1.0, 1.0))
    with pytest.raises(ValueError, match="needs metrics"):
        crossing_chance([], ())
    with pytest.raises(ValueError, match="as many margins"):
        crossing_chance([drift_of(FEW)], ())
