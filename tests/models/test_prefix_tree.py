"""A tree holds every piece once, as one path whose tokens see what they would see alone."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from evalguard.models.hf.prefix_tree import (
    PrefixTree,
    build_prefix_tree,
    divide_into_rows,
    row_cost,
    shared_prefix_length,
)
from evalguard.models.scored_tokens import InputTokens


def piece(ids: list[int], n_scored: int) -> InputTokens:
    return InputTokens(ids=tuple(ids), n_scored=n_scored)


@st.composite
def pieces(draw: st.DrawFn) -> InputTokens:
    ids = draw(st.lists(st.integers(0, 2), min_size=2, max_size=9))
    return piece(ids, draw(st.integers(1, len(ids) - 1)))


blocks = st.sets(pieces(), min_size=1, max_size=12)


def path(tree: PrefixTree, index: int) -> list[int]:
    """The tokens that an index sees, itself included."""
    return np.flatnonzero(tree.mask[index]).tolist()


@given(blocks)
def test_every_piece_is_read_once_on_a_path_of_exactly_its_tokens(block: set[InputTokens]) -> None:
    tree = build_prefix_tree(block)
    assert sorted(tree.pieces, key=hash) == sorted(block, key=hash)
    for of, reads in zip(tree.pieces, tree.reads, strict=True):
        seen = path(tree, reads[-1])
        assert tree.ids[seen].tolist() == list(of.ids[:-1])
        assert tree.depths[seen].tolist() == list(range(len(of.ids) - 1))
        assert reads.tolist() == seen[len(seen) - of.n_scored :]


@given(blocks)
def test_a_token_sees_what_it_would_see_alone_and_no_token_is_there_twice(
    block: set[InputTokens],
) -> None:
    tree = build_prefix_tree(block)
    paths = {tuple(tree.ids[path(tree, index)].tolist()) for index in range(tree.width)}
    assert len(paths) == tree.width
    assert paths == {of.ids[:end] for of in block for end in range(1, len(of.ids))}


def test_one_token_continuations_are_all_read_off_the_context() -> None:
    tree = build_prefix_tree([piece([5, 6, 7, answer], 1) for answer in (1, 2, 3, 4)])
    assert tree.ids.tolist() == [5, 6, 7]
    assert [reads.tolist() for reads in tree.reads] == [[2]] * 4


def test_longer_continuations_branch_after_the_context() -> None:
    tree = build_prefix_tree([piece([5, 6, 1, 2, 9], 3), piece([5, 6, 3, 4, 9], 3)])
    assert tree.ids.tolist() == [5, 6, 1, 2, 3, 4]
    assert tree.depths.tolist() == [0, 1, 2, 3, 2, 3]
    assert [reads.tolist() for reads in tree.reads] == [[1, 2, 3], [1, 4, 5]]
    assert path(tree, 5) == [0, 1, 4, 5]


def test_another_split_of_the_same_tokens_is_another_reading_of_one_path() -> None:
    tree = build_prefix_tree([piece([5, 6, 7, 8], 1), piece([5, 6, 7, 8], 3)])
    assert tree.width == 3
    assert [reads.tolist() for reads in tree.reads] == [[2], [0, 1, 2]]


@given(st.lists(st.integers(0, 1), max_size=20), st.lists(st.integers(0, 1), max_size=20))
def test_the_shared_length_is_that_of_a_plain_walk(one: list[int], other: list[int]) -> None:
    expected = 0
    while expected < min(len(one), len(other)) and one[expected] == other[expected]:
        expected += 1
    assert shared_prefix_length(tuple(one), tuple(other)) == expected


@given(blocks, st.integers(1, 30))
def test_rows_hold_every_piece_once_and_cost_no_more_than_pieces_alone(
    block: set[InputTokens], widest: int
) -> None:
    rows = divide_into_rows(block, widest=widest)
    assert sorted((of for row in rows for of in row), key=hash) == sorted(block, key=hash)
    limit = max([widest, *(int(1.25 * (len(of.ids) - 1)) for of in block)])
    for row in rows:
        width = build_prefix_tree(row).width
        assert len(row) == 1 or width <= limit
        assert row_cost(width) <= sum(row_cost(len(of.ids) - 1) for of in row) + 1e-9


def test_documents_that_share_one_token_are_not_put_together() -> None:
    documents = [[0, *range(10 * n, 10 * n + 200)] for n in range(1, 4)]
    block = [piece([*of, answer, 1], 2) for of in documents for answer in (7, 8)]
    rows = divide_into_rows(block, widest=512)
    assert [len(row) for row in rows] == [2, 2, 2]


def test_continuations_far_longer_than_what_they_share_stay_alone() -> None:
    block = [piece([1, 2, *[n] * 400], 400) for n in range(5, 9)]
    assert [len(row) for row in divide_into_rows(block, widest=4096)] == [1, 1, 1, 1]
