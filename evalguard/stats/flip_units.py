"""Flip units: what changes sign as a whole when several metrics are judged together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evalguard.stats.contributions import Contributions, TaskContributions
from evalguard.stats.moments import Array

Document = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FlipUnits:
    """The units of several metrics.

    Attributes:
        values: float64, shape (units, metrics), each unit's part of each sigma.
        residuals: the same of the linearised residuals.
        strata: int64, shape (units,), which units belong to one stratum: those of a task, or of
            tasks that share documents.
        of_tasks: the stratum of each task.
    """

    values: Array
    residuals: Array
    strata: NDArray[np.int64]
    of_tasks: Mapping[str, int]


def flip_units(metrics: Sequence[Contributions]) -> FlipUnits:
    """Find what must change sign together, over metrics whose unit is not 0.

    A document (task, doc_id) has one sign in all metrics and filters of its task; so have the
    documents of a cluster, and documents that two tasks share (equal lm-eval doc_hash).
    """
    parts = [part for metric in metrics for part in metric.parts]
    numbers: dict[Document, int] = {}
    for part in parts:
        for doc_id in part.doc_ids.tolist():
            numbers.setdefault((part.task, doc_id), len(numbers))
    unit_of, count = _joined(len(numbers), _links(parts, numbers))
    values, residuals = np.zeros((count, len(metrics))), np.zeros((count, len(metrics)))
    tasks = {task: number for number, task in enumerate(sorted({part.task for part in parts}))}
    pairs: set[tuple[int, int]] = set()
    first: dict[str, int] = {}
    for column, metric in enumerate(metrics):
        for part in metric.parts:
            rows = unit_of[[numbers[part.task, doc_id] for doc_id in part.doc_ids.tolist()]]
            np.add.at(values[:, column], rows, part.values / metric.unit)
            np.add.at(residuals[:, column], rows, part.residuals / metric.unit)
            pairs.update((int(row), tasks[part.task]) for row in np.unique(rows))
            first[part.task] = int(rows[0])
    strata = _strata(pairs, units=count, tasks=len(tasks))
    return FlipUnits(
        values=values,
        residuals=residuals,
        strata=strata,
        of_tasks={task: int(strata[row]) for task, row in first.items()},
    )


def _strata(pairs: Iterable[tuple[int, int]], *, units: int, tasks: int) -> NDArray[np.int64]:
    """Number the strata of units; tasks that share a unit are one."""
    found = list(pairs)
    links = [(unit, units + task) for unit, task in found]
    joined, _ = _joined(units + tasks, links)
    return joined[:units]


def _links(
    parts: Sequence[TaskContributions], numbers: dict[Document, int]
) -> Iterator[tuple[int, int]]:
    """Pairs of documents that must have one sign."""
    tasks_of: dict[str, set[str]] = {}
    for part in parts:
        for digest in part.doc_hashes:
            tasks_of.setdefault(digest, set()).add(part.task)
    first: dict[tuple[str, ...], int] = {}
    for part in parts:
        documents = [numbers[part.task, doc_id] for doc_id in part.doc_ids.tolist()]
        for number, label in zip(documents, part.clusters, strict=False):
            yield number, first.setdefault((part.task, label), number)
        for number, digest in zip(documents, part.doc_hashes, strict=False):
            if digest and len(tasks_of[digest]) > 1:
                yield number, first.setdefault((digest,), number)


def _joined(count: int, links: Iterable[tuple[int, int]]) -> tuple[NDArray[np.int64], int]:
    """Connected components: each node's component, and how many there are."""
    from scipy import sparse  # a tenth of a second that one metric alone does not need

    # scipy before 1.12 does not raise on 64-bit indices: it prints, and labels all nodes alike.
    pairs = np.array(list(links), dtype=np.int32).reshape(-1, 2)
    graph = sparse.coo_array((np.ones(len(pairs)), (pairs[:, 0], pairs[:, 1])), (count, count))
    found, labels = sparse.csgraph.connected_components(graph, directed=False)
    return np.asarray(labels, dtype=np.int64), int(found)
