"""Contributions of made-up documents, for the tests of what is judged together."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from evalguard.stats.drift import Contributions, TaskContributions


def drift_of(
    d: ArrayLike, task: str = "a", metric: str = "acc", *, unit: float = 1.0, **fields: Any
) -> Contributions:
    """A mean of per-document differences as contributions of documents 0..n-1."""
    values = np.asarray(d, dtype=np.float64)
    n = values.shape[0]
    part = TaskContributions(
        **{
            "task": task,
            "doc_ids": np.arange(n),
            "values": values / n,
            "shares": np.full(n, 1.0 / n),
            **fields,
        }
    )
    return Contributions(task=task, filter="none", metric=metric, unit=unit, parts=(part,))
