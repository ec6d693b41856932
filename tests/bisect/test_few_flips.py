"""Scores that change in a handful of documents, and otherwise not by a bit."""

from __future__ import annotations

import numpy as np
import pytest
from flipped_scores import DOCUMENT, YARDSTICK, FlippedScores, N, with_all, with_any
from hypothesis import given, settings
from hypothesis import strategies as st
from planted_scores import named

from evalguard.bisect.search.block_estimates import Flips, blocks_for
from evalguard.bisect.search.find_culprits import find_culprits
from evalguard.bisect.search.search_result import BisectResult
from evalguard.core.question import Oracle

NAMES = tuple(f"s{number}" for number in range(16))


def searched(
    oracle: Oracle, names: tuple[str, ...] = NAMES, *, allowed: float, seed: int = 0
) -> BisectResult:
    """``allowed``: documents that may be wrong more."""
    return find_culprits(
        oracle, names, margin=allowed * DOCUMENT, yardstick=YARDSTICK, seed=seed
    )  # fmt: skip


@settings(max_examples=15, deadline=None)
@given(
    flips=st.integers(9, 14),
    n=st.sampled_from([1, 2, 8, 16]),
    guilty=st.integers(0, 15),
    seed=st.integers(0, 1 << 20),
)
def test_the_one_setting_that_changes_any_score_is_named_by_elimination(
    flips: int, n: int, guilty: int, seed: int
) -> None:
    culprit = NAMES[guilty % n]
    oracle = FlippedScores([(with_all(culprit), flips)], seed=seed)
    result = searched(oracle, NAMES[:n], allowed=0.6 * flips, seed=seed)
    assert (result.status, named(result), result.eliminated) == ("minimal", {culprit}, True)
    assert result.unexplained_sigma == 0.0
    assert result.cost <= 5.0


@pytest.mark.parametrize("flips", [9, 12])
@pytest.mark.parametrize(
    ("kind", "most"), [("additive", 8.0), ("together", 7.0), ("redundant", 8.0)]
)
def test_two_culprits_are_named_by_elimination(kind: str, most: float, flips: int) -> None:
    planted = {
        "additive": [(with_all("s3"), flips), (with_all("s11"), flips)],
        "together": [(with_all("s3", "s11"), flips)],
        "redundant": [(with_any("s3", "s11"), flips)],
    }[kind]
    result = searched(FlippedScores(planted), allowed=0.6 * flips)
    assert (result.status, named(result), result.eliminated) == ("minimal", {"s3", "s11"}, True)
    assert {culprit.role for culprit in result.culprits} == {kind}
    assert result.cost <= most


class InBlocks(FlippedScores):
    """Answers in blocks of its own, over which the few documents that change are spread."""

    blocks = tuple(np.array_split(np.random.default_rng(3).permutation(N), 10))


@pytest.mark.parametrize("seed", range(3))
def test_two_culprits_of_ten_documents_each_are_named_in_given_blocks_too(seed: int) -> None:
    oracle = InBlocks([(with_all("s3"), 10), (with_all("s11"), 10)], seed=seed)
    result = searched(oracle, NAMES[:12], allowed=6.0, seed=seed)
    assert (result.status, named(result), result.eliminated) == ("minimal", {"s3", "s11"}, True)
    assert result.cost <= 12.0


@pytest.mark.parametrize("seed", range(3))
def test_settings_that_change_one_document_each_are_not_named_beside_a_culprit(seed: int) -> None:
    oracle = FlippedScores([(with_all("s6"), 10)], strays=("s1", "s9", "s14"), seed=seed)
    result = searched(oracle, allowed=5.0, seed=seed)
    assert (result.status, named(result), result.eliminated) == ("minimal", {"s6"}, False)
    assert result.cost <= 5.0


@pytest.mark.parametrize("seed", range(3))
def test_what_the_others_do_as_well_proves_nobody_and_is_given_up_early(seed: int) -> None:
    strays = tuple(f"s{number}" for number in range(7, 13))
    oracle = FlippedScores([(with_all("s6"), 5)], strays=strays, seed=seed)
    result = searched(oracle, allowed=3.0, seed=seed)
    assert (result.status, result.culprits) == ("unexplained", ())
    assert result.suspects[0].name == "s6"
    assert result.cost <= 10.0


@pytest.mark.parametrize("seed", range(6))
def test_near_ties_that_every_assignment_decides_anew_blame_nobody(seed: int) -> None:
    result = searched(FlippedScores([], ties=40, seed=seed), allowed=0.9, seed=seed)
    assert not result.culprits


@pytest.mark.parametrize("seed", range(3))
def test_a_culprit_is_found_beside_near_ties(seed: int) -> None:
    oracle = FlippedScores([(with_all("s2"), 16)], ties=16, seed=seed)
    result = searched(oracle, allowed=8.0, seed=seed)
    assert (named(result), result.eliminated) == ({"s2"}, False)


