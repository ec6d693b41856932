"""A plan reads every piece once, and what many rows begin with before them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from evalguard.models.hf.batches import cut_by_number, cut_by_tokens
from evalguard.models.hf.prefix_sharing import SharingPlan, plan_sharing
from evalguard.models.hf.prefix_tree import (
    build_prefix_tree,
    divide_into_rows,
    group_by_trunk,
    row_cost,
)
from evalguard.models.scored_tokens import InputTokens


def by_tokens(lengths: Sequence[int]) -> list[int]:
    return cut_by_tokens(lengths, budget=512, per_batch=16)


def planned(pieces: Sequence[InputTokens], *, trunks: bool = True) -> SharingPlan:
    return plan_sharing(set(pieces), widest=512, cut=by_tokens, trunks=trunks)


def documents(
    count: int, *, shots: int, own: int, choices: int = 4, scored: int = 1
) -> list[InputTokens]:
    random = np.random.default_rng(count + shots + own)
    before = random.integers(0, 1000, shots).tolist()
    contexts = [[*before, *random.integers(0, 1000, own).tolist()] for _ in range(count)]
    return [
        InputTokens(ids=(*of, *random.integers(0, 1000, scored).tolist()), n_scored=scored)
        for of in contexts
        for _ in range(choices)
    ]


@st.composite
def nested(draw: st.DrawFn) -> list[InputTokens]:
    """Pieces with long beginnings in common, here and there at several levels."""
    found = []
    for _ in range(draw(st.integers(1, 4))):
        start = [draw(st.integers(0, 2))] * draw(st.integers(0, 150))
        for _ in range(draw(st.integers(1, 5))):
            ids = [*start, *draw(st.lists(st.integers(3, 5), min_size=2, max_size=6))]
            n_scored = draw(st.integers(1, len(ids) - 1))
            found.append(InputTokens(ids=tuple(ids), n_scored=n_scored))
    return found


@given(nested(), st.booleans(), st.integers(1, 5))
def test_every_piece_is_read_once_after_exactly_its_own_tokens(
    pieces: list[InputTokens], trunks: bool, size: int
) -> None:
    plan = plan_sharing(
        set(pieces),
        widest=512,
        cut=lambda lengths: cut_by_number(len(lengths), size),
        trunks=trunks,
    )
    read = [*plan.alone]
    for trees in plan.passes:
        assert len({tree.trunk for tree in trees}) == 1
        for tree in trees:
            read += tree.pieces
            for piece, positions in zip(tree.pieces, tree.reads, strict=True):
                seen = np.flatnonzero(tree.mask[positions[-1]])
                assert (*tree.trunk, *tree.ids[seen].tolist()) == piece.ids[:-1]
                assert tree.depths[seen].tolist() == list(
                    range(len(tree.trunk), len(piece.ids) - 1)
                )
                assert len(positions) == piece.n_scored
    assert sorted(read, key=hash) == sorted(set(pieces), key=hash)


def test_examples_before_all_documents_are_a_trunk_and_are_read_once() -> None:
    plan = planned(documents(32, shots=1000, own=100))
    assert {len(trees[0].trunk) for trees in plan.passes} == {1000}
    assert sum(tree.width for trees in plan.passes for tree in trees) <= 32 * 100
    assert not plan.alone


def test_single_continuations_stand_on_a_trunk_too() -> None:
    plan = planned(documents(16, shots=300, own=60, choices=1, scored=3))
    assert {len(trees[0].trunk) for trees in plan.passes} == {300}


def test_a_trunk_that_saves_little_is_not_read_first() -> None:
    assert planned(documents(8, shots=70, own=600, choices=1)).passes == ()
    assert all(not trees[0].trunk for trees in planned(documents(8, shots=40, own=30)).passes)


def test_no_trunk_is_planned_where_there_must_not_be_one() -> None:
    plan = planned(documents(8, shots=300, own=60), trunks=False)
    assert all(not tree.trunk for trees in plan.passes for tree in trees)


def test_each_subject_has_the_trunk_of_its_own_examples() -> None:
    """As in mmlu: a line that all share, then the examples of one subject."""
    line = tuple(range(70))
    pieces = [
        InputTokens(ids=(*line, *of.ids), n_scored=of.n_scored)
        for shots in (400, 500, 600)
        for of in documents(40, shots=shots, own=50)
    ]
    found = group_by_trunk(divide_into_rows(pieces, widest=64))
    assert sorted(grove.trunk for grove in found) == [470, 570, 670]


def test_a_trunk_ends_before_the_first_token_that_is_read() -> None:
    pieces = documents(6, shots=200, own=50)
    early = InputTokens(ids=pieces[0].ids, n_scored=len(pieces[0].ids) - 100)
    trunks = {len(trees[0].trunk) for trees in planned([*pieces, early]).passes}
    assert max(trunks) <= 200
    for trees in planned([*pieces, early]).passes:
        assert all((positions >= 0).all() for tree in trees for positions in tree.reads)


def test_what_a_row_costs_grows_with_what_it_sees() -> None:
    assert row_cost(100) < row_cost(100, before=500) < row_cost(600)
    assert build_prefix_tree(documents(1, shots=0, own=50)).width == 50
