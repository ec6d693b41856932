"""Betting against a total: martingales, exact small populations, and what bounds them."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalguard.stats.betting import (
    before,
    log_wealth,
    lower_end,
    needed,
    remaining_stake,
    upper_end,
)
from evalguard.stats.sequential_evidence import FlipEvidence, kelly_stakes, right_interval
from evalguard.stats.sequential_looks import planned_looks


def orders(values: list[float]) -> list[tuple[float, ...]]:
    """All orders of a small population, each once for every permutation."""
    return list(itertools.permutations(values))


def test_wealth_is_a_martingale_over_all_orders_of_a_population() -> None:
    values = [1.0, 1.0, 0.0, 0.0, -1.0, 0.0]
    for n in range(1, len(values)):
        wealth = []
        for order in orders(values):
            d = np.array(order[:n])
            means = (sum(values) - before(d)) / remaining_stake(n, len(values))
            stakes = kelly_stakes(d, means + 0.1, seen=0.25)
            wealth.append(math.exp(log_wealth(d - means, stakes * 0.5, 1.0 - means)))
        assert np.mean(wealth) == pytest.approx(1.0, abs=1e-12)


def test_a_stake_that_could_lose_more_than_all_denies_nothing() -> None:
    deviations, stakes = np.array([-0.5, -0.5]), np.array([1.0, 1.0])
    assert log_wealth(deviations, stakes, np.array([0.9, 0.9])) == pytest.approx(2 * math.log(1.5))
    assert log_wealth(deviations, stakes, np.array([0.9, 1.1])) == -math.inf


@given(st.integers(2, 40), st.integers(0, 40), st.integers(1, 39))
def test_right_interval_holds_the_truth_for_almost_all_orders(
    population: int, right: int, n: int
) -> None:
    """The hypergeometric chance that the interval at n misses is at most alpha."""
    from scipy import stats

    right, n = min(right, population), min(n, population - 1)
    missed = sum(
        stats.hypergeom.pmf(seen, population, right, n)
        for seen in range(max(0, n - population + right), min(n, right) + 1)
        if not _holds(right, right_interval(seen, n, population, alpha=0.1))
    )
    assert missed <= 0.1 + 1e-12


def _holds(value: int, interval: tuple[int, int]) -> bool:
    return interval[0] <= value <= interval[1]


def test_right_interval_is_what_is_possible_without_alpha_and_exact_at_the_end() -> None:
    assert right_interval(3, 10, 100, alpha=0.0) == (3, 93)
    assert right_interval(3, 10, 10, alpha=0.1) == (3, 3)


def test_no_small_population_is_denied_in_too_many_of_its_orders() -> None:
    """Random orders of populations of 14 documents, looked at after every document."""
    size, alpha, margin = 14, 0.3, 1.0
    denied = []
    for lost, won, both in ((5, 0, 3), (3, 0, 9), (0, 0, 7), (2, 2, 6), (1, 2, 5), (2, 0, 9)):
        right = lost + both
        unit = math.sqrt(right * (size - right) / (size - 1))
        more = lost - won > margin * unit
        kinds = [(1.0, 1.0)] * lost + [(-1.0, 0.0)] * won + [(0.0, 1.0)] * both
        kinds += [(0.0, 0.0)] * (size - len(kinds))
        wrong = [_ever_denied(order, alpha, margin, more) for order in _orders(kinds, 150)]
        denied.append(np.mean(wrong))
    error = 3.0 * math.sqrt(alpha * (1.0 - alpha) / 150)
    assert max(denied) <= alpha + error
    assert max(denied) > 0.0


def _orders(kinds: list[tuple[float, float]], count: int) -> list[np.ndarray]:
    rng = np.random.default_rng(len(kinds))
    return [np.array(kinds)[rng.permutation(len(kinds))] for _ in range(count)]


def _ever_denied(order: np.ndarray, alpha: float, margin: float, more: bool) -> bool:
    for n in range(4, order.shape[0]):
        evidence = FlipEvidence(
            order[:n, 0], order[:n, 1], order.shape[0], margin=margin, alpha=alpha
        )
        wealth = evidence.against_more(margin) if more else evidence.against_less(margin)
        if wealth >= needed(evidence, alpha):
            return True
    return False


def test_a_candidate_without_flips_is_believed_near_the_limit_of_information() -> None:
    """No method can tell it from one that lost K documents before 1 - alpha^(1/K) of them."""
    size, right = 5000, 3450
    order = np.random.default_rng(1).permutation(size)
    base = (order < right).astype(np.float64)
    lost = math.sqrt(right * (size - right) / (size - 1))
    limit = 1.0 - 0.05 ** (1.0 / lost)
    assert limit == pytest.approx(0.0875, abs=5e-4)
    for share, enough in ((limit, False), (1.2 * limit, True)):
        n = round(share * size)
        evidence = FlipEvidence(np.zeros(n), base[:n], size, margin=1.0, alpha=0.05)
        assert (evidence.against_more(1.0) >= needed(evidence, 0.05)) is enough


def test_knowing_the_base_spends_nothing_on_it() -> None:
    size, n = 2000, 400
    base = (np.random.default_rng(2).permutation(size) < 1300).astype(np.float64)
    guessed = FlipEvidence(np.zeros(n), base[:n], size, margin=1.0, alpha=0.05)
    known = FlipEvidence(np.zeros(n), base[:n], size, margin=1.0, alpha=0.05, right_of_all=1300)
    assert guessed.reserved > known.reserved == 0.0
    assert known.against_more(1.0) >= guessed.against_more(1.0)


@given(st.integers(0, 2**31))
def test_evidence_is_monotone_and_its_ends_are_where_it_is_enough(seed: int) -> None:
    rng = np.random.default_rng(seed)
    size, n = 400, 200
    base = (rng.random(size) < 0.7).astype(np.float64)
    d = np.where(rng.random(size) < 0.1, np.where(base > 0, 1.0, -1.0), 0.0)
    evidence = FlipEvidence(d[:n], base[:n], size, margin=1.0, alpha=0.05)
    margins = np.linspace(-3.0, 6.0, 37)
    more = np.array([evidence.against_more(m) for m in margins])
    less = np.array([evidence.against_less(m) for m in margins])
    assert np.all(np.diff(more[np.isfinite(more)]) >= -1e-9)
    assert np.all(np.diff(less[np.isfinite(less)]) <= 1e-9)
    high, low = upper_end(evidence, 0.05, start=1.0), lower_end(evidence, 0.05, start=1.0)
    assert low <= high
    if math.isfinite(high):
        assert evidence.against_more(high + 1e-6) >= needed(evidence, 0.05) - 1e-6


def test_looks_are_geometric_end_with_all_documents_and_have_a_tenth_among_them() -> None:
    looks = planned_looks(5000)
    assert looks[0] >= 64
    assert looks[-1] == 5000
    assert 500 in looks
    ratios = np.diff(np.log(looks))
    assert np.all(np.abs(ratios - math.log(10) / 10) < 0.02)
    assert planned_looks(60) == (60,)
    assert planned_looks(3, first=1, factor=1.01) == (1, 2, 3)
    with pytest.raises(ValueError, match="factor"):
        planned_looks(10, factor=1.0)
