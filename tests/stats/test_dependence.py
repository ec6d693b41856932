"""Dependence of documents: found where it is, rarely said where it is not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy.signal import lfilter

from evalguard.stats.dependence import group_dependence, order_dependence

Rng = np.random.Generator
LEVEL = 0.01


def autoregressive(rng: Rng, n: int) -> np.ndarray:
    return lfilter([1.0], [1.0, -0.6], rng.normal(size=n + 100))[100:]


def blocks(length: int, draw: Callable[[Rng, int], np.ndarray]) -> Callable[[Rng, int], np.ndarray]:
    return lambda rng, n: np.repeat(draw(rng, n // length + 1), length)[:n]


def normal(rng: Rng, n: int) -> np.ndarray:
    return rng.normal(size=n)


def heavy(rng: Rng, n: int) -> np.ndarray:
    return rng.standard_t(2.5, n)


def gains(rng: Rng, n: int) -> np.ndarray:
    return -rng.lognormal(0.0, 2.0, n)


def flips(rng: Rng, n: int) -> np.ndarray:
    return np.where(rng.random(n) < 0.1, rng.choice([-1.0, 1.0], n), 0.0)


def mostly_equal(rng: Rng, n: int) -> np.ndarray:
    return np.where(rng.random(n) < 0.02, rng.normal(size=n), 0.0)


def partly_shared(rng: Rng, n: int) -> np.ndarray:
    shared = np.repeat(rng.normal(size=n // 20 + 1), 20)[:n]
    return np.sqrt(0.3) * shared + np.sqrt(0.7) * rng.normal(size=n)


# what the documents do, and the variance of their mean over that of independent ones
DEPENDENT = [
    pytest.param(autoregressive, (1 + 0.6) / (1 - 0.6), id="AR(0.6)"),
    pytest.param(blocks(3, normal), 3, id="blocks of 3"),
    pytest.param(blocks(20, normal), 20, id="blocks of 20"),
    pytest.param(blocks(100, normal), 100, id="blocks of 100"),
    pytest.param(blocks(20, heavy), 20, id="blocks of 20, heavy tails"),
    pytest.param(blocks(10, flips), 10, id="answers that flip ten by ten"),
    pytest.param(partly_shared, 1 + 19 * 0.3, id="blocks of 20 that share 30%"),
]
INDEPENDENT = [normal, heavy, gains, flips, mostly_equal]


def centred(values: np.ndarray) -> np.ndarray:
    return values - values.mean()


@pytest.mark.parametrize(("draw", "effect"), DEPENDENT)
def test_documents_that_drift_alike_with_their_neighbours_are_found(
    draw: Callable[[Rng, int], np.ndarray], effect: float
) -> None:
    found = [
        order_dependence(centred(draw(np.random.default_rng([1, run]), 2_000)), level=1e-4)
        for run in range(3)
    ]
    assert None not in found
    assert 0.5 * effect < np.median([one.design_effect for one in found]) < 1.6 * effect


@pytest.mark.parametrize("draw", INDEPENDENT)
@pytest.mark.parametrize("n", [50, 500])
def test_independent_documents_are_hardly_ever_called_dependent(
    draw: Callable[[Rng, int], np.ndarray], n: int
) -> None:
    assert false_alarms(draw, n, runs=60) <= 6  # of 120 tests at 1%


@pytest.mark.slow
@pytest.mark.parametrize("draw", INDEPENDENT)
@pytest.mark.parametrize("n", [50, 500])
def test_false_alarms_keep_to_the_level(draw: Callable[[Rng, int], np.ndarray], n: int) -> None:
    runs = 2_000
    allowed = LEVEL * runs + 3.0 * np.sqrt(LEVEL * runs)
    assert false_alarms(draw, n, runs) <= 2 * allowed  # two tests each


def false_alarms(draw: Callable[[Rng, int], np.ndarray], n: int, runs: int) -> int:
    alarms = 0
    for run in range(runs):
        d = centred(draw(np.random.default_rng([2, run]), n))
        labels = [str(i // 5) for i in range(n)]
        alarms += order_dependence(d, level=LEVEL, seed=run) is not None
        alarms += group_dependence(d, labels, level=LEVEL, seed=run) is not None
    return alarms


def test_a_field_in_any_order_is_found_with_the_variance_that_clusters_would_give() -> None:
    from evalguard.stats.clusters import cluster_stderr, cluster_sums

    rng = np.random.default_rng(3)
    members = rng.permutation(np.repeat(np.arange(100), 12))
    d = centred(rng.normal(size=100)[members] + rng.normal(size=1_200))
    labels = [f"passage {member}" for member in members]
    found = group_dependence(d, labels, level=1e-4)
    assert order_dependence(d, level=1e-4) is None
    assert found is not None
    assert found.groups == 100
    clustered = cluster_stderr(cluster_sums(d, None, labels))
    independent = d.std(ddof=1) / np.sqrt(d.size)
    assert found.stderr_factor == pytest.approx(clustered / independent, rel=1e-9)


def test_alternating_documents_make_a_test_careful_and_are_not_said() -> None:
    assert order_dependence(np.resize([1.0, -1.0], 400), level=0.05) is None


@pytest.mark.parametrize("n", [0, 1, 8, 31])
def test_too_few_documents_show_no_dependence(n: int) -> None:
    d = np.arange(n) - (n - 1) / 2
    assert order_dependence(d, level=0.05) is None
    assert group_dependence(d, ["a"] * n, level=0.05) is None


def test_documents_without_a_difference_show_none() -> None:
    assert order_dependence(np.zeros(100), level=0.05) is None
    assert group_dependence(np.zeros(100), [str(i // 4) for i in range(100)], level=0.05) is None
