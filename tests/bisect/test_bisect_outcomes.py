"""What a search says of each kind of drift: exact oracles first, jittery ones after."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planted_scores import NAMES, YARDSTICK, Drift, PlantedScores, effects, named

from evalguard.bisect.search.find_culprits import expected_evaluations, find_culprits
from evalguard.bisect.search.search_result import BisectResult


def searched(drift: Drift, *, jitter: float = 0.0, seed: int = 0, **more: object) -> BisectResult:
    return find_culprits(
        PlantedScores(drift, jitter=jitter, seed=seed), NAMES,
        margin=1.0, yardstick=YARDSTICK, seed=seed, **more,
    )  # type: ignore[arg-type]  # fmt: skip


def only_together(inside: frozenset[str]) -> float:
    return 3.0 * (inside >= {"c", "h"})


def either(inside: frozenset[str]) -> float:
    return 3.0 * bool(inside & {"c", "h"})


JITTER = pytest.mark.parametrize("jitter", [0.0, 0.2])


@JITTER
def test_one_culprit_is_named_with_what_it_costs(jitter: float) -> None:
    result = searched(effects(e=3.0), jitter=jitter)
    assert result.status == "minimal"
    (culprit,) = result.culprits
    assert (culprit.name, culprit.role) == ("e", "additive")
    for sigma in (culprit.sigma_alone, culprit.sigma_in_context, culprit.shapley_sigma):
        assert sigma == pytest.approx(3.0, abs=1e-6 + 4 * jitter)
    assert result.unexplained_sigma == pytest.approx(0.0, abs=1e-6 + 4 * jitter)
    assert result.repaired == tuple(name for name in NAMES if name != "e")


@JITTER
def test_several_culprits_are_named_at_once_the_largest_first(jitter: float) -> None:
    result = searched(effects(a=2.0, g=6.0, l=4.0), jitter=jitter)
    assert result.status == "minimal"
    assert [culprit.name for culprit in result.culprits] == ["g", "l", "a"]
    assert {culprit.role for culprit in result.culprits} == {"additive"}


@JITTER
def test_two_that_act_only_together_are_both_named_and_share_the_drift(jitter: float) -> None:
    result = searched(only_together, jitter=jitter)
    assert result.status == "minimal"
    assert named(result) == {"c", "h"}
    for culprit in result.culprits:
        assert culprit.role == "together"
        assert culprit.sigma_in_context == pytest.approx(3.0, abs=1e-3 + 4 * jitter)
        assert culprit.shapley_sigma == pytest.approx(1.5, abs=1e-3 + 4 * jitter)


@JITTER
def test_two_of_which_either_is_enough_are_both_named(jitter: float) -> None:
    result = searched(either, jitter=jitter)
    assert result.status == "minimal"
    assert named(result) == {"c", "h"}
    for culprit in result.culprits:
        assert culprit.role == "redundant"
        assert culprit.sigma_alone == pytest.approx(3.0, abs=1e-3 + 4 * jitter)
        assert culprit.sigma_in_context == pytest.approx(0.0, abs=1e-3 + 4 * jitter)
        assert culprit.shapley_sigma == pytest.approx(1.5, abs=1e-3 + 4 * jitter)


def test_three_that_act_only_together_are_named() -> None:
    result = searched(lambda inside: 3.0 * (inside >= {"b", "f", "k"}), jitter=0.1)
    assert named(result) == {"b", "f", "k"}


@pytest.mark.parametrize("left", [0.0, 3e-6])
def test_what_cancels_on_every_document_but_for_rounding_has_no_culprit(left: float) -> None:
    """A re-layout: values times 4 and what reads them by 4. Alone, each would be a catastrophe."""
    result = searched(effects(b=1e5, j=left - 1e5), jitter=0.0)
    assert (result.status, named(result), result.suspects) == ("not_reproduced", set(), ())
    assert result.cost == 0.0


def relaid(*pairs: frozenset[str], **faults: float) -> Drift:
    """Catastrophes of what is in without what undoes it, and the effects of real faults."""

    def drift(inside: frozenset[str]) -> float:
        apart = [one for one in pairs if inside & one and not inside >= one]
        rest = effects(**faults)(inside)
        return rest + sum(40.0 + 9.0 * len(inside & one) for one in apart) / (1.0 + 0.1 * rest)

    return drift


CANCELLING = pytest.mark.parametrize(
    "pairs",
    [(frozenset("bj"),), (frozenset("cdk"),), (frozenset("bj"), frozenset("ck"))],
    ids=["two", "three", "two and two"],
)


@pytest.mark.parametrize("jitter", [0.0, 0.1])
@CANCELLING
def test_what_cancels_is_no_culprit_beside_a_fault_of_another_origin(
    pairs: tuple[frozenset[str], ...], jitter: float
) -> None:
    result = searched(relaid(*pairs, e=6.0), jitter=jitter)
    assert (result.status, named(result)) == ("minimal", {"e"})
    assert frozenset[str]().union(*pairs) <= {*result.repaired}
    moved = {probe.settings for probe in result.probes if abs(probe.drift_sigma or 0.0) > 1.0}
    assert not moved & {(one,) for one in result.inert}
    assert result.cost <= expected_evaluations(len(NAMES), 3)


def test_what_cancels_beside_a_change_inside_the_margin_has_no_culprit() -> None:
    result = searched(relaid(frozenset("bj"), e=0.4), jitter=0.0)
    assert (result.status, named(result)) == ("not_reproduced", set())


@pytest.mark.parametrize("jitter", [0.0, 0.1, 0.2])
@CANCELLING
def test_what_cancels_beside_three_faults_is_no_culprit_and_costs_no_more_than_they_do(
    pairs: tuple[frozenset[str], ...], jitter: float
) -> None:
    """Where nothing but the scores tells that they do."""
    result = searched(relaid(*pairs, e=6.0, g=4.0, h=5.0), jitter=jitter)
    assert (result.status, named(result)) == ("minimal", {"e", "g", "h"})
    assert result.cost <= expected_evaluations(len(NAMES), 3)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("size", [8.0, 15.0])
def test_what_cancels_and_does_no_more_alone_than_the_faults_together_is_no_culprit(
    size: float, seed: int
) -> None:
    """Nothing is far beyond the candidate: either seems to suffice, and both do nothing."""

    def drift(inside: frozenset[str]) -> float:
        apart = len(inside & {"b", "j"}) == 1
        return size * apart + effects(e=6.0, g=4.0, h=5.0)(inside)

    result = searched(drift, jitter=0.2, seed=seed)
    assert (result.status, named(result)) == ("minimal", {"e", "g", "h"})
    assert result.cost <= 1.5 * expected_evaluations(len(NAMES), 3)


def test_two_of_which_each_hides_the_other_are_two_culprits_however_far_they_drift() -> None:
    """Not one setting: on each document they do something together."""
    result = searched(effects(b=30.0, j=-28.0), jitter=0.1)
    assert (result.status, named(result)) == ("masked", {"b", "j"})


@pytest.mark.parametrize("seed", [4, 9])
@pytest.mark.parametrize("fault", [0.0, 3.0, 10.0])
def test_what_cancels_but_for_jitter_that_reaches_the_margin_is_no_culprit(
    fault: float, seed: int
) -> None:
    """Together both drift by their jitter alone, 0.5 of a margin of 1."""
    names = tuple(f"s{number}" for number in range(16))
    first, second, third = np.random.default_rng([seed, 9]).permutation(names)[:3].tolist()

    def drift(inside: frozenset[str]) -> float:
        return 10.0 * (len(inside & {first, second}) == 1) + fault * (third in inside)

    oracle = PlantedScores(drift, jitter=0.5, seed=seed)
    result = find_culprits(oracle, names, margin=1.0, yardstick=YARDSTICK, seed=seed)
    assert named(result) == ({third} if fault else set())
    assert result.cost <= 16.0


def test_what_cancels_beside_two_faults_is_kept_and_both_are_named() -> None:
    result = searched(relaid(frozenset("bj"), e=6.0, g=4.0), jitter=0.1)
    assert (result.status, named(result)) == ("minimal", {"e", "g"})


def test_where_the_budget_ends_before_it_is_known_what_cancels_what_is_proven_stands() -> None:
    for budget in (0.3, 1.0, 2.0, 3.0):
        result = searched(relaid(frozenset("bj"), e=6.0), budget=budget)
        assert result.cost <= budget + 1e-6
        assert result.status in ("stopped", "minimal")


@JITTER
@pytest.mark.parametrize("hiding", [-3.5, -5.0])
def test_a_setting_that_hides_anothers_drift_is_found_inside_the_margin_and_beyond(
    hiding: float, jitter: float
) -> None:
    result = searched(effects(b=3.0, j=hiding), jitter=jitter)
    assert result.status == "masked"
    assert named(result) == {"b", "j"}
    assert result.drift_sigma == pytest.approx(3.0 + hiding, abs=1e-6 + 4 * jitter)


@JITTER
def test_an_unchanged_candidate_is_not_reproduced_and_nobody_is_named(jitter: float) -> None:
    result = searched(effects(), jitter=jitter)
    assert result.status == "not_reproduced"
    assert not result.culprits


@JITTER
def test_drift_spread_over_all_is_diffuse_names_parts_and_stays_cheap(jitter: float) -> None:
    result = searched(effects(**dict.fromkeys(NAMES, 0.4)), jitter=jitter)
    assert result.status == "diffuse"
    assert not result.culprits
    assert [name for part in result.parts for name in part.settings] == list(NAMES)
    assert sum(part.sigma for part in result.parts) == pytest.approx(4.8, abs=1.0)
    assert result.cost <= 6.0


def test_a_culprit_inside_the_margin_is_not_needed_and_not_named() -> None:
    result = searched(effects(d=4.0, e=0.7), jitter=0.1)
    assert (result.status, named(result)) == ("minimal", {"d"})
    assert result.unexplained_sigma == pytest.approx(0.7, abs=0.4)


def test_two_that_pass_the_margin_only_as_a_sum_are_both_named() -> None:
    result = searched(effects(d=0.8, e=0.8), jitter=0.05)
    assert (result.status, named(result)) == ("minimal", {"d", "e"})


def test_settings_that_change_nothing_are_listed_as_inert() -> None:
    result = searched(effects(e=3.0))
    assert "e" not in result.inert
    assert result.inert


def test_a_culprit_that_does_nothing_without_its_partner_is_not_listed_as_inert() -> None:
    result = searched(lambda inside: 5.0 if {"d", "e"} <= inside else 0.0)
    assert named(result) == {"d", "e"}
    assert not {"d", "e"} & {*result.inert}


@settings(max_examples=10)
@given(
    guilty=st.sets(st.sampled_from(NAMES), min_size=1, max_size=3),
    sizes=st.lists(st.floats(1.5, 8.0), min_size=3, max_size=3),
    seed=st.integers(0, 1 << 20),
)
def test_additive_effects_without_jitter_are_named_exactly(
    guilty: set[str], sizes: list[float], seed: int
) -> None:
    planted = dict(zip(sorted(guilty), sizes, strict=False))
    result = searched(effects(**planted), seed=seed)
    assert (result.status, named(result)) == ("minimal", guilty)
    for culprit in result.culprits:
        assert culprit.sigma_alone == pytest.approx(planted[culprit.name], abs=1e-6)
        assert culprit.shapley_sigma == pytest.approx(planted[culprit.name], abs=0.1)


@pytest.mark.parametrize("seed", range(2))
def test_a_thorough_search_proves_an_effect_of_three_standard_errors_of_the_jitter(
    seed: int,
) -> None:
    result = searched(effects(c=2.0), jitter=0.67, seed=seed, thorough=True)
    assert (result.status, named(result)) == ("minimal", {"c"})
    assert result.culprits[0].error_sigma * 3.0 <= abs(result.culprits[0].shapley_sigma)
