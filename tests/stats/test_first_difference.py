"""Where two answers first differ, and whether that is a near tie."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalguard.core.generated_tokens import GeneratedTokens
from evalguard.stats.answers.first_difference import NEAR_TIE, find_first_difference

A, B, C = 7, 8, 9


def pair(
    base_margin: float, candidate_margin: float, *, base_other: int = B, candidate_other: int = A
) -> tuple[GeneratedTokens, GeneratedTokens]:
    """Two answers that go on with A and B after the same two tokens."""
    return (
        GeneratedTokens.of([1, 2, A, 3], [2.0, 2.0, base_margin, 2.0], [5, 5, base_other, 5]),
        GeneratedTokens.of([1, 2, B], [2.0, 2.0, candidate_margin], [5, 5, candidate_other]),
    )


def test_the_same_text_does_not_differ_whatever_its_tokens() -> None:
    base, candidate = pair(3.0, 3.0)
    assert find_first_difference("same", "same", base, candidate) is None
    assert find_first_difference("same", "same", None, None) is None


def test_other_texts_differ_at_the_first_token_that_is_another() -> None:
    found = find_first_difference("a", "b", *pair(0.5, 0.25))
    assert found is not None
    assert (found.position, found.base_token, found.candidate_token) == (2, A, B)
    assert (found.base_margin, found.candidate_margin) == (0.5, 0.25)
    assert found.base_margin_exact
    assert found.candidate_margin_exact


@pytest.mark.parametrize(
    ("margins", "others", "expected"),
    [
        ((0.0, 0.0), (B, A), True),
        ((NEAR_TIE, NEAR_TIE), (B, A), True),
        ((NEAR_TIE + 0.01, 0.0), (B, A), False),
        ((0.0, NEAR_TIE + 0.01), (B, A), False),  # the candidate was sure of what the base was not
        ((0.1, 0.1), (C, A), True),  # three about equal: they are the two most probable of one side
        ((0.1, 0.1), (C, C), None),  # the odds of these two are not shown
        ((0.1, 0.3), (C, C), False),
        ((np.nan, 0.1), (-1, A), True),
        ((np.nan, 0.3), (-1, A), False),
        ((0.1, np.nan), (B, -1), True),
        ((0.1, np.nan), (C, -1), None),
        ((0.3, np.nan), (C, -1), False),
        ((np.nan, np.nan), (-1, -1), None),
    ],
)
def test_a_near_tie_is_where_no_side_was_decided_between_the_two_tokens(
    margins: tuple[float, float], others: tuple[int, int], expected: bool | None
) -> None:
    tokens = pair(*margins, base_other=others[0], candidate_other=others[1])
    found = find_first_difference("a", "b", *tokens)
    assert found is not None
    assert found.near_tie is expected


def test_a_margin_is_a_lower_bound_where_the_other_token_is_a_third_one() -> None:
    found = find_first_difference("a", "b", *pair(0.1, 0.2, base_other=C))
    assert found is not None
    assert not found.base_margin_exact
    assert found.candidate_margin_exact


@pytest.mark.parametrize("known", ["base", "candidate", "neither"])
def test_without_the_tokens_of_both_only_the_text_differs(known: str) -> None:
    base, candidate = pair(0.1, 0.1)
    found = find_first_difference(
        "a", "b", base if known == "base" else None, candidate if known == "candidate" else None
    )
    assert found is not None
    assert found.position is None
    assert found.near_tie is None


def test_where_one_text_is_over_the_other_differs_and_nobody_knows_how_surely() -> None:
    base = GeneratedTokens.of([1, 2], [2.0, 2.0], [5, 5])
    longer = GeneratedTokens.of([1, 2, B], [2.0, 2.0, 2.0], [5, 5, 5])
    found = find_first_difference("a", "ab", base, longer)
    assert found is not None
    assert (found.position, found.base_token, found.candidate_token) == (2, None, B)
    assert found.base_margin is None
    assert found.near_tie is None


def test_what_was_sampled_is_no_question_of_ties() -> None:
    base, candidate = pair(3.0, 3.0)
    drawn = GeneratedTokens.of(base.ids.tolist(), [2.0, 2.0, 3.0, -1.0], base.others.tolist())
    found = find_first_difference("a", "b", drawn, candidate)
    assert found is not None
    assert found.position == 2
    assert found.near_tie is None


def test_texts_without_ids_and_tokens_that_say_two_texts_have_no_position() -> None:
    base, _ = pair(0.1, 0.1)
    hidden = GeneratedTokens.of([-1, -1])
    for candidate in (base, hidden):
        found = find_first_difference("a", "b", base, candidate)
        assert found is not None
        assert found.position is None


@given(
    st.lists(st.integers(0, 3), max_size=6),
    st.lists(st.integers(0, 3), max_size=6),
)
def test_before_the_position_the_tokens_are_the_same(ours: list[int], theirs: list[int]) -> None:
    texts = ["".join(map(str, one)) for one in (ours, theirs)]
    found = find_first_difference(*texts, GeneratedTokens.of(ours), GeneratedTokens.of(theirs))
    if ours == theirs:
        assert found is None
    else:
        assert found is not None
        assert found.position is not None
        assert ours[: found.position] == theirs[: found.position]
        assert ours[found.position : found.position + 1] != theirs[found.position :][:1]
