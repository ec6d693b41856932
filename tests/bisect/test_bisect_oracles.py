"""What an oracle may offer beside answers: blocks of its own, several at once, another unit."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planted_scores import NAMES, YARDSTICK, N, PlantedScores, effects, named

from evalguard.bisect.search.block_estimates import order_documents
from evalguard.bisect.search.find_culprits import find_culprits
from evalguard.bisect.search.search_result import BisectResult
from evalguard.core.question import Floats, Indices, Oracle, Question, Untestable
from evalguard.errors import UsageError

TWO = effects(c=2.5, h=3.5)
GUILTY = {"c", "h"}


def searched(oracle: Oracle, **more: object) -> BisectResult:
    return find_culprits(oracle, NAMES, margin=1.0, yardstick=YARDSTICK, seed=3, **more)  # type: ignore[arg-type]


class InBlocks(PlantedScores):
    """Scores documents in 15 blocks of 20 and one of 20, cut at random, not in order."""

    blocks: tuple[Indices, ...] = tuple(np.array_split(np.random.default_rng(5).permutation(N), 16))


class AtOnce(PlantedScores):
    """Answers several questions at once, and counts how many came together."""

    def __init__(self, *given: object, **more: object) -> None:
        super().__init__(*given, **more)  # type: ignore[arg-type]
        self.together: list[int] = []

    def measure_all(self, questions: Sequence[Question]) -> list[Floats | Untestable]:
        self.together.append(len(questions))
        answers: list[Floats | Untestable] = []
        for question in questions:
            try:
                answers.append(self.measure(*question))
            except Untestable as refusal:
                answers.append(refusal)
        return answers


def test_documents_are_asked_in_whole_blocks_of_the_oracle() -> None:
    oracle = InBlocks(TWO, jitter=0.3)
    result = searched(oracle)
    blocks = [frozenset(block.tolist()) for block in oracle.blocks]
    for _, documents in oracle.asked:
        inside = frozenset(documents.tolist())
        assert all(block <= inside or not block & inside for block in blocks)
    assert any(probe.documents < N for probe in result.probes)
    assert (result.status, named(result)) == ("minimal", GUILTY)


@settings(max_examples=50)
@given(sizes=st.lists(st.integers(1, 40), min_size=2, max_size=30), seed=st.integers(0, 1 << 20))
def test_prefixes_of_given_blocks_drift_as_all_documents_do(sizes: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    drift = rng.standard_normal(sum(sizes))
    ends = np.cumsum(sizes)
    found = order_documents(np.split(rng.permutation(drift.size), ends[:-1]), drift, rng)
    assert sorted(found.order.tolist()) == list(range(drift.size))
    off = np.cumsum(drift[found.order] - drift.mean())[np.array(found.ends) - 1]
    largest = max(
        abs(float(np.sum(drift[block] - drift.mean())))
        for block in np.split(found.order, found.ends[:-1])
    )
    # The nearest block comes next, so a prefix is never further off than its blocks are.
    assert np.all(np.abs(off[: off.size // 2]) <= largest + 1e-9)
    assert off[-1] == pytest.approx(0.0, abs=1e-9)


def test_blocks_that_do_not_hold_every_document_once_are_refused() -> None:
    oracle = InBlocks(TWO)
    oracle.blocks = (*oracle.blocks[:-1], oracle.blocks[0])
    with pytest.raises(UsageError, match="16 blocks of an oracle hold 320 documents, and it has"):
        searched(oracle)


def test_questions_that_are_independent_are_asked_at_once_with_the_same_result() -> None:
    three = effects(a=2.0, g=6.0, l=4.0)
    oracle = AtOnce(three, jitter=0.3)
    result = searched(oracle)
    assert oracle.together[0] == 2  # base and candidate
    assert max(oracle.together[1:]) >= 2  # what verifies an answer
    assert result == searched(PlantedScores(three, jitter=0.3))


def test_a_refusal_among_answers_takes_only_itself() -> None:
    def cannot(inside: frozenset[str]) -> bool:
        return ("c" in inside and "d" not in inside) or ("a" in inside and "h" not in inside)

    result = searched(AtOnce(TWO, jitter=0.2, cannot=cannot))
    assert named(result) == GUILTY
    assert result.untestable
    assert {probe.reason for probe in result.untestable} == {"out of memory"}
    assert {probe.outcome for probe in result.untestable} == {"out_of_memory"}


def test_a_candidate_that_cannot_be_built_is_an_error_when_asked_at_once_too() -> None:
    with pytest.raises(Untestable, match="the candidate: out of memory"):
        searched(AtOnce(TWO, cannot=lambda inside: len(inside) == len(NAMES)))


def test_what_is_reported_is_in_the_unit_and_what_is_decided_is_not() -> None:
    # A perplexity's sigma: the exponential of a mean, so that 6 yardsticks are more than 2 x 3.
    def unit(sigma: float) -> float:
        return 50.0 * math.exp(sigma / 40.0) - 3.0

    plain, converted = searched(PlantedScores(TWO)), searched(PlantedScores(TWO), unit=unit)
    assert [probe.settings for probe in plain.probes] == [p.settings for p in converted.probes]
    assert converted.drift_sigma == pytest.approx(unit(6.0) - unit(0.0))
    by_name = {culprit.name: culprit for culprit in converted.culprits}
    assert by_name["c"].sigma_alone == pytest.approx(unit(2.5) - unit(0.0))
    assert by_name["c"].sigma_in_context == pytest.approx(unit(6.0) - unit(3.5), rel=1e-3)
    shares = sum(culprit.shapley_sigma for culprit in converted.culprits)
    assert shares == pytest.approx(unit(6.0) - unit(0.0), rel=1e-3)
    assert converted.unexplained_sigma == pytest.approx(0.0, abs=1e-6)


def test_fewer_documents_than_show_how_far_they_scatter_are_refused() -> None:
    class Few(PlantedScores):
        n_documents = 7

    with pytest.raises(UsageError, match="needs 8 documents or more"):
        searched(Few(TWO))
