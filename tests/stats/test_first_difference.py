"""Where two answers first differ, and whether that is a near tie."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalguard.answers.first_difference import NEAR_TIE, find_first_difference
from evalguard.core.shown_tokens import GeneratedTokens

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


@pytest.mark.parametrize(
    ("ended", "margin", "expected"),
    [
        (("stop", "stop"), 2.0, False),
        (("stop", ""), 2.0, False),
        (("stop", "stop"), 0.2, None),
        (("length", "stop"), 2.0, None),
        (("", "stop"), 2.0, None),
    ],
)
def test_a_text_that_ends_by_itself_where_the_other_clearly_goes_on_is_no_tie(
    ended: Any, margin: float, expected: bool | None
) -> None:
    base = GeneratedTokens.of([1, 2], [2.0, 2.0], [5, 5])
    longer = GeneratedTokens.of([1, 2, B], [2.0, 2.0, margin], [5, 5, 5])
    found = find_first_difference("a", "ab", base, longer, ended=ended)
    assert found is not None
    assert found.near_tie is expected
    turned = find_first_difference("ab", "a", longer, base, ended=ended[::-1])
    assert turned is not None
    assert turned.near_tie is expected


def test_a_greedy_token_against_the_odds_is_as_far_from_a_tie_as_the_odds_are() -> None:
    for margin, expected in ((-1.0, False), (-0.1, True)):
        found = find_first_difference("a", "b", *pair(0.1, margin), greedy=True)
        assert found is not None
        assert found.near_tie is expected


@pytest.mark.parametrize(
    ("texts", "ids", "expected"),
    [
        (("a b c d e", "a b d e"), [-3, -4, -5], False),
        (("a b c d e", "a b d e"), [1, 2, 3, 4, 5], False),
        (("a b c d e", "x y"), [1, 2], None),  # ids of two tokenizers
        (("a b c d e", "a b c"), [-3, -4, -5], None),  # two rules for stops
        (("a b, c", "a b , c"), [-3, -4, -5], None),  # two decoders
    ],
)
def test_the_same_tokens_and_other_words_are_damage(
    texts: tuple[str, str], ids: list[int], expected: bool | None
) -> None:
    found = find_first_difference(*texts, GeneratedTokens.of(ids), GeneratedTokens.of(ids))
    assert found is not None
    assert (found.position, found.near_tie) == (None, expected)


def test_a_token_that_one_side_names_by_its_text_is_compared_up_to_there() -> None:
    base = GeneratedTokens.of([1, 2, 3], [2.0] * 3, [5] * 3)
    beside = GeneratedTokens.of([1, 7, -9], [2.0] * 3, [5] * 3)
    found = find_first_difference("a", "b", base, beside)
    assert found is not None
    assert (found.position, found.near_tie) == (1, False)
    hidden = GeneratedTokens.of([-8, 7, 3], [2.0] * 3, [5] * 3)
    unknown = find_first_difference("a", "b", base, hidden)
    assert unknown is not None
    assert unknown.near_tie is None


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
