"""Which documents carry a drift, and what it is without them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from evalguard.core.comparison import Influence, InfluentialDocument
from evalguard.core.moments import exact_sum, mean_moments
from evalguard.core.pairing import PairedScores
from evalguard.stats.drift import Contributions, Drift, TaskContributions

_BINS = 41
_INNER = (0.005, 0.995)  # of the documents that differ: what lies beyond goes into the end bins
_MOST_QUANTILES = 160
_MOST_SHARES = 60
_TOP = 0.01
_LARGEST = 1e100  # squares of smaller ones do not overflow
Points = tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferenceShape:
    """How the differences of n documents are distributed, in the unit of the differences.

    Attributes:
        n: documents with a usable difference; ``moved`` those whose difference is not 0.
        mean, sd: of all n; sd with n - 1 in the denominator, 0.0 for one document.
        edges: of the histogram's bins, ascending, one more than ``counts``; () if none moved.
        counts: documents in each bin, of those that moved. The first and the last bin also hold
            what lies outside: ``below`` and ``above`` documents.
        quantiles: (quantile of the standard normal, difference) at the plotting positions
            (i - 1/2) / n, ascending, thinned in the middle.
        shares: (share of the documents, share of the sum of absolute differences), of the documents
            that differ most, ascending from the first one to all.
        top_share: share of all change that the most changed 1% of the documents make up, at least
            one; ``top`` says how many these are.
    """

    n: int
    moved: int
    mean: float
    sd: float
    edges: tuple[float, ...]
    counts: tuple[int, ...]
    below: int
    above: int
    quantiles: Points
    shares: Points
    top: int
    top_share: float


def difference_shape(values: NDArray[np.float64]) -> DifferenceShape | None:
    """Describe differences, shape (n,), positive is worse; None where no document moved.

    Differences that are not finite, or beyond 1e100, are left out.
    """
    finite = np.sort(values[np.abs(values) < _LARGEST])
    moved = finite[finite != 0.0]
    if moved.size == 0:
        return None
    low, high = _inner(moved)
    edges = _edges(low, high)
    counts = np.histogram(np.clip(moved, edges[0], edges[-1]), edges)[0]
    sizes = np.cumsum(np.sort(np.abs(finite))[::-1])
    top = max(1, int(_TOP * finite.size))
    return DifferenceShape(
        n=int(finite.size),
        moved=int(moved.size),
        mean=float(finite.mean()),
        sd=float(finite.std(ddof=1)) if finite.size > 1 else 0.0,
        edges=tuple(edges.tolist()),
        counts=tuple(counts.tolist()),
        below=int(np.count_nonzero(moved < low)),
        above=int(np.count_nonzero(moved > high)),
        quantiles=_quantiles(finite),
        shares=_shares(sizes),
        top=top,
        top_share=float(sizes[top - 1] / sizes[-1]),
    )


def _inner(moved: NDArray[np.float64]) -> tuple[float, float]:
    """The ends of the inner differences, with 0 among them; of few documents none lies outside."""
    low = float(np.quantile(moved, _INNER[0], method="lower"))
    high = float(np.quantile(moved, _INNER[1], method="higher"))
    return min(low, 0.0), max(high, 0.0)


def _edges(low: float, high: float) -> NDArray[np.float64]:
    """Equal bins over the inner differences; 0 is between two of them, so none has both signs."""
    width = max((high - low) / (_BINS - 1), float(np.finfo(np.float64).tiny))
    first, last = min(np.floor(low / width), -1.0), max(np.ceil(high / width), 1.0)
    edges: NDArray[np.float64] = np.arange(first, last + 1) * width
    return edges


def _quantiles(ascending: NDArray[np.float64]) -> Points:
    n = ascending.size
    places = ndtri((np.arange(n) + 0.5) / n)
    steps = np.linspace(places[0], places[-1], _MOST_QUANTILES)
    chosen = np.unique(np.searchsorted(places, steps).clip(0, n - 1))
    return tuple(zip(places[chosen].tolist(), ascending[chosen].tolist(), strict=True))


def _shares(sizes: NDArray[np.float64]) -> Points:
    n = sizes.size
    counts = np.unique(np.geomspace(1, n, _MOST_SHARES).round().astype(np.int64))
    part = sizes[counts - 1] / sizes[-1]
    return tuple(zip((counts / n).tolist(), part.tolist(), strict=True))


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
    remaining = np.ones(sum(part.values.shape[0] for part in of.parts), dtype=np.bool_)
    remaining[positions] = False
    totals, start = [], 0
    for part in of.parts:
        stop = start + part.values.shape[0]
        totals.append(_total(part, remaining[start:stop]))
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
        sentence = f"{head}; half of the loss is in the worst {self.half:,}"
        return f"{sentence} (documents {names})" if names else sentence


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
