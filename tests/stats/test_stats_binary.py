from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats
from statsmodels.stats.contingency_tables import mcnemar

from evalguard.stats.binary import (
    flip_estimate,
    flip_stderr,
    mcnemar_exact,
    mcnemar_mid_p,
    tango_interval,
)


@pytest.mark.parametrize(
    ("b", "c", "expected"),
    [
        # shared statistics page, "Golden values", checked there with scipy
        (163, 168, 0.629193),
        (327, 363, 0.920543),
        (1241, 1042, 1.68886e-05),
        (1816, 1378, 4.80416e-15),
        (2981, 2325, 1.09448e-19),
    ],
)
def test_exact_mcnemar_gives_the_golden_values(b, c, expected):
    assert mcnemar_exact(b, c) == pytest.approx(expected, rel=5e-6)


def test_the_two_sided_exact_test_gives_the_golden_value():
    assert mcnemar_exact(18, 33, alternative="two-sided") == pytest.approx(0.0488739, abs=5e-8)


@pytest.mark.parametrize(("m", "exact", "mid_p"), [(50, 0.0325, 0.0595), (10, 0.0107, 0.0547)])
def test_the_sizes_at_five_percent_are_the_golden_ones(m, exact, mid_p):
    mass = scipy_stats.binom.pmf(np.arange(m + 1), m, 0.5)

    def size(test):
        return sum(mass[b] for b in range(m + 1) if test(b, m - b) <= 0.05)

    assert size(mcnemar_exact) == pytest.approx(exact, abs=5e-5)
    assert size(mcnemar_mid_p) == pytest.approx(mid_p, abs=5e-5)


flips = st.tuples(st.integers(0, 3000), st.integers(0, 3000))


@given(flips)
def test_exact_agrees_with_scipy_binomtest(counts):
    b, c = counts
    m = b + c
    if m == 0:
        assert mcnemar_exact(b, c) == 1.0
        return
    for alternative in ("greater", "two-sided"):
        expected = scipy_stats.binomtest(b, m, 0.5, alternative=alternative).pvalue
        ours = mcnemar_exact(b, c, alternative=alternative)
        assert ours == pytest.approx(expected, rel=1e-10, abs=1e-12)


