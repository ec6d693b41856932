"""Texts are generated part by part as they would all be at once: a part holds whole batches."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lm_requests import CONTEXTS
from opened_models import open_hf

from evalguard.core.scorer import Request, Response, ScoringPolicy
from evalguard.models.hf import generation as guarded_generation

MOST = 6


def texts(number: int, **options: Any) -> list[Request]:
    """Requests of several lengths, every third with other generation arguments."""
    words = " ".join(text for text in CONTEXTS if text).split()
    return [
        Request(
            task="g",
            doc_id=at,
            index=0,
            kind="generate_until",
            arguments=(
                " ".join(words[at : at + 1 + 5 * at % 11]),
                {"until": ["\n"], "max_gen_toks": MOST - (at % 3 == 0), **options},
            ),
        )
        for at in range(number)
    ]


def plain(response: Response) -> dict[str, Any]:
    """A response as something that can be compared, floats bit for bit."""
    return {
        name: value.tobytes() if isinstance(value, np.ndarray) else value
        for name, value in _flat(response).items()
    }


def _flat(one: Any, prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for part in dataclasses.fields(one):
        value = getattr(one, part.name)
        if dataclasses.is_dataclass(value):
            found |= _flat(value, f"{prefix}{part.name}.")
        else:
            found[prefix + part.name] = value
    return found


@pytest.mark.parametrize(
    ("batch_size", "at_once", "sizes"),
    [
        (3, 1, [3, 1, 3, 3, 2]),  # four of one kind of arguments, eight of the other
        (3, 2, [4, 6, 2]),
        (1, 5, [5, 5, 2]),
        (8, 1, [4, 8]),
    ],
)
def test_parts_give_bit_for_bit_what_all_at_once_gives(
    tiny_llama: Path,
    monkeypatch: pytest.MonkeyPatch,
    batch_size: int,
    at_once: int,
    sizes: list[int],
) -> None:
    monkeypatch.setattr(guarded_generation, "TOKENS_OF_A_PART", at_once * MOST)
    model = open_hf(tiny_llama, ScoringPolicy(batch_size=batch_size, device="cpu"))
    requests = texts(12)
    parts = model.generation_parts(requests)
    assert [len(part) for part in parts] == sizes
    assert sorted(chain.from_iterable(parts)) == list(range(12))
    whole = model.score(requests)
    for part in parts:
        told = model.score([requests[place] for place in part])
        assert [plain(one) for one in told] == [plain(whole[place]) for place in part]


def _one_part(model: Any, requests: Sequence[Request]) -> bool:
    return bool(model.generation_parts(requests) == [tuple(range(len(requests)))])


def test_what_is_soon_done_and_what_is_drawn_at_random_is_one_part(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = open_hf(tiny_llama, ScoringPolicy(batch_size=4, device="cpu"))
    assert _one_part(model, texts(12))  # three batches of a few tokens
    monkeypatch.setattr(guarded_generation, "TOKENS_OF_A_PART", MOST)
    assert not _one_part(model, texts(12))
    assert _one_part(model, texts(12, do_sample=True, temperature=0.7))
