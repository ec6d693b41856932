"""Which documents carry a drift, and what it is without them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evalguard.core.influential_documents import Influence, InfluentialDocument
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
    total = of.total
    return tuple(
        InfluentialDocument(
            task=task,
            doc_id=doc_id,
            contribution=float(values[position]) / of.unit,
            share=float(values[position]) / total if total else None,
        )
        for position, (task, doc_id) in zip(order.tolist(), _documents(of, order), strict=True)
    )


def _documents(of: Contributions, positions: NDArray[np.int64]) -> Iterator[tuple[str, int]]:
    """(task, doc_id) of the documents at these positions."""
    doc_ids = np.concatenate([part.doc_ids for part in of.parts])
    ends = np.cumsum([len(part.doc_ids) for part in of.parts])
    for position in positions.tolist():
        part = of.parts[int(np.searchsorted(ends, position, side="right"))]
        yield part.task, int(doc_ids[position])


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
    named: tuple[tuple[str, int], ...] = ()

    @property
    def text(self) -> str:
        """It in a sentence without a full stop."""
        documents = "1 document" if self.lost == 1 else f"{self.lost:,} documents"
        head = f"{documents} got worse, {self.won:,} better"
        if self.tied == self.lost:  # as those of a metric that is 0 or 1 are: nothing stands out
            return head
        names = ", ".join(str(doc_id) for _, doc_id in self.named)
        found = f"{head}; half of the loss is in the worst {self.half:,}"
        return f"{found} (documents {names})" if names else found


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
    few = free == tied and half <= _MOST_NAMED
    return LossSpread(
        lost=int(places.size),
        won=int(np.sum(values < 0.0)),
        half=half,
        tied=tied,
        free=free,
        named=tuple(_documents(of, order[:half])) if few else (),
    )
