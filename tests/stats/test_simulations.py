"""The simulations of the calibration mean what they say."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.answers import answer_sheets
from benchmarks.clusters import SIZES_OF_CLUSTERS, draw_members
from benchmarks.differences import DIFFERENCES
from benchmarks.items import F1, MATTHEWS, MEDIAN, TOTALS
from benchmarks.texts import TEXTS


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
