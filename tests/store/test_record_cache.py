"""Kept divergences and references come back to the last bit, or not at all."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from record_examples import a_divergence, a_reference, same

from evalguard.core.scorer import ComparedAnswer
from evalguard.store.block_cache import DivergenceCache, ReferenceCache, ScoreCache

KEY, BLOCK = "00aa11bb22cc33dd", "ffee00112233"


@given(st.lists(st.one_of(st.none(), st.integers(0, 7)), max_size=6))
def test_a_block_comes_back_to_the_last_bit(lengths: list[int | None]) -> None:
    divergences = tuple(None if n is None else a_divergence(n, n) for n in lengths)
    cache = DivergenceCache(Path("unused"))
    found = cache.from_bytes(
        bytes(cache.to_bytes(KEY, BLOCK, ComparedAnswer(divergences=divergences))), KEY, BLOCK
    )
    assert found.reason == ""
    assert all(same(a, b) for a, b in zip(found.divergences, divergences, strict=True))
    references = [None if n is None else a_reference(n, n) for n in lengths]
    kept = ReferenceCache(Path("unused"))
    again = kept.from_bytes(bytes(kept.to_bytes(KEY, BLOCK, references)), KEY, BLOCK)
    assert all(same(a, b) for a, b in zip(again, references, strict=True))


def test_nan_and_minus_infinity_keep_their_bits(tmp_path: Path) -> None:
    cache, found = DivergenceCache(tmp_path), a_divergence(3)
    odd = dataclasses.replace(found, kl=np.array([np.nan, np.inf, -0.0]))
    cache.put(KEY, BLOCK, ComparedAnswer(divergences=(odd,)))
    kept = cache.get(KEY, BLOCK)
    assert kept is not None
    assert same(kept.divergences[0], odd)


def test_why_nothing_could_be_compared_is_kept(tmp_path: Path) -> None:
    cache = DivergenceCache(tmp_path)
    cache.put(KEY, BLOCK, ComparedAnswer(reason="other «windows»"))
    assert cache.get(KEY, BLOCK) == ComparedAnswer(reason="other «windows»")


@pytest.mark.parametrize("damage", ["cut", "flipped", "foreign", "elsewhere", "scores"])
def test_a_damaged_block_is_set_aside_and_counts_as_absent(tmp_path: Path, damage: str) -> None:
    cache = ReferenceCache(tmp_path)
    cache.put(KEY, BLOCK, [a_reference(40)])
    (path,) = tmp_path.rglob("*.parquet")
    data = bytearray(path.read_bytes())
    if damage == "cut":
        path.write_bytes(data[:-30])
    elif damage == "flipped":
        data[len(data) // 3] ^= 0xFF
        path.write_bytes(data)
    elif damage == "foreign":
        path.write_bytes(b"PAR1 this is not a parquet file PAR1")
    elif damage == "elsewhere":
        cache.put(KEY, "another", [a_reference(40)])
        path.write_bytes((path.parent / "another.parquet").read_bytes())
    else:
        ScoreCache(tmp_path).put(KEY, BLOCK, [])
    assert cache.get(KEY, BLOCK) is None
    assert f"kept references {path} are not used: it " in cache.problems[-1]
    assert path.with_name(f"{path.name}.damaged").exists()


def test_records_that_differ_in_what_they_share_are_refused(tmp_path: Path) -> None:
    other = dataclasses.replace(a_reference(2), vocabulary_size=13)
    with pytest.raises(ValueError, match="differ in vocabulary_size"):
        ReferenceCache(tmp_path).put(KEY, BLOCK, [a_reference(2), other])
