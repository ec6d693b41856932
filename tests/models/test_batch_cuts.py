"""Cuts of sorted sequences into batches: each once, within the budget, as cheap as can be."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalguard.models.hf.batches import cut_by_number, cut_by_tokens

LENGTHS = st.lists(st.integers(1, 60), max_size=40).map(lambda found: sorted(found, reverse=True))


def batches(lengths: Sequence[int], sizes: Sequence[int]) -> list[Sequence[int]]:
    ends = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
    return [lengths[start:end] for start, end in pairwise(ends)]


def cost(lengths: Sequence[int], sizes: Sequence[int], per_batch: float) -> float:
    return sum(len(batch) * batch[0] + per_batch for batch in batches(lengths, sizes))


def greedy(lengths: Sequence[int], budget: int) -> list[int]:
    sizes: list[int] = []
    start = 0
    for i in range(1, len(lengths) + 1):
        if i == len(lengths) or (i + 1 - start) * lengths[start] > budget:
            sizes.append(i - start)
            start = i
    return sizes


def cheapest(lengths: Sequence[int], budget: int, per_batch: float) -> float:
    """Of all ways to cut, by trying each."""
    if not lengths:
        return 0.0
    return min(
        size * lengths[0] + per_batch + cheapest(lengths[size:], budget, per_batch)
        for size in range(1, len(lengths) + 1)
        if size == 1 or size * lengths[0] <= budget
    )


@given(LENGTHS, st.integers(1, 200), st.floats(0, 50))
def test_each_sequence_is_in_one_batch_within_the_budget(
    lengths: list[int], budget: int, per_batch: float
) -> None:
    sizes = cut_by_tokens(lengths, budget=budget, per_batch=per_batch)
    assert sum(sizes) == len(lengths)
    assert all(size > 0 for size in sizes)
    for batch in batches(lengths, sizes):
        assert len(batch) == 1 or len(batch) * batch[0] <= budget


@given(LENGTHS, st.integers(1, 200), st.floats(0, 50))
def test_cuts_are_never_dearer_than_filling_each_batch(
    lengths: list[int], budget: int, per_batch: float
) -> None:
    sizes = cut_by_tokens(lengths, budget=budget, per_batch=per_batch)
    filled = cost(lengths, greedy(lengths, budget), per_batch)
    assert cost(lengths, sizes, per_batch) <= filled + 1e-9


@given(LENGTHS.map(lambda found: found[:9]), st.integers(1, 200), st.floats(0, 50))
def test_no_other_cuts_are_cheaper(lengths: list[int], budget: int, per_batch: float) -> None:
    sizes = cut_by_tokens(lengths, budget=budget, per_batch=per_batch)
    expected = cheapest(lengths, budget, per_batch)
    assert cost(lengths, sizes, per_batch) == pytest.approx(expected, abs=1e-9)


def test_padding_is_paid_where_a_pass_costs_more() -> None:
    assert cut_by_tokens([10, 10, 2, 2], budget=40, per_batch=1) == [2, 2]
    assert cut_by_tokens([10, 10, 2, 2], budget=40, per_batch=100) == [4]


def test_unsorted_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="longest first"):
        cut_by_tokens([1, 2], budget=4, per_batch=0)


@given(st.integers(0, 50), st.integers(1, 20))
def test_by_number_every_batch_but_the_last_is_full(count: int, size: int) -> None:
    sizes = cut_by_number(count, size)
    assert sum(sizes) == count
    assert all(found == size for found in sizes[:-1])
