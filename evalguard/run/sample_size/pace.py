"""What a planned run costs, from the pace of its pilot."""

from __future__ import annotations

import numpy as np

from evalguard.core.reports.plan_report import ExpectedDrift, Role, TaskCost
from evalguard.run.meter import TaskPace
from evalguard.stats.finite_totals import expected_total


def expected_cost(pace: TaskPace, task: str, role: Role, n: int, *, confidence: float) -> TaskCost:
    """What n documents need, of which the pilot's are a random sample."""
    tokens = np.array(list(pace.tokens.values()), np.float64)
    if pace.hidden:
        tokens = np.ones_like(tokens)
    amount, low, high = expected_total(tokens, n, confidence=confidence)
    per_unit = pace.seconds / float(np.sum(tokens))
    return TaskCost(
        task=task,
        role=role,
        pilot_documents=tokens.shape[0],
        pilot_seconds=pace.seconds,
        pilot_tokens=None if pace.hidden else int(np.sum(tokens)),
        n=n,
        seconds=ExpectedDrift(amount=amount * per_unit, low=low * per_unit, high=high * per_unit),
        tokens=None if pace.hidden else ExpectedDrift(amount=amount, low=low, high=high),
    )
