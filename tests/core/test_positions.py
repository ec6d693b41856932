"""Records of positions are put together and cut apart without loss."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalguard.core.divergence import cut, join_positions


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    ids: np.ndarray
    top: np.ndarray
    k: int
    low: np.ndarray | None = None


def record(positions: int, k: int = 2) -> Record:
    ids = np.arange(positions)
    return Record(ids=ids, top=np.stack([ids] * k, axis=1), k=k)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=6))
def test_what_is_cut_can_be_joined_again(lengths: list[int]) -> None:
    whole = record(sum(lengths))
    parts = cut(whole, lengths)
    assert [part.ids.shape[0] for part in parts] == lengths
    again = join_positions(parts)
    assert again.top.tolist() == whole.top.tolist()
    assert (again.k, again.low) == (2, None)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([], "no records"),
        ([record(1), record(1, k=3)], "do not fit|dimension"),
        ([record(1), replace(record(1), k=7)], "differ in k"),
        ([record(1), replace(record(1), low=np.zeros(1))], "differ in low"),
    ],
)
def test_parts_that_do_not_fit_are_refused(parts: list[Record], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        join_positions(parts)


def test_lengths_that_do_not_add_up_are_refused() -> None:
    with pytest.raises(ValueError, match="3 to be cut"):
        cut(record(4), [1, 2])