@pytest.mark.parametrize("flips", [2, 4])
def test_what_so_few_documents_may_show_by_chance_names_nobody_but_says_whom_it_suspects(
    flips: int,
) -> None:
    result = searched(FlippedScores([(with_all("s5"), flips)]), allowed=0.6 * flips)
    assert (result.status, result.culprits) == ("unexplained", ())
    (suspect,) = [one for one in result.suspects if one.name == "s5"]
    assert suspect.p_value == pytest.approx(0.5 ** (flips + 1))  # McNemar's mid-p


class Rounded(FlippedScores):
    """Any of three settings flips the same answers, 10% of all, for better as for worse."""

    def __init__(self, *, seed: int, culprit: int = 0) -> None:
        super().__init__([(with_all("s7"), culprit)], seed=seed)
        rng = np.random.default_rng([seed, 11])
        self._flipped = rng.random(N) < 0.1
        self._base = (rng.random(N) < 0.5).astype(np.float64)

    def measure(self, candidate_settings, documents):  # type: ignore[no-untyped-def]
        scores = super().measure(candidate_settings, np.arange(N))
        if candidate_settings & {"s0", "s1", "s2"}:
            scores = np.where(self._flipped, 1.0 - scores, scores)
        return scores[documents]


def rounded_and_failing(runs: int, *, margin: float) -> list[Rounded]:
    """As many of whom the literal rule fails, though rounding makes no answer worse."""
    everything, found, seed = np.arange(N), [], 0
    while len(found) < runs:
        oracle, seed = Rounded(seed=seed), seed + 1
        base, candidate = (oracle.measure(frozenset(one), everything) for one in ((), NAMES[:12]))
        if float(np.mean(base - candidate)) > margin * 0.04:
            found.append(oracle)
    return found


def test_rounding_that_fails_the_gate_by_chance_names_next_to_nobody() -> None:
    runs = [
        find_culprits(oracle, NAMES[:12], margin=0.7, yardstick=0.04, seed=seed)
        for seed, oracle in enumerate(rounded_and_failing(12, margin=0.7))
    ]
    assert sum(bool(run.culprits) for run in runs) <= 2  # more than half before own evidence


def test_one_setting_whose_jitter_is_large_is_named_where_no_other_changes_a_score() -> None:
    class Rounded:
        """s1 changes every score by much; its mean drift is 2.8 standard errors of that."""

        n_documents = N

        def measure(self, candidate_settings, documents):  # type: ignore[no-untyped-def]
            noise = np.random.default_rng(5).standard_normal(N)
            noise += 2.8 / N**0.5 - noise.mean()
            return (-noise * ("s1" in candidate_settings))[documents]

    result = find_culprits(Rounded(), NAMES[:6], margin=0.05, yardstick=1.0, seed=0)
    assert (result.status, named(result), result.eliminated) == ("minimal", {"s1"}, True)


def test_documents_that_the_candidate_changes_are_asked_first() -> None:
    drift = np.zeros(N)
    drift[[3, 70, 150]] = 1.0
    blocks = blocks_for(None, drift, np.random.default_rng(0))
    assert set(blocks.order[:3].tolist()) == {3, 70, 150}
    given = np.array_split(np.arange(N), 8)
    ordered = blocks_for(given, drift, np.random.default_rng(0))
    assert set(np.concatenate([given[0], given[3], given[7]])) == set(ordered.order[:60])
    assert sorted(ordered.order.tolist()) == list(range(N))


def test_what_part_of_the_documents_shows_of_flips_is_as_uncertain_as_it_says() -> None:
    rng = np.random.default_rng(0)
    off, said = [], []
    for _ in range(400):
        candidate = np.zeros(N)
        candidate[:12] = 1.0
        share = rng.random()  # of the candidate's flips that this assignment makes
        drift = candidate * (rng.random(N) < share)
        order = np.concatenate([rng.permutation(12), np.arange(12, N)])
        mean, variance = Flips(drift=candidate[order]).estimate(drift[order][:6], 0.0)
        off.append((mean - drift.mean()) * N)
        said.append(variance * N**2)
    assert abs(np.mean(off)) < 0.3
    assert np.mean(np.square(off)) == pytest.approx(np.mean(said), rel=0.25)


def test_scores_that_change_everywhere_are_not_counted() -> None:
    alike = np.repeat([1.0, 0.0], [N - 9, 9])
    assert Flips.of(alike) is None  # told by the mean, unless documents are counted
    assert Flips.of(alike, counted=True) is not None
    assert Flips.of(np.ones(N)) is None
    assert Flips.of(np.zeros(N)) is None


@pytest.mark.parametrize("seed", range(3))
def test_a_setting_that_makes_most_answers_wrong_costs_two_evaluations(seed: int) -> None:
    oracle = FlippedScores([(with_all("s5"), 100)], seed=seed)
    result = searched(oracle, allowed=60.0, seed=seed)
    assert (result.status, named(result)) == ("minimal", {"s5"})
    assert result.cost <= 2.1
