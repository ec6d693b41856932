"""Metrics that are no mean: items of two models, and the metric's true drift."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.differences import SEEN, Array, Rng
from benchmarks.tables import rescored
from evalguard.core.pairing import PairedScores

Items = list[Any]
_POSITIVE = 0.4  # share of documents whose right answer is 1
_ERRORS = 0.2  # of the base, of either kind
_TOGETHER = 0.8  # chance that both models see a document alike


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescored:
    """A metric with data of its own.

    Attributes:
        draw: (rng, n, drift) -> items of base and candidate, and the metric's true fall.
        aggregate: of a list of items; named as lm-eval names it, so that it is treated alike.
    """

    name: str
    aggregation: str
    aggregate: Callable[[Items], float]
    draw: Callable[[Rng, int, bool], tuple[Items, Items, float]]
    sizes: tuple[int, ...]

    def sample(self, rng: Rng, n: int, *, drift: bool) -> tuple[PairedScores, float]:
        """Paired items, and the true drift."""
        base, candidate, truth = self.draw(rng, n, drift)
        return rescored(base, candidate, self.aggregation, self.aggregate), truth


def _f1(items: Items) -> float:
    gold, predicted = np.array(items).T
    right = float(np.sum((gold == 1) & (predicted == 1)))
    return 2.0 * right / max(1.0, float(np.sum(gold == 1) + np.sum(predicted == 1)))


def _matthews(items: Items) -> float:
    gold, predicted = np.array(items).T
    spread = float(np.std(gold) * np.std(predicted))
    covariance = float(np.mean(gold * predicted) - np.mean(gold) * np.mean(predicted))
    return covariance / spread if spread > 0.0 else 0.0


def _true_f1(errors: float) -> float:
    right = _POSITIVE * (1.0 - errors)
    return 2.0 * right / (_POSITIVE + right + (1.0 - _POSITIVE) * errors)


def _true_matthews(errors: float) -> float:
    predicted = _POSITIVE * (1.0 - errors) + (1.0 - _POSITIVE) * errors
    covariance = _POSITIVE * (1.0 - errors) - _POSITIVE * predicted
    return covariance / math.sqrt(_POSITIVE * (1.0 - _POSITIVE) * predicted * (1.0 - predicted))


def _labels(
    true: Callable[[float], float],
) -> Callable[[Rng, int, bool], tuple[Items, Items, float]]:
    def draw(rng: Rng, n: int, drift: bool) -> tuple[Items, Items, float]:
        flips = 2.0 * (1.0 - _TOGETHER) * _ERRORS * (1.0 - _ERRORS)
        errors = _ERRORS + (SEEN * math.sqrt(flips / n) if drift else 0.0)
        gold = (rng.random(n) < _POSITIVE).astype(int)
        luck = rng.random(n)
        other = np.where(rng.random(n) < _TOGETHER, luck, rng.random(n))
        sides = [
            np.where(of < rate, 1 - gold, gold) for of, rate in ((luck, _ERRORS), (other, errors))
        ]
        items = [list(zip(gold.tolist(), side.tolist(), strict=True)) for side in sides]
        return items[0], items[1], true(_ERRORS) - true(errors)

    return draw


def _median(items: Items) -> float:
    return float(sorted(items)[len(items) // 2])


def _values(rng: Rng, n: int, drift: bool) -> tuple[Items, Items, float]:
    """Two values that share most of their scatter, both symmetric about their median."""
    base = rng.normal(0.0, 1.0, n)
    truth = 0.6 * SEEN / math.sqrt(n) if drift else 0.0
    candidate = base - truth + rng.normal(0.0, 0.5, n)
    return base.tolist(), candidate.tolist(), truth


def _ratio(items: Items) -> float:
    matched, length = np.array(items).T
    return float(np.sum(matched) / np.sum(length))


def _matches(rng: Rng, n: int, drift: bool) -> tuple[Items, Items, float]:
    """Matched n-grams of texts of many lengths: a ratio of totals, as bleu and chrf are made of."""
    length = np.asarray(np.ceil(rng.lognormal(3.0, 0.5, n)))
    truth = 0.1 * SEEN * math.sqrt(math.exp(0.25) / n) if drift else 0.0
    share = rng.beta(4.0, 4.0, n)
    other = share - truth + rng.normal(0.0, 0.1, n)
    return _rows(length * share, length), _rows(length * other, length), truth


def _rows(matched: Array, length: Array) -> Items:
    return list(zip(matched.tolist(), length.tolist(), strict=True))


F1 = Rescored(
    name="f1", aggregation="f1", aggregate=_f1, draw=_labels(_true_f1), sizes=(50, 200, 2_000)
)
MATTHEWS = Rescored(
    name="mcc", aggregation="matthews_corrcoef", aggregate=_matthews,
    draw=_labels(_true_matthews), sizes=(50, 200, 2_000),
)  # fmt: skip
MEDIAN = Rescored(
    name="median", aggregation="median", aggregate=_median, draw=_values, sizes=(50, 200)
)
TOTALS = Rescored(
    name="a ratio of totals (bleu-like, 200 resamples)", aggregation="ratio", aggregate=_ratio,
    draw=_matches, sizes=(50, 200),
)  # fmt: skip
