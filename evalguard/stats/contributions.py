"""Contributions: what each document adds to the drift of a metric."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from evalguard.core.influential_documents import Influence, InfluentialDocument
from evalguard.core.paired_scores import PairedScores
from evalguard.stats.drift import Drift
from evalguard.stats.probability import Array, exact_sum, mean_moments


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TaskContributions:
    """The documents of one task in a drift that is linear in them.

    Attributes:
        doc_ids: int64, shape (n,), ascending.
        values: float64, shape (n,): d_i / n for a mean, d_i / sum w for a ratio; their sum is what
            the task adds to the drift.
        shares: float64, shape (n,), summing to 1: 1 / n, or w_i / sum w.
        doc_hashes: n strings; clusters: n labels, or () where each document stands alone.
    """

    task: str
    doc_ids: np.ndarray[tuple[int], np.dtype[np.int64]]
    values: Array
    shares: Array
    doc_hashes: tuple[str, ...] = ()
    clusters: tuple[str, ...] = ()

    @property
    def total(self) -> float:
        """What the task adds to the drift."""
        return exact_sum(self.values)

    @property
    def residuals(self) -> Array:
        """The linearised residuals, values - total * shares, which sum to 0."""
        return self.values - self.total * self.shares


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Contributions:
    """A metric's drift as a sum over documents, on its estimation scale (see ``drift``).

    Attributes:
        parts: one for the metric of a task, several for that of a group of tasks.
        unit: standard error of the base on that scale, so that values / unit are in sigma (to
            first order on a log scale).
        log_sign: of that scale, see ``SigmaScale``.
    """

    task: str
    filter: str
    metric: str
    unit: float
    parts: tuple[TaskContributions, ...]
    log_sign: int = 0

    @property
    def key(self) -> tuple[str, str, str]:
        """(task, filter, metric)."""
        return (self.task, self.filter, self.metric)

    @property
    def total(self) -> float:
        """The drift."""
        return math.fsum(part.total for part in self.parts)


def contributions(paired: PairedScores, drift: Drift) -> Contributions | None:
    """Take a drift apart into its documents; None where no sum makes it (bootstrapped metrics)."""
    table = paired.base
    if table.rescoring is not None:
        return None
    weights = np.ones(table.n) if table.weights is None else table.weights
    total = exact_sum(weights)
    scale = 1.0 / math.log(2.0) if table.aggregation == "bits_per_byte" else 1.0
    part = TaskContributions(
        task=table.task,
        doc_ids=table.doc_ids,
        values=paired.d * (scale / total),
        shares=weights / total,
        doc_hashes=table.doc_hashes,
        clusters=paired.clusters,
    )
    return Contributions(
        task=table.task,
        filter=table.filter,
        metric=table.metric,
        unit=drift.unit,
        parts=(part,),
        log_sign=drift.log_sign,
    )


# How single documents differ between two aligned runs.


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentDifferences:
    """Scatter of d_i over n documents, in the unit of the values (nats for log-likelihoods).

    Attributes:
        sd: sample standard deviation, n - 1 in the denominator.
        largest: the largest size of a difference; ``doc_id`` is the first document that has it.
    """

    sd: float
    largest: float
    doc_id: int


def document_differences(paired: PairedScores) -> DocumentDifferences | None:
    """Describe the differences of single documents.

    Returns:
        None for a metric that is computed from all documents together, so that none has a score.
        Finite scores of two documents or more are asked for.
    """
    if paired.base.rescoring is not None:
        return None
    d = paired.d
    furthest = int(np.argmax(np.abs(d)))
    return DocumentDifferences(
        sd=mean_moments(d).stderr * float(np.sqrt(d.shape[0])),
        largest=float(abs(d[furthest])),
        doc_id=int(paired.base.doc_ids[furthest]),
    )


# Flip units: what changes sign as a whole when several metrics are judged together.


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
    # scipy before 1.12 does not raise on 64-bit indices: it prints, and labels all nodes alike.
    pairs = np.array(list(links), dtype=np.int32).reshape(-1, 2)
    graph = sparse.coo_array((np.ones(len(pairs)), (pairs[:, 0], pairs[:, 1])), (count, count))
    found, labels = sparse.csgraph.connected_components(graph, directed=False)
    return np.asarray(labels, dtype=np.int64), int(found)


# Which documents carry a drift, and what it is without them.


_SHOWN = 5


def influence(drift: Drift, of: Contributions) -> Influence | None:
    """Rank documents by what they add to the drift; None where nothing moved, or has no unit."""
    values = np.concatenate([part.values for part in of.parts])
    moved = int(np.count_nonzero(values))
    if moved == 0 or of.unit == 0.0:
        return None
    order = _ranked(values, of)
    removed = max(1, values.shape[0] // 100)
    return Influence(
        documents=_shown(values, order[: min(_SHOWN, moved)], of),
        moved=moved,
        half=_half(np.abs(values[order])),
        removed=removed,
        sigma_without=drift.sigma_of(_without(order[:removed], of)),
    )


def _ranked(values: NDArray[np.float64], of: Contributions) -> NDArray[np.int64]:
    """Positions, largest first; of equals those along the drift, and the lightest, come first."""
    along = values if of.total >= 0.0 else -values
    shares = np.concatenate([part.shares for part in of.parts])
    return np.lexsort((np.arange(values.shape[0]), shares, -along, -np.abs(values)))


def _shown(
    values: NDArray[np.float64], order: NDArray[np.int64], of: Contributions
) -> tuple[InfluentialDocument, ...]:
    documents = [(part.task, doc_id) for part in of.parts for doc_id in part.doc_ids.tolist()]
    total = of.total
    return tuple(
        InfluentialDocument(
            task=documents[position][0],
            doc_id=documents[position][1],
            contribution=float(values[position]) / of.unit,
            share=float(values[position]) / total if total else None,
        )
        for position in order.tolist()
    )


def _half(sizes: NDArray[np.float64]) -> int:
    """How many of the descending sizes make up half of their sum."""
    summed = np.cumsum(sizes)
    return int(np.searchsorted(summed, summed[-1] / 2.0 * (1.0 - 1e-12))) + 1


def _without(positions: NDArray[np.int64], of: Contributions) -> float:
    """The drift of the other documents: of each task, their sum over their share of the weights."""
    kept = np.ones(sum(part.values.shape[0] for part in of.parts), dtype=np.bool_)
    kept[positions] = False
    totals, start = [], 0
    for part in of.parts:
        stop = start + part.values.shape[0]
        totals.append(_total(part, kept[start:stop]))
        start = stop
    return math.fsum(totals)


def _total(part: TaskContributions, kept: NDArray[np.bool_]) -> float:
    weight = exact_sum(part.shares[kept])
    return exact_sum(part.values[kept]) / weight if weight > 0.0 else 0.0


# How a loss is spread, for metrics of answers, where no document can be called broken.


_TIED = 1e-9  # relative: sums of a few decimals in another order
_MOST_NAMED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSpread:
    """How many documents carry a loss.

    Attributes:
        lost, won: documents on which the candidate is worse, and better.
        half: the fewest documents that carry half of what the lost ones lose together.
        tied: lost documents that weigh as much as the lightest of those; ``free`` of the half are
            any of them.
        named: (task, doc_id) of the half where it is no such choice and they are few; else ().
    """

    lost: int
    won: int
    half: int
    tied: int
    free: int
    named: tuple[Document, ...] = ()

    @property
    def text(self) -> str:
        """It in a sentence without a full stop."""
        head = f"{self.lost:,} document{'' if self.lost == 1 else 's'} lost, {self.won:,} won"
        if self.lost == 1:
            return head
        if self.tied == self.lost:
            return f"{head}; all weigh the same, so that any {self.half:,} carry half of the loss"
        found = f"{head}; {self.half:,} carry half of the loss"
        if self.free < self.tied:
            return f"{found} ({self.free:,} of them any of {self.tied:,} that weigh the same)"
        names = ", ".join(str(doc_id) for _, doc_id in self.named)
        return f"{found} ({names})" if names else found


def spread_of_loss(of: Contributions) -> LossSpread | None:
    """Return how a loss is spread over documents; None where none is lost."""
    values = np.concatenate([part.values for part in of.parts])
    places = np.flatnonzero(values > 0.0)
    if not places.size:
        return None
    order = places[np.argsort(-values[places], kind="stable")]
    sizes = values[order]
    half = _half(sizes)
    lightest = float(sizes[half - 1])
    alike = np.isclose(sizes, lightest, rtol=_TIED, atol=0.0)
    tied, free = int(np.sum(alike)), int(np.sum(alike[:half]))
    documents = [(part.task, doc_id) for part in of.parts for doc_id in part.doc_ids.tolist()]
    few = free == tied and half <= _MOST_NAMED
    return LossSpread(
        lost=int(places.size),
        won=int(np.sum(values < 0.0)),
        half=half,
        tied=tied,
        free=free,
        named=tuple(documents[place] for place in order[:half].tolist()) if few else (),
    )
