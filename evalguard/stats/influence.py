"""Which documents carry a drift, and what it is without them."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from evalguard.influence import Influence, InfluentialDocument
from evalguard.stats.contributions import Contributions, TaskContributions
from evalguard.stats.drift import Drift
from evalguard.stats.moments import exact_sum

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
