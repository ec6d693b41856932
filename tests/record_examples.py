"""References and divergences of a few made-up positions, and whether two are the same."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from evalguard.core.divergence import divergence, reference

VOCABULARY = 12


def rows(positions: int, seed: int) -> np.ndarray:
    logits = np.random.default_rng(seed).normal(size=(positions, VOCABULARY))
    return (logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))).astype(np.float32)


def a_divergence(positions: int, seed: int = 0) -> Any:
    ids = np.arange(positions) % VOCABULARY
    return divergence(rows(positions, seed), rows(positions, seed + 1), ids)


def a_reference(positions: int, seed: int = 0, *, top_k: int = 4) -> Any:
    ids = np.arange(positions) % VOCABULARY
    return reference(rows(positions, seed), ids, top_k=top_k, samples=3, seed=seed)


def same(one: Any, two: Any) -> bool:
    """Whether two records are equal to the last bit."""
    if one is None or two is None:
        return one is two
    pairs = [(getattr(one, f.name), getattr(two, f.name)) for f in dataclasses.fields(one)]
    return all(
        (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
        if isinstance(a, np.ndarray)
        else a == b
        for a, b in pairs
    )
