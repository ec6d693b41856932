"""First differences of a task: how many documents, at which token, how many beyond near ties."""

from __future__ import annotations

import pytest

from evalguard.answers.generations import DifferenceTally
from evalguard.core.generation_comparison import FirstDifferences
from evalguard.core.shown_tokens import GeneratedTokens

SURE, TIED = 3.0, 0.1


def tokens(position: int, last: int, margin: float) -> GeneratedTokens:
    """An answer whose token at ``position`` is ``last``, before 7 or 8, the other's."""
    other = 15 - last
    return GeneratedTokens.of(
        [*range(20, 20 + position), last], [SURE] * position + [margin], [1] * position + [other]
    )


def tally(*documents: tuple[int, float] | None, unknown: int = 0) -> FirstDifferences:
    """Documents that differ at a position with both margins; None: the same text."""
    found = DifferenceTally()
    for doc_id, one in enumerate(documents):
        if one is None:
            found.add(doc_id, (["same"], ["same"]), ((), ()))
            continue
        at, margin = one
        sides = ([tokens(at, 7, margin)], [tokens(at, 8, margin)])
        found.add(doc_id, (["the fog"], ["the boat"]), sides)
    for doc_id in range(len(documents), len(documents) + unknown):
        found.add(doc_id, (["a"], ["b"]), ((), ()))
    return found.summary(confidence=0.95, labels=lambda _: ())


def test_documents_that_differ_are_counted_with_the_mean_position_of_those_that_have_one() -> None:
    found = tally(None, (2, SURE), (4, TIED), None, unknown=3)
    assert (found.n, found.differ, found.placed) == (7, 5, 2)
    assert found.position == 3.0


def test_the_share_beyond_near_ties_is_of_the_documents_of_which_that_is_known() -> None:
    found = tally(None, (2, SURE), (4, TIED), None, unknown=3)
    assert found.beyond_ties is not None
    assert found.beyond_ties.n == 4
    assert found.beyond_ties.base.value == 0.0
    assert found.beyond_ties.candidate.value == 0.25
    low, high = found.beyond_ties.difference.interval or (1.0, 0.0)
    assert low <= 0.25 <= high


def test_where_nothing_is_known_there_is_no_share() -> None:
    found = tally(unknown=3)
    assert found.beyond_ties is None
    assert found.position is None
    assert found.differ == 3
    # answers that are the same are not the share of those that differ
    assert tally(None, None, unknown=3).beyond_ties is None


def test_answers_that_are_all_the_same_differ_nowhere() -> None:
    found = tally(None, None, None)
    assert (found.differ, found.examples) == (0, ())
    assert found.beyond_ties is not None
    assert found.beyond_ties.candidate.value == 0.0


def test_a_document_with_several_answers_counts_by_the_share_that_differs_beyond_ties() -> None:
    found = DifferenceTally()
    base = [tokens(2, 7, SURE), tokens(2, 7, SURE)]
    candidate = [tokens(2, 8, SURE), tokens(2, 7, SURE)]
    found.add(0, (["a", "a"], ["b", "a"]), (base, candidate))
    found.add(1, (["a", "a"], ["a", "a"]), (base, base))
    told = found.summary(confidence=0.95, labels=lambda _: ())
    assert told.beyond_ties is not None
    assert told.beyond_ties.candidate.value == 0.25


@pytest.mark.parametrize("many", [7, 40])
def test_the_examples_are_those_that_were_least_of_a_tie(many: int) -> None:
    found = tally(*((3, TIED),) * many, (5, SURE), (6, SURE + 1.0))
    assert len(found.examples) == 5
    first, second, third, *_ = found.examples
    assert (first.doc_id, first.near_tie, first.base_margin) == (many + 1, False, SURE + 1.0)
    assert (second.doc_id, second.near_tie) == (many, False)
    assert (third.doc_id, third.near_tie) == (0, True)
    assert (first.before, first.base_text, first.candidate_text) == ("the ", "fog", "boat")
