"""Shape of per-document differences: how they spread, how heavy their tails are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

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
