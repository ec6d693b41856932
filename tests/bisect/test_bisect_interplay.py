"""Culprits that do more or less together than the sum of what they do alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planted_scores import NAMES, YARDSTICK, Drift, PlantedScores, named

from benchmarks.bisect_outcomes import drawn, names
from evalguard.bisect.search.components import Component, blame_setting
from evalguard.bisect.search.find_culprits import find_culprits
from evalguard.bisect.search.search_result import BisectResult
from evalguard.core.question import Floats, Indices


def searched(oracle: PlantedScores, seed: int = 0) -> BisectResult:
    return find_culprits(oracle, NAMES, margin=1.0, yardstick=YARDSTICK, seed=seed)


def interplay(c: float, h: float, both: float) -> Drift:
    return lambda inside: c * ("c" in inside) + h * ("h" in inside) + both * (inside >= {"c", "h"})


@settings(max_examples=12, deadline=None)
@given(
    c=st.floats(1.5, 6.0),
    h=st.floats(1.5, 6.0),
    share=st.sampled_from([-0.5, -0.35, -0.2, 0.1, 0.4]),
    seed=st.integers(0, 1 << 20),
)
def test_two_that_shrink_each_other_or_grow_together_are_named_and_nobody_else(
    c: float, h: float, share: float, seed: int
) -> None:
    drift = interplay(c, h, share * min(c, h))
    result = searched(PlantedScores(drift, jitter=0.1, seed=seed), seed)
    assert (result.status, named(result)) == ("minimal", {"c", "h"})


@pytest.mark.parametrize("number", [0, 11, 70])
def test_a_pair_that_the_jitter_of_one_step_makes_doubtful_is_proven_by_one_more_assignment(
    number: int,
) -> None:
    """One guilty setting beside two that act only together; effects uniform, heavy, on few."""
    planted, oracle = drawn("1 and a pair", 16, 5.0, number, seed=20261121)
    settings = names(16)
    result = find_culprits(oracle, settings, margin=2.5, yardstick=oracle.sigma, seed=number)
    guilty = {settings[at] for at in planted.guilty}
    assert (result.status, named(result)) == ("minimal", guilty)
    pair = {one.name: one.partners for one in result.culprits if one.role == "together"}
    assert len(pair) == 2
    assert {(one,) for one in pair} == {*pair.values()}
    assert all(not one.partners for one in result.culprits if one.role == "additive")


def test_who_drifts_alone_is_not_said_to_act_with_its_partner_only() -> None:
    result = searched(PlantedScores(interplay(6.0, 2.0, 5.0), jitter=0.1))
    assert named(result) == {"c", "h"}
    assert {culprit.role for culprit in result.culprits} == {"additive"}
    for culprit in result.culprits:
        assert culprit.sigma_alone is None or culprit.sigma_alone > 1.5


@pytest.mark.parametrize("both", [-2.0, -0.5, 1.0, 2.0])
def test_a_setting_that_only_changes_what_the_culprit_does_is_not_blamed(both: float) -> None:
    result = searched(PlantedScores(interplay(30.0, 0.0, both), jitter=0.1))
    assert (result.status, named(result)) == ("minimal", {"c"})


def test_two_that_act_only_together_are_blamed_unless_one_is_guilty_of_more() -> None:
    alone = Component(kind="additive", members=(2,))
    beside = Component(kind="together", members=(2, 7))
    assert blame_setting([beside]) == {2, 7}
    assert blame_setting([alone, beside]) == {2}
    assert blame_setting([alone, Component(kind="together", members=(5, 7))]) == {2, 5, 7}
    assert blame_setting([beside, Component(kind="redundant", members=(7, 8))]) == {7, 8}


class Scattered(PlantedScores):
    """Effects of c and h scatter over documents, 5 standard errors each; nobody else jitters."""

    def measure(self, candidate_settings: frozenset[str], documents: Indices) -> Floats:
        scores = super().measure(candidate_settings, np.arange(self.n_documents))
        rng = np.random.default_rng(self._seed)
        for name, size in (("c", 20.0), ("h", 3.0)):
            pattern = rng.standard_normal(self.n_documents)
            pattern -= pattern.mean()
            if name in candidate_settings:
                scores -= size / 5.0 * YARDSTICK * self.n_documents**0.5 * pattern
        return np.asarray(scores[documents])


@pytest.mark.parametrize("seed", range(4))
def test_the_draw_of_the_documents_is_not_taken_for_anothers_drift(seed: int) -> None:
    oracle = Scattered(interplay(20.0, 3.0, -1.0), jitter=0.01, seed=seed)
    result = searched(oracle, seed)
    assert (result.status, named(result)) == ("minimal", {"c", "h"})
    assert result.cost <= 9.0