@given(flips)
def test_mid_p_is_the_exact_p_less_half_the_mass(counts):
    b, c = counts
    half = 0.5 * scipy_stats.binom.pmf(b, b + c, 0.5)
    assert mcnemar_mid_p(b, c) == pytest.approx(mcnemar_exact(b, c) - half, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(("b", "c"), [(18, 33), (5, 5), (1, 0), (120, 80)])
def test_the_two_sided_test_agrees_with_statsmodels(b, c):
    counts = [[7, b], [c, 9]]
    exact = mcnemar_exact(b, c, alternative="two-sided")
    assert exact == pytest.approx(mcnemar(counts, exact=True).pvalue, rel=1e-12)


def test_without_flips_nothing_is_tested():
    assert mcnemar_exact(0, 0) == 1.0
    assert mcnemar_exact(0, 0, alternative="two-sided") == 1.0
    assert mcnemar_mid_p(0, 0) == 0.5


@given(st.integers(1, 200), st.integers(1, 200), st.integers(0, 1000))
def test_the_paired_stderr_is_that_of_the_differences(b, c, unflipped):
    n = b + c + unflipped
    d = np.repeat([1.0, -1.0, 0.0], [b, c, unflipped])
    assert flip_stderr(b, c, n) == pytest.approx(np.std(d) / math.sqrt(n), rel=1e-12)


@pytest.mark.parametrize(
    ("b", "c", "n", "confidence", "expected"),
    [
        # Fagerland, Lydersen, Laake, BMC Med. Res. Methodol. 2014: airway hyper-responsiveness
        (1, 7, 21, 0.95, (-0.517, -0.026)),
        # R, PropCIs::scoreci.mp(25, 28, 618, 0.9), whose estimand is (second - first) / n
        (28, 25, 618, 0.90, (-0.0148, 0.0247)),
    ],
)
def test_tango_gives_published_intervals(b, c, n, confidence, expected):
    low, high = tango_interval(b, c, n, confidence=confidence)
    digits = 3 if n == 21 else 4
    assert (round(low, digits), round(high, digits)) == expected


def naive_score(b: int, c: int, n: int, delta: np.ndarray) -> np.ndarray:
    """Tango's score with p_better found by searching the likelihood, not by its formula."""
    better = np.linspace(1e-9, 1.0 - 1e-9, 20_001)
    scores = []
    for one in delta:
        worse = better + one
        valid = (worse > 0.0) & (worse + better < 1.0)
        p, q = worse[valid], better[valid]
        log_likelihood = b * np.log(p) + c * np.log(q) + (n - b - c) * np.log(1.0 - p - q)
        best = q[np.argmax(log_likelihood)]
        scores.append((b - c - n * one) / math.sqrt(n * (2.0 * best + one * (1.0 - one))))
    return np.array(scores)


@pytest.mark.parametrize(("b", "c", "n"), [(7, 1, 21), (12, 5, 60), (3, 9, 40), (20, 20, 50)])
def test_tango_inverts_the_naive_score_test_on_a_grid(b, c, n):
    delta = np.linspace(-0.95, 0.95, 381)
    scores = naive_score(b, c, n, delta)
    kept = delta[np.abs(scores) <= scipy_stats.norm.ppf(0.975)]
    low, high = tango_interval(b, c, n)
    step = delta[1] - delta[0]
    assert kept[0] == pytest.approx(low, abs=1.01 * step)
    assert kept[-1] == pytest.approx(high, abs=1.01 * step)
    ends = naive_score(b, c, n, np.array([low, high]))
    assert ends == pytest.approx([1.959964, -1.959964], abs=2e-3)


@st.composite
def counted_flips(draw):
    b, c = draw(st.integers(0, 300)), draw(st.integers(0, 300))
    return b, c, draw(st.integers(max(1, b + c), b + c + 2000))


@given(counted_flips(), st.sampled_from([0.5, 0.9, 0.95, 0.999]))
def test_tango_contains_the_estimate_stays_in_range_and_mirrors_exactly(counts, confidence):
    b, c, n = counts
    low, high = tango_interval(b, c, n, confidence=confidence)
    assert -1.0 <= low <= (b - c) / n <= high <= 1.0
    assert low < high
    assert tango_interval(c, b, n, confidence=confidence) == (-high, -low)


@pytest.mark.parametrize("n", [1, 2, 10, 1000])
def test_tango_of_extreme_tables_is_the_limit_of_its_neighbours(n):
    z2 = scipy_stats.norm.ppf(0.975) ** 2
    end = z2 / (n + z2)
    assert tango_interval(0, 0, n) == pytest.approx((-end, end))
    low, high = tango_interval(n, 0, n)
    assert high == 1.0
    assert low == pytest.approx((n - z2) / (n + z2))


@pytest.mark.parametrize("counts", [(-1, 0, 5), (3, 3, 5), (0, 0, 0)])
def test_impossible_flips_are_refused(counts):
    with pytest.raises(ValueError, match="counts of documents"):
        tango_interval(*counts)


@given(counted_flips(), st.sampled_from([0.8, 0.9, 0.95, 0.99]))
def test_the_interval_is_above_zero_exactly_where_the_mid_p_says_so(counts, confidence):
    b, c, n = counts
    estimate = flip_estimate(b, c, n, confidence=confidence)
    alpha = (1.0 - confidence) / 2.0
    assert estimate.p_value == (mcnemar_mid_p(b, c) if b + c else 1.0)
    assert (estimate.low > 0.0) == (b + c > 0 and mcnemar_mid_p(b, c) <= alpha)
    assert (estimate.high < 0.0) == (b + c > 0 and mcnemar_mid_p(c, b) <= alpha)
    assert estimate.low <= estimate.point <= estimate.high


def test_the_mid_p_pulls_the_interval_back_to_zero():
    # z = 4 / sqrt(4) = 2 calls it real, the mid-p of 1/32 does not
    assert tango_interval(4, 0, 100)[0] > 0.0
    estimate = flip_estimate(4, 0, 100, confidence=0.95)
    assert estimate.p_value == pytest.approx(1 / 32)
    assert estimate.low == 0.0
    assert flip_estimate(0, 4, 100, confidence=0.95).high == 0.0


@pytest.mark.parametrize("flip_rate", [0.005, 0.02, 0.05, 0.15, 0.4])
@pytest.mark.parametrize("n", [50, 200, 1319])
@pytest.mark.parametrize("alpha", [0.025, 0.05])
def test_the_mid_p_keeps_its_size_over_the_number_of_flips(n, flip_rate, alpha):
    """Unconditionally: the number of flips is random too (Fagerland et al. 2013)."""
    flips = np.arange(n + 1)
    chance = scipy_stats.binom.pmf(flips, n, flip_rate)
    size = 0.0
    for m in flips[chance > 1e-9]:
        b = np.arange(m + 1)
        rejected = [mcnemar_mid_p(int(k), int(m - k)) <= alpha for k in b]
        size += chance[m] * float(np.sum(scipy_stats.binom.pmf(b, m, 0.5)[rejected]))
    assert size <= alpha * 1.06


def test_exact_mcnemar_does_not_exceed_its_size_under_the_null():
    for m in (5, 20, 60, 200):
        b = np.arange(m + 1)
        mass = scipy_stats.binom.pmf(b, m, 0.5)
        rejected = [mcnemar_exact(int(k), m - int(k)) <= 0.05 for k in b]
        assert float(np.sum(mass[rejected])) <= 0.05
