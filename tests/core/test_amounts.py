"""Sizes and ages are read as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalguard.core.amounts import parse_age, parse_size, size_text


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0), ("500B", 500), ("20GB", 20 * 10**9), ("20 gb", 20 * 10**9),
        ("1.5TB", 1_500_000_000_000), ("2k", 2000), ("1MiB", 2**20), ("3GiB", 3 * 2**30),
    ],
)  # fmt: skip
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "seconds"), [("30d", 30 * 86400), ("12h", 43200), ("90min", 5400), ("2w", 1209600)]
)
def test_ages(text: str, seconds: float) -> None:
    assert parse_age(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "GB", "20", "00", "-1", "1e9", "5Gi", "20XB", "nan", "inf", "1,000", " 5"]
)
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size such as 20GB"):
        parse_size(text)


@pytest.mark.parametrize("text", ["30", "d", "-1d", "1y", "30 days"])
def test_what_is_no_age(text: str) -> None:
    with pytest.raises(ValueError, match="is not an age such as 30d"):
        parse_age(text)


@given(st.integers(0, 10**18))
def test_a_size_that_is_shown_is_the_size_to_two_digits(size: int) -> None:
    assert parse_size(size_text(size).replace(",", "")) == pytest.approx(size, rel=0.051)


def test_sizes_for_a_person() -> None:
    shown = [size_text(n) for n in (0, 999, 1000, 1440, 99_600, 999_499, 999_500, 20 * 10**9)]
    assert shown == ["0 B", "999 B", "1.0 kB", "1.4 kB", "100 kB", "999 kB", "1.0 MB", "20 GB"]
