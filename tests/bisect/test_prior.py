"""A prior changes what is measured first, and what that costs: never what names a culprit."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping

import numpy as np
import pytest
from planted_scores import YARDSTICK, PlantedScores, effects, named

from evalguard.bisect.search.components import components_of
from evalguard.bisect.search.find_culprits import find_culprits, prior_weights
from evalguard.bisect.search.search_result import BisectResult
from evalguard.errors import UsageError

LAYERS = tuple(f"layer{number}" for number in range(24))
Prior = Mapping[str, float] | None


def searched(
    culprits: Mapping[str, float], prior: Prior, *, seed: int, jitter: float = 0.3
) -> tuple[BisectResult, PlantedScores]:
    scores = PlantedScores(effects(**culprits), jitter=jitter, seed=seed)
    result = find_culprits(scores, LAYERS, margin=1.0, yardstick=YARDSTICK, seed=seed, prior=prior)
    return result, scores


def proven(result: BisectResult, scores: PlantedScores, culprit: str) -> bool:
    """Whether one culprit was measured alone, or all but it, on every document."""
    alone = frozenset({culprit})
    rest = frozenset(LAYERS) - alone
    seen = {inside: set() for inside in (alone, rest)}  # type: dict[frozenset[str], set[int]]
    for inside, documents in scores.asked:
        if inside in seen:
            seen[inside] |= set(documents.tolist())
    return any(len(documents) == scores.n_documents for documents in seen.values())


@pytest.mark.parametrize("seed", range(6))
def test_a_prior_against_the_truth_names_no_innocent_and_proves_what_it_names(seed: int) -> None:
    rng = random.Random(seed)
    guilty, *innocent = rng.sample(LAYERS, 4)
    result, scores = searched({guilty: 5.0}, dict.fromkeys(innocent, 1e6), seed=seed)
    assert named(result) == {guilty}
    assert result.status == "minimal"
    assert proven(result, scores, guilty)


@pytest.mark.slow
@pytest.mark.parametrize("drift", [0.0, 0.5])
def test_where_nothing_fails_a_prior_makes_no_culprit(drift: float) -> None:
    guilty = LAYERS[7]
    for seed in range(3):
        result, _ = searched({guilty: drift}, {guilty: 1e6}, seed=seed)
        assert not result.culprits
        assert result.status == "not_reproduced"


@pytest.mark.slow
def test_a_true_prior_costs_fewer_evaluations() -> None:
    costs = {"without": 0.0, "with": 0.0}
    for seed in range(8):
        guilty = random.Random(seed).choice(LAYERS)
        for name, prior in (("without", None), ("with", {guilty: 20.0})):
            result, scores = searched({guilty: 5.0}, prior, seed=seed)
            assert named(result) == {guilty}
            assert proven(result, scores, guilty)
            costs[name] += result.cost
    assert costs["with"] < costs["without"]


def test_without_a_prior_or_with_an_even_one_a_search_is_the_same() -> None:
    culprits = {LAYERS[3]: 5.0, LAYERS[11]: 4.0}
    plain, _ = searched(culprits, None, seed=2)
    for prior in ({}, dict.fromkeys(LAYERS, 7.0)):
        assert searched(culprits, prior, seed=2)[0] == plain


def test_an_infinite_ratio_is_a_large_one_and_a_name_that_is_not_searched_is_ignored() -> None:
    guilty = LAYERS[5]
    result, _ = searched({guilty: 5.0}, {guilty: math.inf, "embeddings": 9.0}, seed=1)
    assert named(result) == {guilty}


def test_ratios_far_beyond_any_floor_come_nearer_and_keep_their_order() -> None:
    names = ("a", "b", "c")
    assert prior_weights(names, {"a": 5.0, "b": 0.5}) == pytest.approx((5.0, 0.5, 1.0))
    large = prior_weights(names, {"a": 1e9, "b": 1e3})
    assert large == pytest.approx((30.0, 30.0 ** (1 / 3), 1.0))
    assert prior_weights(names, {"a": math.inf, "b": 1e3}) == pytest.approx((30.0, 30.0, 1.0))
    assert prior_weights(names, {"a": math.inf}) == pytest.approx((30.0, 1.0, 1.0))
    assert prior_weights(names, {"d": 9.0}) is None


@pytest.mark.parametrize("ratio", [0.0, -1.0, math.nan])
def test_a_ratio_that_is_not_above_0_is_refused(ratio: float) -> None:
    with pytest.raises(UsageError, match="a prior is above 0"):
        searched({LAYERS[0]: 5.0}, {LAYERS[0]: ratio}, seed=0)


def test_weights_move_chances_within_a_kind_and_leave_the_kinds_as_they_are() -> None:
    weights = (1.0, 1.0, 8.0, 1.0)
    plain, tilted = (components_of(4, (0, 1, 2, 3), (), one) for one in (None, weights))
    even, odd = np.exp(plain.log_prior), np.exp(tilted.log_prior)
    assert odd.sum() == pytest.approx(even.sum())
    assert odd[:4].sum() == pytest.approx(even[:4].sum())  # the single settings
    assert odd[2] / odd[0] == pytest.approx(8.0)
