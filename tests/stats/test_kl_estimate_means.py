"""Means of KL's lower bounds over the documents of a task."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom

from evalguard.core.limits import Limit, judge_limits
from evalguard.core.shown_tokens import ShownTokens
from evalguard.distributions.task_distributions import estimate_kl

VOCABULARY = 30


def tables(
    documents: int, noise: float, shown: int, *, seed: int = 5, spread: float = 0.0
) -> tuple[ShownTokens, ShownTokens, float]:
    """What two models show of random distributions, and their exact mean KL.

    Some documents move more than others: by a lognormal of this spread.
    """
    rng = np.random.default_rng(seed)
    sides: tuple[dict, dict] = ({}, {})
    exact = []
    for doc_id in range(documents):
        length = int(rng.integers(1, 6))
        one = 2.0 * rng.standard_normal((length, VOCABULARY))
        moved = noise * math.exp(spread * rng.standard_normal()) if spread else noise
        other = one + moved * rng.standard_normal((length, VOCABULARY))
        rows = [row - np.log(np.exp(row).sum(axis=1, keepdims=True)) for row in (one, other)]
        exact += list((np.exp(rows[0]) * (rows[0] - rows[1])).sum(axis=1))
        for side, row in zip(sides, rows, strict=True):
            side[doc_id] = (
                tuple(
                    {str(token): float(at[token]) for token in np.argsort(-at)[:shown]}
                    for at in row
                ),
            )
    return (*sides, float(np.mean(exact)))


@pytest.mark.parametrize("shown", [1, 5, 20, VOCABULARY])
def test_the_mean_is_below_the_exact_one_and_comes_near_it(shown: int) -> None:
    base, candidate, exact = tables(60, 0.5, shown)
    found = estimate_kl("t", base, candidate)
    assert not found.failure
    assert found.n == 60
    assert found.positions == sum(len(rows[0]) for rows in base.values())
    value, mass = found.kl_at_least.value, found.mass_seen.value
    assert 0.0 < value <= exact + 1e-12
    assert 0.0 < mass <= 1.0
    assert found.tokens <= shown
    low, high = found.kl_at_least.interval
    assert 0.0 <= low <= value <= high
    if shown == VOCABULARY:
        assert value == pytest.approx(exact, abs=1e-9)
        assert mass == pytest.approx(1.0)
    if shown == 20:
        assert value > 0.7 * exact


REPEATS, DOCUMENTS = 150, 30


@pytest.mark.parametrize(("shown", "spread"), [(VOCABULARY, 0.0), (VOCABULARY, 0.5), (5, 0.5)])
def test_a_limit_that_is_kept_is_rarely_called_broken_for_certain(
    shown: int, spread: float
) -> None:
    """The limit is the mean itself, of all documents there are: no kept one is nearer to broken.

    2.5% is what one end of a 95% interval allows; with all tokens shown the bound is KL itself.
    """
    *_, truth = tables(6000, 0.4, 1, seed=1, spread=spread)
    limit = Limit(metric="kl_mean", value=truth)
    called = sum(certain(limit, shown, seed, spread) for seed in range(100, 100 + REPEATS))
    assert called <= binom.ppf(0.999, REPEATS, 0.025)


def test_a_limit_that_is_broken_by_far_is_nearly_always_called_so() -> None:
    *_, truth = tables(6000, 0.4, 1, seed=1)
    limit = Limit(metric="kl_mean", value=truth / 4.0)
    called = sum(certain(limit, 10, seed, 0.0) for seed in range(100, 130))
    assert called >= 28


def certain(limit: Limit, shown: int, seed: int, spread: float) -> bool:
    base, candidate, _ = tables(DOCUMENTS, 0.4, shown, seed=seed, spread=spread)
    found = estimate_kl("t", base, candidate)
    (verdict,) = judge_limits([limit], [], [], bounds=[found])
    assert verdict.state in ("regressed", "failed")
    return verdict.certain


def test_documents_of_one_cluster_count_as_one() -> None:
    base, candidate, _ = tables(40, 0.5, 5)
    alone = estimate_kl("t", base, candidate)
    paired = estimate_kl("t", base, candidate, clusters={doc: str(doc // 20) for doc in base})
    assert paired.kl_at_least.value == pytest.approx(alone.kl_at_least.value)
    assert paired.kl_at_least.interval[1] > alone.kl_at_least.interval[1]


def test_a_model_against_itself_has_nothing() -> None:
    base, _, _ = tables(10, 0.0, 5)
    assert estimate_kl("t", base, base).kl_at_least.value == 0.0


def test_one_document_has_no_interval() -> None:
    base, candidate, _ = tables(1, 0.5, 5)
    found = estimate_kl("t", base, candidate)
    assert found.kl_at_least.value is not None
    assert found.kl_at_least.interval is None


@pytest.mark.parametrize(
    ("base", "candidate", "reason"),
    [
        ({0: (({"a": -0.1},),)}, {1: (({"a": -0.1},),)}, "not show the same positions"),
        ({0: (({"a": -0.1},),)}, {0: (({"a": -0.1}, {}),)}, "not show the same positions"),
        ({0: ((),)}, {0: ((),)}, "no token was scored"),
        ({0: (({"a": -0.1},),)}, {0: (({"token_id:3": -0.1},),)}, "no token of the same name"),
    ],
)
def test_what_cannot_be_compared_says_why(base, candidate, reason: str) -> None:
    found = estimate_kl("t", base, candidate)
    assert reason in found.failure
    assert found.kl_at_least.value is None


def test_an_impossible_confidence_is_an_error() -> None:
    base, candidate, _ = tables(3, 0.5, 5)
    with pytest.raises(ValueError, match="confidence"):
        estimate_kl("t", base, candidate, confidence=math.nan)
