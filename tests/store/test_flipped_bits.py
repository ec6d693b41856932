"""A single flipped bit in a kept file never changes a number: it is as it was, or not used."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from record_examples import a_divergence, a_reference
from test_damaged_blocks import ANSWERS, BLOCK, KEY
from test_fact_cache import FACTS, only_file

from evalguard.core.scorer import ComparedAnswer
from evalguard.store.block_cache import DivergenceCache, ReferenceCache, ScoreCache
from evalguard.store.fact_cache import FactCache

FLIPS = 100


def flip(path: Path, sound: bytes, generator: random.Random) -> None:
    place = generator.randrange(8 * len(sound))
    changed = bytearray(sound)
    changed[place // 8] ^= 1 << place % 8
    path.write_bytes(changed)


def each_flip(path: Path, look: Callable[[], Any]) -> list[Any]:
    sound, generator, seen = path.read_bytes(), random.Random(31), []
    for _ in range(FLIPS):
        flip(path, sound, generator)
        seen.append(look())
    return seen


def test_facts_with_a_flipped_bit_are_none_or_as_they_were(tmp_path: Path) -> None:
    FactCache(tmp_path).put("models", "abc", FACTS)
    seen = each_flip(only_file(tmp_path), lambda: FactCache(tmp_path).get("models", "abc"))
    assert [one for one in seen if one is not None and one != FACTS] == []


def test_scores_with_a_flipped_bit_are_not_there(tmp_path: Path) -> None:
    ScoreCache(tmp_path).put(KEY, BLOCK, ANSWERS)
    seen = each_flip(only_file(tmp_path), lambda: ScoreCache(tmp_path).get(KEY, BLOCK))
    assert seen == [None] * FLIPS
    ScoreCache(tmp_path).put(KEY, BLOCK, ANSWERS)
    found = ScoreCache(tmp_path).get(KEY, BLOCK)
    assert found is not None
    assert found[0].loglikelihood == ANSWERS[0].loglikelihood


def test_references_with_a_flipped_bit_are_not_there(tmp_path: Path) -> None:
    kept = [a_reference(40), None]
    ReferenceCache(tmp_path).put(KEY, BLOCK, kept)
    seen = each_flip(only_file(tmp_path), lambda: ReferenceCache(tmp_path).get(KEY, BLOCK))
    assert seen == [None] * FLIPS


def test_divergences_with_a_flipped_bit_are_not_there(tmp_path: Path) -> None:
    kept = ComparedAnswer(divergences=(a_divergence(40), None))
    DivergenceCache(tmp_path).put(KEY, BLOCK, kept)
    seen = each_flip(only_file(tmp_path), lambda: DivergenceCache(tmp_path).get(KEY, BLOCK))
    assert seen == [None] * FLIPS
