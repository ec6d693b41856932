"""Drift at the margin's edge, settings that do nothing beside jitter, margins next to nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planted_scores import NAMES, YARDSTICK, PlantedScores, effects, named

from evalguard.bisect.search.block_estimates import twins
from evalguard.bisect.search.components import Component, blame_pair
from evalguard.bisect.search.find_culprits import find_culprits, remaining_margin
from evalguard.bisect.search.search_result import BisectResult
from evalguard.core.question import Floats, Indices
from evalguard.errors import UsageError


def searched(oracle: PlantedScores, seed: int = 0, *, margin: float = 1.0) -> BisectResult:
    return find_culprits(oracle, NAMES, margin=margin, yardstick=YARDSTICK, seed=seed)


def alone(one: int) -> Component:
    return Component(kind="additive", members=(one,))


@pytest.mark.parametrize(("small", "margin"), [(5.4, 5.5), (5.4, 5.3), (8.0, 5.3), (0.0, 5.3)])
def test_blame_does_not_depend_on_how_components_describe_the_same_drift(
    small: float, margin: float
) -> None:
    pair = Component(kind="together", members=(3, 7))
    either = Component(kind="redundant", members=(3, 7))
    singles = [alone(3), alone(7)]
    root = np.zeros((3, 3))
    more = 5.7
    one = blame_pair([*singles, pair], np.array([11.7, small, more]), root, margin)
    swapped = np.array([11.7 + more, small + more, -more])
    assert blame_pair([*singles, either], swapped, root, margin) == one
    assert one == ({3, 7} if small > margin else {3})


def test_too_many_settings_in_common_are_not_looked_at_one_subset_after_the_other() -> None:
    chain = [Component(kind="together", members=(at, at + 1)) for at in range(12)]
    assert blame_pair(chain, np.ones(12), np.zeros((12, 12)), 0.5) is None


class Strengthened(PlantedScores):
    """c and h strengthen each other; what they do scatters over documents, in given blocks."""

    def __init__(self, h: float, seed: int) -> None:
        super().__init__(effects(), seed=seed)
        rng = np.random.default_rng([seed, 1])
        n = self.n_documents
        self._effects = {}
        for who, size in ((("c",), 2.1), (("h",), h), (("c", "h"), 1.0)):
            off = rng.standard_normal(n) * n**0.5 / 12.0
            self._effects[frozenset(who)] = size * (1.0 + off - off.mean())
        for name in "ab":
            self._effects[frozenset(name)] = 0.02 * rng.standard_normal(n) * n**0.5
        self.blocks = tuple(np.array_split(rng.permutation(n), 16))

    def measure(self, candidate_settings: frozenset[str], documents: Indices) -> Floats:
        scores = super().measure(candidate_settings, np.arange(self.n_documents))
        for who, drift in self._effects.items():
            if who <= candidate_settings:
                scores = scores - drift * YARDSTICK
        return np.asarray(scores[documents])


@pytest.mark.parametrize("h", [0.95, 1.02, 1.05])
@pytest.mark.parametrize("seed", [0, 1])
def test_drift_at_the_margins_edge_ends_cheaply_and_with_a_fix(h: float, seed: int) -> None:
    result = searched(Strengthened(h, seed), seed)
    assert result.status == "minimal"
    assert {"c"} <= named(result) <= {"c", "h"}
    assert result.unexplained_sigma <= 1.0
    assert result.cost <= 9.0


class Inert(PlantedScores):
    """Only a, b, c and d change anything; every assignment of these has its own jitter."""

    def measure(self, candidate_settings: frozenset[str], documents: Indices) -> Floats:
        return super().measure(candidate_settings & set("abcd"), documents)


@pytest.mark.parametrize("seed", range(12))
def test_the_jitter_of_settings_that_do_nothing_is_not_taken_for_many_witnesses(seed: int) -> None:
    result = searched(Inert(effects(c=2.0), jitter=0.4, seed=seed), seed)
    assert named(result) <= {"c"}


def test_assignments_that_score_alike_on_all_common_documents_are_twins() -> None:
    rng = np.random.default_rng(0)
    one, two = rng.standard_normal((2, 64))
    of = twins([one, two, one[:16], one + 1e-4 * two, two[:32], one])
    assert len(set(of[[0, 2, 3, 5]])) == len(set(of[[1, 4]])) == 1
    assert of[0] != of[1]


@pytest.mark.parametrize("margin", [1e-3, 1e-6, 1e-9])
def test_a_margin_next_to_nothing_is_no_error(margin: float) -> None:
    result = searched(PlantedScores(effects(c=300.0, h=2.0)), margin=margin)
    assert {"c", "h"} >= named(result)


@pytest.mark.parametrize("jitter", [0.0, 0.02])
def test_what_lies_outside_the_settings_uses_up_the_margin(jitter: float) -> None:
    """Drift 0.7 outside and 0.6 by c: beyond the margin of 1, and inside it without c."""
    oracle = PlantedScores(effects(c=0.6, h=0.05), jitter=jitter)
    base = oracle.measure(frozenset(), np.arange(oracle.n_documents)) + 0.7 * YARDSTICK
    alone = find_culprits(oracle, NAMES, margin=1.0, yardstick=YARDSTICK, seed=0)
    assert alone.status == "not_reproduced"
    found = find_culprits(
        oracle, NAMES, margin=1.0, yardstick=YARDSTICK, seed=0, base_scores=base,
        level=None,
    )  # fmt: skip
    assert (found.status, named(found)) == ("minimal", {"c"})


@given(
    margin=st.floats(1e-6, 1e6), outside=st.floats(-1e6, 1e6, allow_nan=False), up=st.floats(1, 10)
)
def test_what_is_left_of_a_margin_is_never_more_than_it_nor_less_than_a_quarter(
    margin: float, outside: float, up: float
) -> None:
    left = remaining_margin(margin, outside)
    assert margin / 4.0 <= left <= margin
    assert remaining_margin(margin * up, outside * up) == pytest.approx(left * up)
    if outside >= margin:  # no setting can bring it inside
        assert left == margin


def test_an_oracle_that_answers_with_too_few_scores_is_told_so() -> None:
    class Short(PlantedScores):
        def measure(self, candidate_settings: frozenset[str], documents: Indices) -> Floats:
            return super().measure(candidate_settings, documents)[:-1]

    with pytest.raises(UsageError, match="of shape"):
        searched(Short(effects(c=2.0)))
