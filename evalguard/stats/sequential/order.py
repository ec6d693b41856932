"""The seeded random order in which a task's documents come."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np


def document_order(doc_ids: Sequence[int], *, task: str, seed: int) -> tuple[int, ...]:
    """All documents in random order: the same for the same seed, task and documents.

    Tasks with equally many documents get different orders, so that their verdicts are not wrong
    together more often than apart.
    """
    digest = hashlib.sha256(task.encode()).digest()
    generator = np.random.default_rng([seed, int.from_bytes(digest[:8], "big")])
    return tuple(doc_ids[place] for place in generator.permutation(len(doc_ids)).tolist())
