"""Paired errors of pass@k and mean@k: documents are what is sampled."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalguard.answers.document_figures import compare_figures, pass_at_k


def covered(runs: int, n: int, repeats: int, k: int, *, seed: int) -> float:
    """How often the interval of pass@k's difference holds the truth of all documents."""
    rng = np.random.default_rng(seed)
    # Right answers of both models depend on how hard the document is; the candidate is worse.
    hard = rng.beta(0.6, 0.8, size=200_000)
    worse = 0.85 * hard
    truth = float(np.mean((1 - (1 - worse) ** k) - (1 - (1 - hard) ** k)))
    held = 0
    for _ in range(runs):
        own = rng.beta(0.6, 0.8, size=n)
        counts = [rng.binomial(repeats, p) for p in (own, 0.85 * own)]
        sides = [[pass_at_k(repeats, int(c), k) for c in of] for of in counts]
        low, high = compare_figures(*sides, confidence=0.95).difference.interval or (0.0, 0.0)
        held += low <= truth <= high
    return held / runs


@pytest.mark.parametrize("k", [1, 4, 8])
def test_the_interval_of_a_difference_of_pass_at_k_holds_the_truth(k: int) -> None:
    # 400 runs: within 3.5 Monte Carlo errors (1.1 points) of 95%, up to rounding to the safe side
    assert 0.91 <= covered(400, 120, 8, k, seed=k) <= 0.99


@pytest.mark.nightly
@pytest.mark.parametrize("k", [1, 2, 4, 8])
@pytest.mark.parametrize("n", [50, 200, 1000])
def test_the_interval_of_a_difference_of_pass_at_k_holds_the_truth_in_full(n: int, k: int) -> None:
    assert 0.935 <= covered(2000, n, 8, k, seed=100 * k + n) <= 0.97


def test_repeats_never_count_as_documents() -> None:
    rng = np.random.default_rng(7)
    hard = rng.random(100)
    few = [rng.binomial(2, p, size=100) / 2 for p in (hard, hard)]
    once = compare_figures(few[0], few[1], confidence=0.95).difference.stderr
    # the same answers copied eight times say no more than they did
    again = compare_figures(
        [float(np.mean([one] * 8)) for one in few[0]],
        [float(np.mean([one] * 8)) for one in few[1]],
        confidence=0.95,
    ).difference.stderr
    assert once is not None
    assert again == pytest.approx(once, rel=1e-12)


def test_clustered_documents_have_a_wider_interval() -> None:
    rng = np.random.default_rng(3)
    of_cluster = np.repeat(rng.normal(size=40), 10)
    base, candidate = np.zeros(400), of_cluster + 0.1 * rng.normal(size=400)
    labels = [str(number // 10) for number in range(400)]
    alone = compare_figures(base, candidate, confidence=0.95).difference
    together = compare_figures(base, candidate, confidence=0.95, labels=labels).difference
    assert alone.stderr is not None
    assert together.stderr is not None
    assert together.stderr > 2.5 * alone.stderr


@given(
    values=st.lists(st.tuples(st.floats(0, 50), st.floats(0, 50)), min_size=2, max_size=30),
)
@settings(max_examples=60, deadline=None)
def test_exchanging_the_models_negates_the_difference(
    values: list[tuple[float, float]],
) -> None:
    ours, theirs = [one for one, _ in values], [other for _, other in values]
    there = compare_figures(ours, theirs, confidence=0.95)
    back = compare_figures(theirs, ours, confidence=0.95)
    assert there.difference.value == pytest.approx(-(back.difference.value or 0.0), abs=1e-9)
    assert there.difference.value == pytest.approx(
        (there.candidate.value or 0.0) - (there.base.value or 0.0), abs=1e-9
    )


def test_fewer_than_two_documents_have_a_difference_and_no_interval() -> None:
    one = compare_figures([0.5], [1.0], confidence=0.95)
    assert (one.difference.value, one.difference.interval, one.method) == (0.5, None, "none")
    assert compare_figures([], [], confidence=0.95).difference.value is None
