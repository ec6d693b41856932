"""Populations of documents whose true drift is known in margins, for benchmarks/gate_table.py."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from scipy.signal import lfilter

from benchmarks.differences import Array, Rng
from benchmarks.tables import scored
from evalguard.core.pairing import PairedScores
from evalguard.core.scores import Aggregation
from evalguard.core.verdict import Margin

DRIFTS = (0.0, 1.0, 1.5, 2.0, 3.0)  # in margins
SIZES = (50, 200, 1_000, 1_319, 5_000)
CHURNS = (0.01, 0.05, 0.15, 0.20)
ACCURACY = 0.6
COUNTS = (1, 7, 20)  # metrics of a family
BLOCK = 20  # documents of an undeclared cluster
_SHARED = 0.5  # of a difference's variance is its block's
_CARRIED = 0.6  # of a difference is the one's before it
_SHAPE = 1.4  # of the base's log-likelihoods, a gamma distribution
_BESIDE_SKEW = 3.0  # scatter of the base beside raw lognormal gains
_LARGE = 1_500  # documents from which on a cell has fewer runs
POINTS = Margin.parse("1pp")
SIGMA = Margin.parse("1")

# Scores of the base and of the candidate on so many documents.
Documents = Callable[[Rng, int], tuple[Array, Array]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric of a cell.

    Attributes:
        documents: draws both models' scores; each document drifts alike, however many there are.
        n: documents of the cell.
        tolerated: the margin as a drift of the mean difference, true value, at n documents.
        stderr: the true standard error of the mean difference of n documents.
    """

    documents: Documents
    aggregation: Aggregation
    n: int
    tolerated: float
    stderr: float

    def draw(self, rng: Rng, name: str) -> PairedScores:
        """Scores of n documents, for a metric of this name."""
        return self.pair(*self.documents(rng, self.n), name)

    def pair(self, base: Array, candidate: Array, name: str = "simulated") -> PairedScores:
        """Pair the scores of some documents."""
        return scored(base, candidate, self.aggregation, metric=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One row of the table: a population, a number of documents, a true drift.

    Attributes:
        drift: in margins, of the first metric; the others do not drift.
        counts: the first so many metrics are judged as families of their own.
        cost: divides the runs.
    """

    table: str
    name: str
    n: int
    drift: float
    margin: Margin
    metrics: tuple[Metric, ...]
    counts: tuple[int, ...] = (1,)
    cost: int = 1


def list_cells() -> Iterator[Cell]:
    """Every cell, table by table."""
    yield from perplexities()
    yield from answers()
    yield from answers_in_sigma()
    yield from skewed()
    yield from dependent()
    yield from families()


def perplexities() -> Iterator[Cell]:
    """Normal differences of log-likelihoods; *ratio*: their scatter over the base's."""
    for n, ratios in ((50, (1 / 2, 1 / 4)), (500, (1 / 2, 1 / 4, 1 / 10))):
        for ratio in ratios:
            for drift in DRIFTS:
                scatter = math.sqrt(_SHAPE)
                yield Cell(
                    table="perplexity", name=f"ratio 1/{1 / ratio:.0f}", n=n, drift=drift,
                    margin=SIGMA,
                    metrics=(_likelihoods(n, drift, scatter, ratio * scatter, _normal),),
                )  # fmt: skip


def answers() -> Iterator[Cell]:
    """Right and wrong answers, margin in points."""
    for n in SIZES:
        for churn in CHURNS:
            for drift in DRIFTS:
                yield Cell(
                    table="answers, margin 1pp", name=f"churn {churn:.0%}", n=n, drift=drift,
                    margin=POINTS, cost=4 if n > _LARGE else 1,
                    metrics=(_answers(n, churn, drift * POINTS.value, POINTS.value),),
                )  # fmt: skip


def answers_in_sigma() -> Iterator[Cell]:
    """Right and wrong answers, margin in standard errors of the base."""
    for n in (50, 1_319):
        for churn in CHURNS:
            for drift in DRIFTS:
                unit = math.sqrt(ACCURACY * (1.0 - ACCURACY) / n)
                yield Cell(
                    table="answers, margin 1 sigma", name=f"churn {churn:.0%}", n=n, drift=drift,
                    margin=SIGMA, metrics=(_answers(n, churn, drift * unit, unit),),
                )  # fmt: skip


def skewed() -> Iterator[Cell]:
    """Differences of which few are large."""
    for n in (10, 50, 200, 2_000):
        metric = _raw_lognormal(n, 2.0, 1.0, 0.0)
        yield _skewed_cell("lognormal(2) gains, raw", n, 0.0, metric)
    for name, sign in (("gains", 1.0), ("losses", -1.0)):
        for n in (50, 200, 2_000):
            for drift in (0.0, 2.0, 3.0):
                metric = _raw_lognormal(n, 1.0, sign, drift)
                yield _skewed_cell(f"lognormal(1) {name}, raw", n, drift, metric)
    for name, sign in (("gains", 1.0), ("losses", -1.0)):
        for n in (50, 200, 2_000):
            for drift in (0.0, 2.0, 3.0):
                metric = _likelihoods(n, drift, 1.0, 0.5, _lognormal(2.0, sign))
                yield _skewed_cell(f"lognormal(2) {name}, ratio 1/2", n, drift, metric)


def follow_ups() -> Iterator[Cell]:
    """Populations of which undecided runs are asked as many documents as they are said to need."""
    for n, churn in ((200, 0.05), (200, 0.15), (1_319, 0.15)):
        for drift in (0.0, 0.5, 1.0, 2.0):
            metric = _answers(n, churn, drift * POINTS.value, POINTS.value)
            yield Cell(
                table="asked", name=f"answers, churn {churn:.0%}, 1pp", n=n, drift=drift,
                margin=POINTS, metrics=(metric,),
            )  # fmt: skip
    for n in (50, 500):
        for drift in (0.0, 0.5, 1.0, 2.0):
            scatter = math.sqrt(_SHAPE)
            metric = _likelihoods(n, drift, scatter, 0.7 * scatter, _normal)
            yield Cell(
                table="asked", name="perplexity, ratio 0.7, 1 sigma", n=n, drift=drift,
                margin=SIGMA, metrics=(metric,),
            )  # fmt: skip


def _skewed_cell(name: str, n: int, drift: float, metric: Metric) -> Cell:
    cost = 4 if n > _LARGE else 1
    return Cell(table="skewed", name=name, n=n, drift=drift, margin=SIGMA, metrics=(metric,), cost=cost)  # fmt: skip # noqa: E501


def dependent() -> Iterator[Cell]:
    """Differences that documents share, which nobody declares."""
    shapes: tuple[tuple[str, Callable[[Rng, int], Array], Callable[[int], float]], ...] = (
        (f"blocks of {BLOCK}", _blocks, lambda _: 1.0 + (BLOCK - 1) * _SHARED),
        (f"AR({_CARRIED:g})", _carried, _carried_effect),
    )
    for name, noise, effect in shapes:
        for n in (200, 2_000):
            for drift in (0.0, 2.0, 3.0):
                metric = _likelihoods(n, drift, 1.0, 0.5, noise, design_effect=effect(n))
                yield Cell(
                    table="dependent", name=name, n=n, drift=drift, margin=SIGMA,
                    metrics=(metric,), cost=4 if n > _LARGE else 1,
                )  # fmt: skip


def families() -> Iterator[Cell]:
    """Several metrics, the first of which drifts."""
    n, churn, most = 500, 0.15, max(COUNTS)
    unit = math.sqrt(ACCURACY * (1.0 - ACCURACY) / n)
    for drift in DRIFTS:
        yield Cell(
            table="families", name=f"answers, churn {churn:.0%}", n=n, drift=drift, margin=SIGMA,
            metrics=(
                _answers(n, churn, drift * unit, unit),
                *[_answers(n, churn, 0.0, unit)] * (most - 1),
            ),
            counts=COUNTS, cost=2,
        )  # fmt: skip
    yield Cell(
        table="families", name="lognormal(1) gains, raw", n=200, drift=0.0, margin=SIGMA,
        metrics=(_raw_lognormal(200, 1.0, 1.0, 0.0),) * most, counts=COUNTS, cost=4,
    )  # fmt: skip


def _likelihoods(
    n: int,
    drift: float,
    base_scatter: float,
    scatter: float,
    noise: Callable[[Rng, int], Array],
    *,
    design_effect: float = 1.0,
) -> Metric:
    """A perplexity. ``noise``: differences of mean 0 and variance 1, positive is worse."""
    unit = base_scatter / math.sqrt(n)
    mean = math.log1p(drift * unit)

    def documents(rng: Rng, count: int) -> tuple[Array, Array]:
        base = -rng.gamma(_SHAPE, base_scatter / math.sqrt(_SHAPE), count)
        return base, base - mean - scatter * noise(rng, count)

    return Metric(
        documents=documents, aggregation="perplexity", n=n, tolerated=math.log1p(unit),
        stderr=scatter * math.sqrt(design_effect / n),
    )  # fmt: skip


def _raw_lognormal(n: int, spread: float, sign: float, drift: float) -> Metric:
    """Lognormal gains (sign 1) or losses (-1) in nats, beside a base of scatter 3."""
    deviation = math.exp(spread**2 / 2.0) * math.sqrt(math.expm1(spread**2))
    return _likelihoods(n, drift, _BESIDE_SKEW, deviation, _lognormal(spread, sign))


def _normal(rng: Rng, n: int) -> Array:
    return rng.normal(size=n)


def _lognormal(spread: float, sign: float) -> Callable[[Rng, int], Array]:
    centre = math.exp(spread**2 / 2.0)
    deviation = centre * math.sqrt(math.expm1(spread**2))
    return lambda rng, n: sign * (centre - rng.lognormal(0.0, spread, n)) / deviation


def _blocks(rng: Rng, n: int) -> Array:
    shared = np.repeat(rng.normal(size=-(-n // BLOCK)), BLOCK)[:n]
    return math.sqrt(_SHARED) * shared + math.sqrt(1.0 - _SHARED) * rng.normal(size=n)


def _carried(rng: Rng, n: int) -> Array:
    steps = rng.normal(0.0, math.sqrt(1.0 - _CARRIED**2), n)
    steps[0] = rng.normal()
    return np.asarray(lfilter([1.0], [1.0, -_CARRIED], steps))


def _carried_effect(n: int) -> float:
    """Variance of the mean over that of independent documents."""
    lags = np.arange(1, n)
    return 1.0 + 2.0 * float(np.sum((1.0 - lags / n) * _CARRIED**lags))


def _answers(n: int, churn: float, drift: float, tolerated: float) -> Metric:
    """A 0/1 metric; where the drift is larger than the churn, all that differ are lost."""
    won = max(0.0, (churn - drift) / 2.0)
    lost = won + drift
    right = (ACCURACY - lost) / (1.0 - lost - won)

    def documents(rng: Rng, count: int) -> tuple[Array, Array]:
        which, stays = rng.random(count), rng.random(count) < right
        is_lost, is_won = which < lost, which > 1.0 - won
        base = np.where(is_lost, 1.0, np.where(is_won, 0.0, stays))
        return base, np.where(is_lost, 0.0, np.where(is_won, 1.0, stays))

    return Metric(
        documents=documents, aggregation="mean", n=n, tolerated=tolerated,
        stderr=math.sqrt((lost + won - drift * drift) / n),
    )  # fmt: skip
