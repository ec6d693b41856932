"""Flip units: what changes sign as a whole when several metrics are judged together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evalguard.core.moments import Array
from evalguard.stats.drift import Contributions, TaskContributions


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
    tasks = {task: number for number, task in enumerate(sorted({part.task for part in parts}))}
    numbers, documents = _numbered(parts, tasks)
    unit_of, count = _joined(documents, [*_links(parts, numbers)])
    values, residuals = np.zeros((count, len(metrics))), np.zeros((count, len(metrics)))
    pairs: list[NDArray[np.int64]] = []
    first: dict[str, int] = {}
    of_parts = iter(numbers)
    for column, metric in enumerate(metrics):
        for part in metric.parts:
            rows = unit_of[next(of_parts)]
            np.add.at(values[:, column], rows, part.values / metric.unit)
            np.add.at(residuals[:, column], rows, part.residuals / metric.unit)
            pairs.append(np.stack([rows, np.full(len(rows), count + tasks[part.task])], axis=1))
            first[part.task] = int(rows[0])
    # tasks that share a unit are one stratum
    strata = _joined(count + len(tasks), np.concatenate(pairs))[0][:count]
    return FlipUnits(
        values=values,
        residuals=residuals,
        strata=strata,
        of_tasks={task: int(strata[row]) for task, row in first.items()},
    )


def _numbered(
    parts: Sequence[TaskContributions], tasks: Mapping[str, int]
) -> tuple[list[NDArray[np.int64]], int]:
    """The number of each part's documents, from 0 as they come up, and how many there are."""
    of_task = np.repeat([tasks[part.task] for part in parts], [len(part.doc_ids) for part in parts])
    doc_ids = np.concatenate([part.doc_ids for part in parts])
    order = np.lexsort((doc_ids, of_task))  # stable: of a document the first place comes first
    new = np.ones(len(order), dtype=np.bool_)
    new[1:] = (np.diff(doc_ids[order]) != 0) | (np.diff(of_task[order]) != 0)
    ranks = np.argsort(np.argsort(order[new]))
    numbers = np.empty(len(order), dtype=np.int64)
    numbers[order] = ranks[np.cumsum(new) - 1]
    cuts = np.cumsum([len(part.doc_ids) for part in parts])[:-1]
    return np.split(numbers, cuts), len(ranks)


def _links(
    parts: Sequence[TaskContributions], numbers: Sequence[NDArray[np.int64]]
) -> Iterator[tuple[int, int]]:
    """Pairs of documents that must have one sign."""
    shared = _shared_documents(parts)
    first: dict[tuple[str, ...], int] = {}
    for part, of_part in zip(parts, numbers, strict=True):
        documents = of_part.tolist() if part.clusters or shared else ()
        for number, label in zip(documents, part.clusters, strict=False):
            yield number, first.setdefault((part.task, label), number)
        for number, digest in zip(documents, part.doc_hashes if shared else (), strict=False):
            if digest in shared:
                yield number, first.setdefault((digest,), number)


def _shared_documents(parts: Sequence[TaskContributions]) -> set[str]:
    """Hashes of the documents that several tasks have."""
    of_tasks: dict[str, set[str]] = {part.task: set() for part in parts}
    if len(of_tasks) == 1:
        return set()
    for part in parts:
        of_tasks[part.task].update(part.doc_hashes)
    seen: set[str] = set()
    shared: set[str] = set()
    for hashes in of_tasks.values():
        shared |= seen & hashes
        seen |= hashes
    return shared - {""}


def _joined(
    count: int, links: Sequence[tuple[int, int]] | NDArray[np.int64]
) -> tuple[NDArray[np.int64], int]:
    """Connected components: each node's component, and how many there are."""
    from scipy import sparse  # a tenth of a second that one metric alone does not need

    # scipy before 1.12 does not raise on 64-bit indices: it prints, and labels all nodes alike.
    pairs = np.array(links, dtype=np.int32).reshape(-1, 2)
    graph = sparse.coo_array((np.ones(len(pairs)), (pairs[:, 0], pairs[:, 1])), (count, count))
    components, labels = sparse.csgraph.connected_components(graph, directed=False)
    return np.asarray(labels, dtype=np.int64), int(components)
