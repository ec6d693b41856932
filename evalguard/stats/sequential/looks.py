"""Planned looks: after how many documents a sequential comparison may stop."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

FIRST_LOOK = 64
# Ten looks from a tenth of the documents to all of them, with a tenth among them.
FACTOR = 10.0**0.1


def planned_looks(
    total: int, *, first: int = FIRST_LOOK, factor: float = FACTOR
) -> tuple[int, ...]:
    """Numbers of documents after which is looked: total, total / factor, ..., down to ``first``.

    The bounds of this package hold at all times together (Ville's inequality), so that the number
    of looks costs no error; they are planned all the same, and nothing is looked at in between.

    Returns:
        Ascending and without repeats; the last is ``total``.

    Raises:
        ValueError: unless total and first are at least 1 and factor is above 1.
    """
    if total < 1 or first < 1 or not factor > 1.0:
        raise ValueError(f"no looks are planned by total={total}, first={first}, factor={factor}")
    looks, at = [total], total / factor
    while round(at) >= first:
        if round(at) < looks[-1]:
            looks.append(round(at))
        at /= factor
    return tuple(reversed(looks))


def document_order(doc_ids: Sequence[int], *, task: str, seed: int) -> tuple[int, ...]:
    """All documents in random order: the same for the same seed, task and documents.

    Tasks with equally many documents get different orders, so that their verdicts are not wrong
    together more often than apart.
    """
    digest = hashlib.sha256(task.encode()).digest()
    generator = np.random.default_rng([seed, int.from_bytes(digest[:8], "big")])
    return tuple(doc_ids[place] for place in generator.permutation(len(doc_ids)).tolist())
