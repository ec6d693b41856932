"""How many answers to each document: planned from a pilot, held to what simulations show."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from paired_tables import paired
from scipy import stats

from evalguard.core.pairing import PairedScores
from evalguard.planning.metric_plan import plan_metric
from evalguard.planning.pilot import pilot_of_scores
from evalguard.planning.repeat_plan import AnswerScatter, RepeatPlan, answer_scatter, plan_repeats
from evalguard.stats.compare_scores import compare_scores

Array = NDArray[np.float64]
Draw = Callable[[np.random.Generator, int, int], tuple[Array, Array]]
AIM = {"alpha": 0.025, "power": 0.8}
DRIFT = 0.1


def zeros_and_ones(spread: float) -> Draw:
    """Answers right with a chance of their document's own, beta distributed, less the drift."""

    def draw(rng: np.random.Generator, n: int, repeats: int) -> tuple[Array, Array]:
        right = 0.2 + 0.7 * rng.beta(spread, spread, size=(n, 1))
        base, candidate = (
            (rng.random((n, repeats)) < chance).astype(float) for chance in (right, right - DRIFT)
        )
        return base, candidate

    return draw


def uneven(rng: np.random.Generator, n: int, repeats: int) -> tuple[Array, Array]:
    """A candidate that loses 40 points in a quarter of the documents, and nothing elsewhere."""
    right = np.full((n, 1), 0.7)
    hit = rng.random((n, 1)) < 0.25
    base = rng.random((n, repeats)) < right
    return base.astype(float), (rng.random((n, repeats)) < right - 0.4 * hit).astype(float)


def counts(rng: np.random.Generator, n: int, repeats: int) -> tuple[Array, Array]:
    mean = rng.gamma(4.0, 0.5, size=(n, 1))
    base = rng.poisson(mean + DRIFT, size=(n, repeats))
    return base.astype(float), rng.poisson(mean, size=(n, repeats)).astype(float)


def shared_seed(rng: np.random.Generator, n: int, repeats: int) -> tuple[Array, Array]:
    """Both models read the same random number in the k-th answer."""
    right = 0.2 + 0.7 * rng.random((n, 1))
    number = rng.random((n, repeats))
    return (number < right).astype(float), (number < right - DRIFT).astype(float)


MIXTURES = {
    "alike": zeros_and_ones(20.0),
    "spread": zeros_and_ones(0.3),
    "uneven": uneven,
    "counts": counts,
    "shared seed": shared_seed,
}


def scores(base: Array, candidate: Array) -> PairedScores:
    of = paired(base.mean(axis=1), candidate.mean(axis=1))
    return replace(
        of,
        base=replace(of.base, each_answer=base),
        candidate=replace(of.candidate, each_answer=candidate),
    )


def split(base: Array, candidate: Array) -> AnswerScatter:
    found = answer_scatter(scores(base, candidate), confidence=0.95)
    assert found is not None
    return found


def chance_to_see(draw: Draw, n: int, repeats: int, *, runs: int = 1500) -> float:
    rng, seen = np.random.default_rng(11), 0
    for _ in range(runs):
        base, candidate = draw(rng, n, repeats)
        apart = (base - candidate).mean(axis=1)
        error = apart.std(ddof=1) / math.sqrt(n)
        seen += apart.mean() - stats.t.ppf(0.975, n - 1) * error > 0.0
    return seen / runs


@pytest.mark.parametrize("name", MIXTURES)
def test_planned_documents_and_answers_have_the_planned_power(name: str) -> None:
    draw, rng = MIXTURES[name], np.random.default_rng(3)
    scatter = split(*draw(rng, 40_000, 4))
    single = scatter.variance(1)
    # documents of which a single answer is too little, by half
    n = math.ceil((2.8 / DRIFT) ** 2 * single / 1.5) + 2
    plan = plan_repeats(scatter, DRIFT, n=n, available=n, **AIM)
    assert plan.needed_to_detect is not None
    assert plan.needed_to_detect > 1
    assert chance_to_see(draw, n, plan.needed_to_detect) >= 0.8 - 0.03
    assert chance_to_see(draw, n, 1) < 0.77
    assert plan.cheapest_documents is not None
    assert plan.cheapest_repeats is not None
    assert chance_to_see(draw, plan.cheapest_documents, plan.cheapest_repeats) >= 0.8 - 0.03


@pytest.mark.parametrize("name", MIXTURES)
def test_the_split_is_unbiased_and_its_upper_end_covers(name: str) -> None:
    draw, rng = MIXTURES[name], np.random.default_rng(5)
    truth = split(*draw(rng, 200_000, 8))
    pilots = [split(*draw(rng, 64, 4)) for _ in range(400)]
    found = np.mean([one.total - (one.within or 0.0) / 4 for one in pilots])
    assert found == pytest.approx(truth.between, abs=0.06 * truth.variance(1))
    assert np.mean([one.within for one in pilots]) == pytest.approx(truth.within, rel=0.05)
    for repeats in (1, 4, 16):
        ends = [one.variance_range(repeats)[1] for one in pilots]
        assert np.mean([end >= truth.variance(repeats) for end in ends]) >= 0.93


def test_models_that_share_their_seeds_have_less_noise_than_their_own_answers_say() -> None:
    found = split(*shared_seed(np.random.default_rng(1), 4000, 4))
    assert found.within is not None
    assert found.base_within is not None
    assert found.candidate_within is not None
    assert found.within < 0.5 * (found.base_within + found.candidate_within)


def test_no_number_of_answers_makes_up_for_documents_that_differ_too_much() -> None:
    scatter = split(*uneven(np.random.default_rng(2), 5000, 4))
    assert scatter.between is not None
    n = int((2.8 / DRIFT) ** 2 * scatter.between * 0.8)
    plan = plan_repeats(scatter, DRIFT, n=n, available=20 * n, **AIM)
    assert plan.needed_to_detect is None
    # of a larger task the cheapest pair has more documents, with one answer each
    assert plan.cheapest_repeats == 1
    assert plan.cheapest_documents is not None
    assert plan.cheapest_documents > n


def test_a_scatter_that_answers_explain_is_at_zero_and_never_below() -> None:
    rng = np.random.default_rng(4)
    edges = [
        split(*((rng.random((30, 2)) < 0.5).astype(float) for _ in range(2))) for _ in range(40)
    ]
    assert any(one.at_zero for one in edges)
    assert all((one.between == 0.0) == one.at_zero for one in edges)
    assert all(one.variance_range(1000)[1] > 0.0 for one in edges)


def plan_of(base: Array, candidate: Array) -> RepeatPlan | None:
    of = scores(base, candidate)
    pilot = pilot_of_scores(of, compare_scores(of, confidence=0.95), confidence=0.95)
    return plan_metric(pilot, n=500, margin=1.0, **AIM).repeats


def test_one_answer_to_a_document_tells_nothing_of_repeats() -> None:
    rng = np.random.default_rng(6)
    base, candidate = ((rng.random((60, 1)) < 0.5).astype(float) for _ in range(2))
    assert plan_of(base, candidate) == RepeatPlan(scatter=AnswerScatter(repeats=1))


def test_answers_that_do_not_vary_have_no_plan_of_repeats() -> None:
    rng = np.random.default_rng(6)
    base, candidate = (np.repeat(rng.random((60, 1)), 3, axis=1) for _ in range(2))
    assert plan_of(base, candidate) is None
