"""Damaged rows and blocks are found and named, through a rounding too, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalguard.core.precision_vote import round_integer, round_mantissa
from evalguard.core.row_counts import rows_text
from evalguard.tensors.damaged_rows import RowFault, RowScan, find_row_faults

Change = Callable[[np.ndarray], None]


def make_weights(rows: int = 256, columns: int = 128, seed: int = 0) -> np.ndarray:
    drawn = np.random.default_rng(seed).normal(size=(rows, columns)) * 0.02
    return drawn.astype(np.float32)


def find(
    base: np.ndarray,
    candidate: np.ndarray,
    allowed: np.ndarray | None = None,
    *,
    drifts: bool = False,
) -> tuple[RowFault, ...]:
    most = np.abs(base) * np.float32(1e-6) if allowed is None else allowed
    scan = RowScan.of(*base.shape)
    for first in range(0, len(base), 100):
        part = slice(first, first + 100)
        scan.add(first, base[part], candidate[part], most[part])
    damaged = np.flatnonzero(scan.beyond)
    damaged = scan.without_drift(damaged) if drifts else damaged

    def read(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return base[rows], candidate[rows], most[rows]

    return find_row_faults(scan, damaged, read, heads=True)


def roll(values: np.ndarray) -> None:
    values[100:108] = np.roll(values[100:108], 1, axis=0)


def exchange(values: np.ndarray) -> None:
    values[[3, 7]] = values[[7, 3]]


def insert(values: np.ndarray) -> None:
    values[51:] = values[50:-1].copy()
    values[50] = make_weights(1, seed=9)[0]


def delete(values: np.ndarray) -> None:
    values[50:-2] = values[52:].copy()
    values[-2:] = make_weights(2, seed=9)


def exchange_heads(values: np.ndarray) -> None:
    heads = values.reshape(8, 32, -1)
    heads[[1, 4, 6]] = heads[[4, 6, 1]].copy()


def assign(where: tuple[object, ...] | object, factor: float) -> Change:
    def change(values: np.ndarray) -> None:
        values[where] *= factor  # type: ignore[index]

    return change


def repeat(values: np.ndarray) -> None:
    values[5] = values[4]


FAULTS: dict[str, tuple[Change, str, str]] = {
    "zeroed": (assign(slice(0, 64), 0), "rows zeroed", "64 rows: 0 to 63"),
    "negated": (assign([1, 2, 9], -1), "rows negated", "3 rows: 1 to 2, 9"),
    "scaled": (assign([8], 3), "rows scaled", "row 8, by 3"),
    "rolled": (roll, "rows permuted", "8 rows: 100 to 107, rolled by 1"),
    "swapped": (exchange, "rows permuted", "rows 3 and 7 exchanged"),
    "inserted": (insert, "shifted", "from row 50 on, 1 row inserted"),
    "deleted": (delete, "shifted", "from row 50 on, 2 rows deleted"),
    "heads": (exchange_heads, "heads permuted", "3 of 8 heads of 32 rows"),
    "duplicated": (repeat, "rows duplicated", "row 5, 5 is the base's 4"),
    "a block": (
        assign((7, slice(32, 64)), 10), "blocks scaled", "row 7, columns 32 to 63, by 10",
    ),
    "blocks": (
        assign((7, slice(32, 128)), -1), "blocks negated", "row 7, columns 32 to 127",
    ),
    "a column of blocks": (
        assign((slice(None), slice(0, 32)), 0), "blocks zeroed",
        "256 rows: 0 to 255, columns 0 to 31",
    ),
    "nan": (assign((9, 3), np.nan), "not finite", "row 9"),
}  # fmt: skip


@pytest.mark.parametrize("case", FAULTS)
def test_what_was_done_to_rows_is_named_with_their_numbers(case: str) -> None:
    change, fault, detail = FAULTS[case]
    base = make_weights()
    candidate = base.copy()
    change(candidate)
    found = find(base, candidate)
    assert (found[0].fault, found[0].detail) == (fault, detail)


@pytest.mark.parametrize("case", [case for case in FAULTS if case != "a block"])
@pytest.mark.parametrize("bits", [8, 4])
def test_it_is_named_through_a_rounding_too(case: str, bits: int) -> None:
    change, fault, detail = FAULTS[case]
    base = make_weights()
    exact = base.copy()
    change(exact)
    candidate = round_integer(exact, bits, group=32)
    step = np.abs(base).reshape(-1, 32).max(axis=1, keepdims=True) / (2 ** (bits - 1) - 1)
    allowed = np.repeat(step * np.float32(0.51), 32, axis=1).reshape(base.shape)
    found = find(base, candidate, allowed)
    assert (found[0].fault, found[0].detail.partition(", by")[0]) == (
        fault,
        detail.partition(", by")[0],
    )


def test_two_kinds_of_damage_are_told_apart() -> None:
    base = make_weights()
    candidate = base.copy()
    candidate[:4] = 0
    candidate[9] *= -1
    assert [(one.fault, one.rows) for one in find(base, candidate)] == [
        ("rows zeroed", (0, 1, 2, 3)),
        ("rows negated", (9,)),
    ]


def test_rows_of_other_values_are_only_called_damaged() -> None:
    base = make_weights()
    candidate = base.copy()
    candidate[11] = make_weights(1, seed=5)[0]
    found = find(base, candidate)
    assert [(one.fault, one.detail) for one in found] == [("rows damaged", "row 11")]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 255), st.integers(0, 3), st.sampled_from([0.0, -1.0, 4.0]))
def test_a_single_block_is_found_wherever_it_is(row: int, block: int, factor: float) -> None:
    base = make_weights()
    candidate = round_mantissa(base, 7)
    here = (row, slice(32 * block, 32 * block + 32))
    candidate[here] *= np.float32(factor)
    found = find(base, candidate, np.abs(base) * np.float32(2**-8))
    assert [one.blocks for one in found] == [((row, 32 * block, 32 * block + 31),)]


def test_rows_are_listed_as_ranges() -> None:
    assert rows_text([4]) == "row 4"
    assert rows_text([0, 1, 2, 7]) == "4 rows: 0 to 2, 7"
    assert rows_text([1, 3, 5, 7]) == "4 rows: 1, 3, 5 ..."


@pytest.mark.parametrize(
    ("rows", "columns", "terms", "scales"),
    [(256, 128, 64, 1), (64, 59, 192, 1), (512, 60, 1536, 1), (40, 2000, 10, 1), (256, 64, 512, 3)],
)
def test_the_tail_of_a_drift_is_no_damage_and_a_damaged_block_in_it_is(
    rows: int, columns: int, terms: int, scales: int
) -> None:
    """Products of factors in float16, of which a few elements are beyond any tolerance."""
    drawn = np.random.default_rng(0)
    sizes = (10.0 ** drawn.uniform(0, scales, (rows, 1))).astype(np.float32)
    left = drawn.normal(size=(rows, terms)).astype(np.float32) * sizes
    right = drawn.normal(size=(terms, columns)).astype(np.float32)
    base = left @ right
    candidate = left.astype(np.float16).astype(np.float32) @ right.astype(np.float16)
    error = np.abs(candidate - base) / np.linalg.norm(base, axis=1, keepdims=True)
    most = np.quantile(error, 0.999) * np.linalg.norm(base, axis=1, keepdims=True)
    allowed = np.broadcast_to(most, base.shape).astype(np.float32)
    assert find(base, candidate, allowed)
    assert not find(base, candidate, allowed, drifts=True)
    candidate[9, 32:59] *= np.float32(-0.5)
    (fault,) = find(base, candidate, allowed, drifts=True)
    assert fault.rows == (9,)
