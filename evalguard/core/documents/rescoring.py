"""Rescoring: a metric that is not a mean, computed anew for any selection of documents."""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

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
        metric=count_confusion(items, name, where_defined),
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


Metric = Callable[[Rows], float]

_MOST_CLASSES = 100
_PARTS_TRIED = 4
_SAME = 1e-12


def count_confusion(items: Sequence[object], name: str, metric: Metric) -> Metric:
    """Return ``metric`` itself, or a faster one that agrees with it on these items.

    lm-eval's own F1 and Matthews' correlation validate their input anew each time, which takes a
    hundred times as long; a bootstrap has thousands of resamples. The faster ones stand in only
    where they are seen to give the same numbers.

    Args:
        items: (gold, predicted) of each document.
        name: of the aggregation; "f1" and "matthews_corrcoef" have a faster one.
        metric: lm-eval's own, of the documents at any rows.
    """
    pairs = _pairs(items) if name in ("f1", "matthews_corrcoef") else []
    names = dict.fromkeys(label for pair in pairs for label in pair)
    if not 0 < len(names) <= _MOST_CLASSES:
        return metric
    labels = {label: code for code, label in enumerate(names)}
    codes = np.array([[labels[gold], labels[predicted]] for gold, predicted in pairs])
    cells = codes[:, 0] * len(labels) + codes[:, 1]
    positive = labels.get(1, -1)

    def faster(rows: Rows) -> float:
        counts = np.bincount(cells[rows], minlength=len(labels) ** 2)
        table = counts.reshape(len(labels), len(labels)).astype(np.float64)
        return _f1(table, positive) if name == "f1" else _matthews(table)

    return faster if _agree(faster, metric, len(items)) else metric


def _pairs(items: Sequence[object]) -> list[tuple[Any, Any]]:
    """(gold, predicted) of every item; none if any is something else."""
    pairs = [tuple(item) for item in items if isinstance(item, (tuple, list)) and len(item) == 2]
    plain = all(isinstance(label, (int, str, np.integer)) for pair in pairs for label in pair)
    return cast("list[tuple[Any, Any]]", pairs) if plain and len(pairs) == len(items) else []


def _f1(table: NDArray[np.float64], positive: int) -> float:
    """2 TP / (2 TP + FP + FN); 0 where there are neither, as in scikit-learn."""
    if positive < 0:
        return 0.0
    right = float(table[positive, positive])
    either = float(table[positive].sum() + table[:, positive].sum())
    return 2.0 * right / either if either else 0.0


def _matthews(table: NDArray[np.float64]) -> float:
    """Correlation of gold and predicted classes (J. Gorodkin, 2004); 0 where one is constant."""
    n, right = float(table.sum()), float(np.trace(table))
    gold, predicted = table.sum(axis=1), table.sum(axis=0)
    spread = (n * n - float(gold @ gold)) * (n * n - float(predicted @ predicted))
    return (n * right - float(gold @ predicted)) / math.sqrt(spread) if spread > 0.0 else 0.0


def _agree(faster: Metric, metric: Metric, n: int) -> bool:
    rng = np.random.default_rng(0)
    tried = [np.arange(n), *(rng.integers(0, n, n) for _ in range(_PARTS_TRIED))]
    return all(math.isclose(faster(rows), metric(rows), rel_tol=_SAME) for rows in tried)
