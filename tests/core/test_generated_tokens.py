"""The tokens of generated texts, as the samples of a run keep them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalguard.core.shown_tokens import SAMPLE_COLUMNS, GeneratedTokens, read_sample, sample_columns

IDS = st.integers(-1, 2**31 - 1)
TOKENS = st.lists(st.tuples(IDS, st.floats(width=32), IDS), max_size=5).map(
    lambda rows: (
        GeneratedTokens.of(*(list(column) for column in zip(*rows, strict=True)))
        if rows
        else GeneratedTokens.of([])
    )
)


@given(st.lists(st.none() | TOKENS, max_size=4))
def test_samples_give_back_the_tokens_of_every_answer(
    answers: list[GeneratedTokens | None],
) -> None:
    columns = sample_columns(answers)
    assert tuple(columns) == SAMPLE_COLUMNS
    ids, margins, others = (columns[name] for name in SAMPLE_COLUMNS)
    assert read_sample(ids, margins, others, len(answers)) == tuple(answers)


def test_a_run_that_kept_no_tokens_has_none() -> None:
    assert read_sample(None, None, None, 2) == (None, None)


def test_margins_and_other_tokens_that_nobody_knows_are_unknown() -> None:
    found = GeneratedTokens.of([7])
    assert math.isnan(found.margins[0])
    assert found.others[0] == -1


@pytest.mark.parametrize(
    ("ids", "margins", "others"),
    [
        ([[1]], [[0.5, 0.5]], [[2]]),  # of different lengths
        ([[1]], None, [[2]]),
        ([[1]], [[0.5]], []),
        ([[1], [1]], [[0.5], [0.5]], [[2], [2]]),  # of more answers than there are
        (["a"], [[0.5]], [[2]]),
        ([[2**40]], [[0.5]], [[2]]),
        (3, 4, 5),
    ],
)
def test_damaged_tokens_are_refused(ids: object, margins: object, others: object) -> None:
    with pytest.raises(ValueError, match=r"shapes|tokens|literal"):
        read_sample(ids, margins, others, 1)
