"""Budgets, interruptions, assignments that cannot be built: what a search does at its limits."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planted_scores import NAMES, YARDSTICK, N, PlantedScores, effects, named

from evalguard.bisect.search.find_culprits import find_culprits
from evalguard.bisect.search.search_result import (
    Accepted,
    BisectResult,
    Event,
    Expected,
    ProbeEnded,
    ProbeStarted,
)
from evalguard.core.question import Untestable
from evalguard.core.settings import Constraint
from evalguard.errors import UsageError

GUILTY = {"c", "h"}
TWO = effects(c=2.5, h=3.5)


def searched(oracle: PlantedScores, **more: object) -> BisectResult:
    return find_culprits(oracle, NAMES, margin=1.0, yardstick=YARDSTICK, seed=3, **more)  # type: ignore[arg-type]


def test_the_same_question_has_the_same_answer() -> None:
    assert searched(PlantedScores(TWO, jitter=0.3)) == searched(PlantedScores(TWO, jitter=0.3))


def test_nothing_is_measured_twice_and_the_cost_is_what_was_asked() -> None:
    oracle = PlantedScores(TWO, jitter=0.3)
    result = searched(oracle)
    pairs = [(inside, int(one)) for inside, documents in oracle.asked for one in documents]
    assert len(pairs) == len(set(pairs))
    searched_pairs = len(pairs) - 2 * N  # base and candidate come free
    launched = {inside for inside, _ in oracle.asked} - {frozenset(), frozenset(NAMES)}
    assert result.cost == pytest.approx(searched_pairs / N + 0.05 * len(launched))
    assert result.cost == pytest.approx(sum(probe.cost for probe in result.probes))


@settings(max_examples=8)
@given(budget=st.floats(0.0, 9.0))
def test_a_search_never_costs_more_than_its_budget(budget: float) -> None:
    result = searched(PlantedScores(TWO, jitter=0.1), budget=budget)
    assert result.cost <= budget + 1e-9
    assert result.status in ("stopped", "minimal")
    assert named(result) <= GUILTY


def test_interrupted_at_any_question_the_result_is_labelled_and_names_no_innocent() -> None:
    whole = PlantedScores(TWO, jitter=0.05)
    finished = searched(whole)
    assert finished.status == "minimal"
    for at in range(len(whole.asked)):
        result = searched(PlantedScores(TWO, jitter=0.05, interrupt_at=at))
        assert result.status == "stopped"
        assert named(result) <= GUILTY
        assert result.probes == finished.probes[: max(at - 2, 0)]
        assert math.isnan(result.drift_sigma) == (at < 2)


def test_an_interrupted_search_says_whom_it_suspects() -> None:
    whole = PlantedScores(TWO, jitter=0.05)
    searched(whole)
    result = searched(PlantedScores(TWO, jitter=0.05, interrupt_at=len(whole.asked) - 1))
    assert named(result) | {suspect.name for suspect in result.suspects} == GUILTY


def test_declared_constraints_are_never_tried() -> None:
    rules = (
        Constraint(when={"c": "candidate"}, then={"d": "candidate"}),
        Constraint(when={"f": "reference"}, then={"g": "reference"}),
    )

    def cannot(inside: frozenset[str]) -> bool:
        return ("c" in inside and "d" not in inside) or ("g" in inside and "f" not in inside)

    result = searched(PlantedScores(TWO, jitter=0.2, cannot=cannot), constraints=rules)
    assert not any(probe.reason for probe in result.probes)
    assert (result.status, named(result)) == ("minimal", GUILTY)
    alone = {culprit.name: culprit.sigma_alone for culprit in result.culprits}
    assert alone["c"] is None
    assert alone["h"] == pytest.approx(3.5, abs=0.8)


def test_two_that_cannot_be_at_candidate_together_are_told_apart() -> None:
    rules = (Constraint(when={"a": "candidate"}, then={"b": "reference"}),)

    def cannot(inside: frozenset[str]) -> bool:
        return {"a", "b"} <= inside != frozenset(NAMES)

    result = searched(PlantedScores(TWO, jitter=0.2, cannot=cannot), constraints=rules)
    assert not any(probe.reason for probe in result.probes)
    assert (result.status, named(result)) == ("minimal", GUILTY)


@pytest.mark.parametrize("most", [6, 10])
def test_a_repair_that_cannot_be_built_ends_the_search(most: int) -> None:
    """No rule "a needs b" explains it: without the culprit so many others at most can be built."""

    def cannot(inside: frozenset[str]) -> bool:
        return "c" not in inside and len(inside) > most

    oracle = PlantedScores(effects(c=6.0), jitter=0.05, cannot=cannot)
    result = find_culprits(oracle, NAMES, margin=1.0, yardstick=YARDSTICK, seed=1)
    assert (result.status, named(result)) == ("unexplained", {"c"})
    assert result.untestable


@settings(max_examples=10)
@given(share=st.floats(0.1, 0.95), rule=st.integers(0, 10**6), guilty=st.sampled_from([1, 2]))
def test_every_search_ends_whatever_cannot_be_built(share: float, rule: int, guilty: int) -> None:
    """No rule explains what fails: each assignment by itself does or does not."""

    def cannot(inside: frozenset[str]) -> bool:
        if not 0 < len(inside) < len(NAMES):
            return False
        return random.Random(f"{rule} {sorted(inside)}").random() < share

    planted = effects(**dict.fromkeys(sorted(GUILTY)[:guilty], 4.0))
    result = searched(PlantedScores(planted, jitter=0.2, cannot=cannot, seed=rule))
    assert named(result) <= set(sorted(GUILTY)[:guilty])
    assert result.status != "stopped"


@pytest.mark.parametrize("seed", range(3))
def test_undeclared_crashes_are_neither_good_nor_bad(seed: int) -> None:
    def cannot(inside: frozenset[str]) -> bool:
        return ("c" in inside and "d" not in inside) or ("a" in inside and "h" not in inside)

    result = searched(PlantedScores(TWO, jitter=0.2, cannot=cannot, seed=seed))
    assert any(probe.reason == "out of memory" for probe in result.probes)
    assert (result.status, named(result)) == ("minimal", GUILTY)
    assert "a" not in result.repaired  # it cannot be built where h is at reference


def test_scores_that_are_no_numbers_are_no_measurement() -> None:
    class Broken(PlantedScores):
        def measure(self, candidate_settings, documents):  # type: ignore[no-untyped-def]
            scores = super().measure(candidate_settings, documents)
            lost = "b" in candidate_settings and "c" not in candidate_settings
            return np.full_like(scores, np.nan) if lost else scores

    result = searched(Broken(TWO, jitter=0.2))
    assert any("not all finite" in probe.reason for probe in result.probes)
    assert named(result) == GUILTY


def test_a_base_or_candidate_that_cannot_be_built_is_an_error_and_no_verdict() -> None:
    with pytest.raises(Untestable, match="out of memory"):
        searched(PlantedScores(TWO, cannot=lambda inside: len(inside) == len(NAMES)))


def test_events_tell_what_is_tested_what_it_gave_and_who_is_accepted() -> None:
    events: list[Event] = []
    result = searched(PlantedScores(TWO, jitter=0.3), on_event=events.append)
    told = [event.probe for event in events if isinstance(event, ProbeEnded)]
    assert tuple(told) == result.probes
    assert sum(isinstance(event, ProbeStarted) for event in events) == len(result.probes)
    assert {event.setting for event in events if isinstance(event, Accepted)} == GUILTY
    expected = [event.remaining for event in events if isinstance(event, Expected)]
    assert expected[0] > expected[-1] >= 0.0


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"margin": 0.0}, "margin of a search must be above 0, got 0.0"),
        ({"yardstick": math.nan}, "yardstick of a search must be above 0, got nan"),
        ({"settings": ["a", "a"]}, "different names"),
        ({"settings": []}, "needs settings"),
        ({"budget": -1.0}, "budget of a search"),
        (
            {"constraints": [Constraint(when={"z": "candidate"}, then={"b": "candidate"})]},
            "a constraint of a search names z",
        ),
    ],
)
def test_arguments_that_make_no_sense_are_refused(wrong: dict[str, object], message: str) -> None:
    given = {"settings": NAMES, "margin": 1.0, "yardstick": YARDSTICK, "seed": 0, **wrong}
    with pytest.raises(UsageError, match=message):
        find_culprits(PlantedScores(TWO), **given)  # type: ignore[arg-type]
