"""Aggregates of a group of tasks, mmlu-like: subtasks of unequal size, stratified."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import numpy as np

from benchmarks.differences import SEEN, Array, Rng
from benchmarks.outcomes import CONFIDENCE, MARGIN, Cell, Outcome
from benchmarks.tables import scored
from evalguard.core.scores import TaskGroup
from evalguard.stats.compare_scores import compare_documents
from evalguard.stats.group import Subtask, compare_group

# Shares of the documents: eight subtasks, the largest eight times the smallest.
_SHARES = np.array([0.04, 0.06, 0.08, 0.10, 0.10, 0.14, 0.16, 0.32])
_NAMES = tuple(f"subtask {number}" for number in range(len(_SHARES)))


def groups() -> Iterator[Cell]:
    """Stratified t of a group's aggregate, its subtasks weighted by size."""

    def simulate(n: int, kind: str, drift: bool, rng: Rng) -> Outcome:
        subtasks, truth = [], 0.0
        for name, share in zip(_NAMES, _SHARES, strict=True):
            size = round(share * n)
            base, candidate, mean = _DRAWS[kind](rng, size, n, drift)
            compared = compare_documents(
                scored(base, candidate, "mean", task=name), margin=MARGIN, confidence=CONFIDENCE
            )
            subtasks.append(Subtask(compared=compared, size=size))
            truth += mean * size
        total = sum(subtask.size for subtask in subtasks)
        return _outcome(subtasks, truth / total)

    for kind in _DRAWS:
        for n in (200, 2_000):
            for drift in (False, True):
                yield Cell(
                    data=f"8 subtasks, {kind}", n=n, null=not drift, cost=4,
                    simulate=partial(simulate, n, kind, drift),
                )  # fmt: skip


def _outcome(subtasks: list[Subtask], truth: float) -> Outcome:
    group = TaskGroup(name="group", children=_NAMES, tasks=_NAMES)
    found = compare_group(
        group, subtasks, weight_by_size=True, margin=MARGIN, confidence=CONFIDENCE
    ).comparison
    assert found.sigma_interval is not None
    assert found.base_stderr is not None
    assert found.p_value is not None
    low, high = (end * found.base_stderr for end in found.sigma_interval)
    tests = {"stratified t": found.p_value}
    tests |= {test.method: test.p_value for test in found.companions}
    return Outcome(tests=tests, truth=truth, low=low, high=high)


def _answers(rng: Rng, size: int, n: int, drift: bool) -> tuple[Array, Array, float]:
    """A tenth of the answers flips; a drift is spread evenly over the subtasks."""
    flips = 0.1
    surplus = SEEN * math.sqrt(flips / n) if drift else 0.0
    stays = rng.random(size) < 0.6
    which = rng.random(size)
    lost, won = (flips + surplus) / 2.0, (flips - surplus) / 2.0
    base = np.where(which < lost, 1.0, np.where(which < lost + won, 0.0, stays))
    candidate = np.where(which < lost + won, 1.0 - base, base)
    return base, candidate, surplus


def _values(rng: Rng, size: int, n: int, drift: bool) -> tuple[Array, Array, float]:
    """Values whose differences scatter more in small subtasks, as their documents are harder."""
    scatter = 0.1 * math.sqrt(n / size / len(_SHARES))
    mean = SEEN * 0.1 / math.sqrt(n) if drift else 0.0
    base = rng.beta(2.0, 3.0, size)
    return base, base - rng.normal(mean, scatter, size), mean


_DRAWS = {"10% of the answers flip": _answers, "values of unequal scatter": _values}
