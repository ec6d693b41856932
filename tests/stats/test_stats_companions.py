from __future__ import annotations

import subprocess
import sys
import time

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from paired_tables import paired

from evalguard.stats.compare_scores import compare_scores
from evalguard.stats.sign_flip import sign_flip, wilcoxon_signed_rank

RNG = np.random.default_rng(11)
N = 300
BASE = -RNG.gamma(1.4, 1.0, N)


def compared(d, aggregation="mean", **options):
    weights = None if aggregation == "mean" else np.arange(1.0, len(d) + 1.0)
    base = BASE[: len(d)]
    return compare_scores(paired(base, base - d, aggregation, weights=weights), **options)


def by_method(comparison):
    return {test.method: test for test in comparison.companions}


@pytest.mark.parametrize("n", [12, 40, 300])
def test_wilcoxon_is_scipys_without_the_zeros(n):
    d = np.random.default_rng(n).normal(0.1, 1.0, n)
    theirs = scipy.stats.wilcoxon(d, alternative="greater").pvalue
    assert wilcoxon_signed_rank(np.concatenate([d, np.zeros(7)])) == pytest.approx(
        theirs, abs=1e-12
    )


@given(
    values=st.lists(st.sampled_from([-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 3.0]), min_size=51),
    noise=st.sampled_from([0.0, 1e-3]),
    seed=st.integers(0, 2**31),
)
def test_wilcoxon_with_ties_is_scipys(values, noise, seed):
    d = np.array(values) + noise * np.random.default_rng(seed).normal(size=len(values))
    if np.count_nonzero(d) < 51:
        return
    theirs = scipy.stats.wilcoxon(d[d != 0.0], alternative="greater", method="asymptotic").pvalue
    assert wilcoxon_signed_rank(d) == pytest.approx(theirs, rel=1e-9, abs=1e-300)


def test_wilcoxon_of_many_documents_needs_no_scipy_stats():
    code = (
        "import sys, numpy as np\n"
        "from evalguard.stats.sign_flip import wilcoxon_signed_rank\n"
        "wilcoxon_signed_rank(np.arange(-20.0, 60.0))\n"
        "assert 'scipy.stats' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_wilcoxon_of_no_difference_is_1():
    assert wilcoxon_signed_rank(np.zeros(5)) == 1.0


@pytest.mark.parametrize("aggregation", ["mean", "weighted_perplexity"])
def test_both_companions_stand_beside_a_comparison(aggregation):
    d = RNG.normal(0.02, 0.3, N)
    d[:20] = 0.0
    got = compared(d, aggregation)
    tests = by_method(got)
    assert list(tests) == ["sign-flip", "wilcoxon"]
    moved = paired(BASE, BASE - d).d
    assert tests["sign-flip"].p_value == pytest.approx(sign_flip(moved).p_value)
    assert tests["sign-flip"].resamples == 9_999
    assert tests["sign-flip"].seed is not None
    assert tests["wilcoxon"].p_value == pytest.approx(wilcoxon_signed_rank(moved))
    assert "20 documents without a difference left out" in tests["wilcoxon"].note


def test_companions_that_agree_are_no_caveat():
    for drift in (0.0, 0.5):
        got = compared(RNG.normal(drift, 0.3, N))
        assert not [text for text in got.caveats if "deciding test" in text]


def test_a_companion_that_disagrees_is_a_caveat_and_decides_nothing():
    # Nearly every document gets a little worse, one gets much better: the mean is not worse.
    d = np.abs(RNG.normal(0.1, 0.02, N))
    d[0] = -60.0
    got = compared(d)
    assert not got.significant
    (caveat,) = (text for text in got.caveats if "deciding test" in text)
    assert caveat.startswith("Wilcoxon's signed-rank test sees a drift to the worse")


def test_0_1_metrics_and_identical_scores_have_no_companions():
    right = (RNG.random(N) > 0.4).astype(float)
    other = np.where(RNG.random(N) > 0.9, 1.0 - right, right)
    assert compare_scores(paired(right, other)).companions == ()
    assert compared(np.zeros(N)).companions == ()


def test_5000_documents_cost_less_than_a_third_of_a_second():
    d = np.random.default_rng(2).normal(0.0, 1.0, 5_000)
    started = time.process_time()
    sign_flip(d)
    wilcoxon_signed_rank(d)
    assert time.process_time() - started < 0.3
