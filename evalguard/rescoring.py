"""Rescoring: a metric that is no mean, computed anew for any selection of documents."""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from evalguard.confusion import counted
from evalguard.errors import EvaluationError

Rows = NDArray[np.int64]

# Aggregations that take about a millisecond; the others (bleu, chrf, ter, a task's own) may take
# a hundred times as long, and lm-eval itself resamples those 100 times only.
_CHEAP = frozenset({"f1", "matthews_corrcoef", "median", "brier_score"})
_MANY = 2_000
_FEW = 200


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rescoring:
    """lm-eval's own aggregation over lm-eval's own per-document items.

    Attributes:
        name: lm-eval's name of the aggregation, or its function's.
        metric: the metric of the documents at these rows, which may repeat; int64, shape (k,). NaN
            where the aggregation has no number for them: a category is missing there, say.
        items: digest of each document's item; equal digests, equal items.
        resamples: how many bootstrap resamples its cost allows.
    """

    name: str
    metric: Callable[[Rows], float]
    items: tuple[str, ...]
    resamples: int = _MANY

    def picked(self, rows: Rows) -> Rescoring:
        """The same over the documents at these rows, in this order."""
        metric = self.metric
        return replace(
            self,
            metric=lambda chosen: metric(rows[chosen]),
            items=tuple(self.items[row] for row in rows),
        )


def rescoring(
    items: Sequence[object], name: str, aggregate: Callable[[list[object]], float]
) -> Rescoring:
    """Rescore per-document items by an aggregation that takes a list of them.

    What the aggregation warns about (no positives in a resample, say) shows in its numbers. It is
    run once over all items here, and what it raises is raised.
    """

    def metric(rows: Rows) -> float:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return aggregate([items[row] for row in rows])

    metric(np.arange(len(items)))

    def where_defined(rows: Rows) -> float:
        try:
            return metric(rows)
        except EvaluationError:  # it is known to work: these rows lack what it needs
            return math.nan

    return Rescoring(
        name=name,
        metric=counted(items, name, where_defined),
        items=tuple(_digest(item) for item in items),
        resamples=_MANY if name in _CHEAP else _FEW,
    )


def _digest(item: object) -> str:
    try:
        written = json.dumps(item, default=_plain, sort_keys=True)
    except (TypeError, ValueError):  # keys that are no text, an item that holds itself
        written = repr(item)
    return hashlib.sha256(written.encode()).hexdigest()


def _plain(item: object) -> object:
    if isinstance(item, (np.generic, np.ndarray)):
        return item.tolist()
    return repr(item)
