"""A search with oracles as they are: few documents, heavy tails, failures, nothing to be found."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planted_scores import NAMES, YARDSTICK, Drift, effects, named

from evalguard.bisect.search.block_estimates import deviations
from evalguard.bisect.search.find_culprits import find_culprits
from evalguard.bisect.search.search_result import BisectResult
from evalguard.core.question import Floats, Indices, Untestable

FEW = ("a", "b", "c", "d")


class Real:
    """Drift with jitter of any shape: ``tails`` are the degrees of freedom of a Student t."""

    def __init__(
        self, drift: Drift, *, jitter: float, n: int = 320, seed: int = 0, tails: float = 50.0,
        failing: float = 0.0,
    ) -> None:  # fmt: skip
        self.n_documents = n
        self._drift, self._jitter, self._seed, self._tails = drift, jitter, seed, tails
        self._failing = failing
        self._base = np.random.default_rng(seed).standard_normal(n)

    def measure(self, candidate_settings: frozenset[str], documents: Indices) -> Floats:
        n, inside = self.n_documents, candidate_settings
        key = zlib.crc32(" ".join(sorted(inside)).encode())
        rng = np.random.default_rng([self._seed, key])
        if 0 < len(inside) < len(NAMES) and rng.random() < self._failing:
            raise Untestable("a kernel crashed", kind="crashed")
        noise = rng.standard_t(self._tails, n) * np.sqrt(1.0 - 2.0 / self._tails)
        noise *= self._jitter * n**0.5 * bool(inside)
        return np.asarray((self._base + YARDSTICK * (noise - self._drift(inside)))[documents])


def searched(oracle: Real, names: tuple[str, ...] = NAMES, **more: object) -> BisectResult:
    return find_culprits(oracle, names, margin=1.0, yardstick=YARDSTICK, seed=1, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("n", [8, 9, 24, 61])
def test_few_documents_are_enough_where_the_jitter_is_small(n: int) -> None:
    result = searched(Real(effects(c=3.0), jitter=0.1, n=n))
    assert (result.status, named(result)) == ("minimal", {"c"})


def test_few_documents_need_more_certainty() -> None:
    assert deviations(3.0, 1024) == pytest.approx(3.0, abs=0.02)
    assert deviations(3.0, 8) == pytest.approx(4.53, abs=0.01)  # t with 7 degrees of freedom


def test_a_small_culprit_is_found_beside_one_of_36_sigma() -> None:
    result = searched(Real(effects(c=36.0, h=1.6), jitter=0.15))
    assert named(result) == {"c", "h"}
    assert [culprit.name for culprit in result.culprits] == ["c", "h"]


def test_a_setting_that_improves_is_named_like_one_that_harms() -> None:
    result = searched(Real(effects(c=-4.0), jitter=0.2))
    assert named(result) == {"c"}
    assert result.culprits[0].shapley_sigma == pytest.approx(-4.0, abs=0.8)


@settings(max_examples=8, deadline=None)
@given(
    seed=st.integers(0, 1 << 20), n=st.sampled_from([8, 40, 320]), tails=st.sampled_from([3, 50])
)
def test_jitter_alone_blames_nobody_and_ends(seed: int, n: int, tails: int) -> None:
    nothing = Real(effects(), jitter=0.7, n=n, seed=seed, tails=tails)
    result = searched(nothing, FEW)
    assert result.status in ("not_reproduced", "unexplained")
    assert not result.culprits


@settings(max_examples=8, deadline=None)
@given(
    guilty=st.sets(st.sampled_from(FEW), min_size=1, max_size=2),
    sign=st.sampled_from([1.0, -1.0]),
    seed=st.integers(0, 1 << 20),
)
def test_a_few_settings_with_clear_effects_are_told_apart(
    guilty: set[str], sign: float, seed: int
) -> None:
    drift = effects(**dict.fromkeys(guilty, 4.0 * sign))
    result = searched(Real(drift, jitter=0.3, seed=seed, tails=4.0), FEW)
    assert named(result) == guilty


@pytest.mark.parametrize("size", [0.75, 1.3])
def test_an_effect_near_the_margin_is_named_only_if_it_is_beyond(size: float) -> None:
    result = searched(Real(effects(c=size), jitter=0.05))
    assert named(result) == ({"c"} if size > 1.0 else set())


def test_the_only_setting_is_guilty_of_what_the_candidate_does() -> None:
    result = searched(Real(effects(a=3.0), jitter=0.3), ("a",))
    assert (result.status, named(result), result.cost) == ("minimal", {"a"}, 0.0)


def test_the_only_setting_is_guilty_by_elimination_whatever_its_jitter() -> None:
    result = searched(Real(effects(a=3.0), jitter=2.0), ("a",))
    assert abs(result.drift_sigma) > 1.0  # whether that is more than chance is for the gate to say
    assert (result.status, named(result), result.eliminated) == ("minimal", {"a"}, True)


def test_where_nothing_can_be_built_it_says_so_soon_and_blames_nobody() -> None:
    result = searched(Real(effects(c=3.0), jitter=0.2, failing=1.0))
    assert (result.status, result.culprits) == ("unexplained", ())
    assert {probe.outcome for probe in result.untestable} == {"crashed"}
    assert {probe.reason for probe in result.untestable} == {"a kernel crashed"}
    assert result.cost <= 2.0


@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 1 << 20))
def test_where_a_third_of_all_cannot_be_built_nobody_innocent_is_blamed(seed: int) -> None:
    result = searched(Real(effects(c=4.0), jitter=0.2, failing=0.33, seed=seed))
    assert named(result) <= {"c"}
    assert result.status in ("minimal", "unexplained")
    assert (result.status == "minimal") <= (named(result) == {"c"})
