"""Every interval and test of evalguard, each with the data on which it is measured.

A method is one function that yields its cells; METHODS names them in the order of the results.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from benchmarks.answers import Answers, answer_sheets
from benchmarks.clusters import SIZES_OF_CLUSTERS, draw_members
from benchmarks.differences import DIFFERENCES, SEEN, Array, Differences, Rng
from benchmarks.items import F1, MATTHEWS, MEDIAN, TOTALS, Rescored
from benchmarks.outcomes import Cell, Method, Outcome, outcome_of
from benchmarks.tables import scored
from benchmarks.texts import TEXTS, Texts
from evalguard.core.scores import Aggregation
from evalguard.stats.compare_scores import compare_scores

SIZES = (50, 200, 2_000)
_LARGE = 2_000  # documents from which on a cell has half the repetitions


def _cost(n: int) -> int:
    return 2 if n >= _LARGE else 1


def mean() -> Iterator[Cell]:
    """Paired t of a mean, with its companions."""
    for data, differences in DIFFERENCES.items():
        yield from _of_differences(data, differences, "mean", deciding="paired t")


def perplexity() -> Iterator[Cell]:
    """Paired t on the log scale."""
    for data in (
        "normal",
        "heavy tails (t, 3 df)",
        "a long tail of losses (lognormal, 1)",
        "95% identical, the rest normal",
        "95% identical, the rest losses",
    ):
        yield from _of_differences(data, DIFFERENCES[data], "perplexity", deciding="paired t")


def _of_differences(
    data: str, differences: Differences, aggregation: Aggregation, *, deciding: str
) -> Iterator[Cell]:
    def simulate(n: int, drift: bool, rng: Rng) -> Outcome:
        d, truth = differences.sample(rng, n, drift=drift)
        base = -rng.gamma(1.4, 1.0, n)
        paired = scored(base, base - 0.15 * d, aggregation)
        return outcome_of(paired, 0.15 * truth, deciding=deciding)

    for n in SIZES:
        for drift in (True,) if differences.always_worse else (False, True):
            yield Cell(
                data=data, n=n, null=not drift, exchangeable=differences.symmetric,
                simulate=partial(simulate, n, drift), cost=_cost(n),
            )  # fmt: skip


def weighted_perplexity() -> Iterator[Cell]:
    """Ratio estimator on the log scale: word and byte perplexity."""
    for data, texts in TEXTS.items():
        yield from _of_texts(data, texts, "weighted_perplexity", 1.0)


def bits_per_byte() -> Iterator[Cell]:
    """Ratio estimator, in bits."""
    data = "texts of 5 to 120 words"
    yield from _of_texts(data, TEXTS[data], "bits_per_byte", 1.0 / np.log(2.0))


def _of_texts(data: str, texts: Texts, aggregation: Aggregation, unit: float) -> Iterator[Cell]:
    def simulate(n: int, drift: bool, rng: Rng) -> Outcome:
        base, d, words, truth = texts.sample(rng, n, drift=drift)
        paired = scored(base, base - d, aggregation, weights=words)
        return outcome_of(paired, truth * unit, deciding="paired t")

    for n in SIZES:
        for drift in (False, True):
            yield Cell(
                data=data, n=n, null=not drift, exchangeable=texts.even,
                simulate=partial(simulate, n, drift), cost=_cost(n),
            )  # fmt: skip


def right_or_wrong() -> Iterator[Cell]:
    """Tango's interval and McNemar's mid-p of 0/1 metrics; the exact test beside it."""

    def simulate(answers: Answers, n: int, drift: bool, rng: Rng) -> Outcome:
        base, candidate, truth = answers.sample(rng, n, drift=drift)
        return outcome_of(scored(base, candidate, "mean"), truth, deciding="McNemar's mid-p")

    for data, answers in answer_sheets():
        for n in SIZES:
            for drift in (False, True):
                if drift or answers.has_null:
                    cell = partial(simulate, answers, n, drift)
                    yield Cell(data=data, n=n, null=not drift, simulate=cell, cost=_cost(n))


def clustered() -> Iterator[Cell]:
    """Documents in clusters of unequal size, of a mean and of a ratio."""
    for shape in SIZES_OF_CLUSTERS:
        for noise in ("normal", "heavy tails (t, 3 df)"):
            yield from _of_clusters(f"{shape}, {noise}", shape, DIFFERENCES[noise])
    skewed = "a long tail of losses (lognormal, 1)"
    yield from _of_clusters(f"geometric sizes, {skewed}", "geometric sizes", DIFFERENCES[skewed])


def _of_clusters(data: str, shape: str, shared: Differences) -> Iterator[Cell]:
    """Clusters share a part of their documents' differences; five documents each on average."""

    def simulate(n: int, drift: bool, rng: Rng) -> Outcome:
        members = draw_members(shape, n // 5, rng)
        total = members.shape[0]
        truth = 0.0
        if drift:  # by the scatter that these clusters have
            sizes = np.bincount(members)
            variance = float(np.sum((0.6 * shared.scatter * sizes) ** 2) + 0.64 * total)
            truth = SEEN * np.sqrt(variance) / total
        common, _ = shared.sample(rng, n // 5, drift=False)
        d = truth + 0.6 * common[members] + rng.normal(0.0, 0.8, total)
        base = rng.normal(0.0, 3.0, total)
        paired = scored(base, base - d, "mean", clusters=members)
        deciding = "cluster t" if n // 5 >= 20 else "sign flips of clusters"
        return outcome_of(paired, truth, deciding=deciding)

    for n in SIZES:
        for drift in (False, True):
            yield Cell(
                data=data, n=n, null=not drift, exchangeable=shared.symmetric,
                simulate=partial(simulate, n, drift), cost=_cost(n),
            )  # fmt: skip


def clustered_answers() -> Iterator[Cell]:
    """0/1 metrics whose documents share passages: flips come in clusters."""

    def simulate(n: int, drift: bool, rng: Rng) -> Outcome:
        members = draw_members("geometric sizes", n // 5, rng)
        base, candidate, truth = _flips_of_clusters(members, 0.09, drift, rng)
        paired = scored(base, candidate, "mean", clusters=members)
        deciding = "cluster t" if n // 5 >= 20 else "sign flips of clusters"
        return outcome_of(paired, truth, deciding=deciding)

    for n in SIZES:
        for drift in (False, True):
            yield Cell(
                data="9% flips, shared by passages of geometric size", n=n, null=not drift,
                simulate=partial(simulate, n, drift), cost=_cost(n),
            )  # fmt: skip


def _flips_of_clusters(
    members: np.ndarray, flips: float, drift: bool, rng: Rng
) -> tuple[Array, Array, float]:
    """Each passage leans to one side: its flips are all losses or all gains."""
    lost = 0.8 if drift else 0.5
    leaning = np.where(rng.random(members.max() + 1) < lost, 1, -1)[members]
    flipped = rng.random(members.shape[0]) < flips
    stays = (rng.random(members.shape[0]) < 0.7).astype(float)
    base = np.where(flipped, leaning > 0, stays).astype(float)
    candidate = np.where(flipped, leaning < 0, stays).astype(float)
    return base, candidate, flips * (2.0 * lost - 1.0)


def bootstrap() -> Iterator[Cell]:
    """Paired BCa bootstrap of metrics that are no mean."""

    def simulate(kind: Rescored, n: int, drift: bool, rng: Rng) -> Outcome:
        paired, truth = kind.sample(rng, n, drift=drift)
        return outcome_of(paired, truth, deciding="BCa bootstrap")

    for kind in (F1, MATTHEWS, MEDIAN, TOTALS):
        for n in kind.sizes:
            for drift in (False, True):
                yield Cell(
                    data=kind.name, n=n, null=not drift, cost=4 if n < 2_000 else 10,
                    simulate=partial(simulate, kind, n, drift),
                )  # fmt: skip


def unit() -> Iterator[Cell]:
    """Sigma against the base's true standard error; its interval is that of the drift alone."""

    def simulate(n: int, sigma: float, rng: Rng) -> Outcome:
        base = rng.normal(0.0, 1.0, n)
        worse = base - sigma / np.sqrt(n) - rng.normal(0.0, 0.1, n)
        found = compare_scores(scored(base, worse, "mean"))
        assert found.sigma_interval is not None
        return Outcome(
            tests={}, truth=sigma, low=found.sigma_interval[0], high=found.sigma_interval[1]
        )

    for sigma in (1.0, 5.0):
        for n in SIZES:
            yield Cell(
                data=f"a sigma of {sigma:g}, paired scatter a tenth of the base's", n=n,
                null=False, simulate=partial(simulate, n, sigma), cost=2,
            )  # fmt: skip


METHODS: dict[str, Method] = {
    "mean": mean,
    "perplexity": perplexity,
    "weighted_perplexity": weighted_perplexity,
    "bits_per_byte": bits_per_byte,
    "0-1": right_or_wrong,
    "clusters": clustered,
    "clusters-0-1": clustered_answers,
    "bootstrap": bootstrap,
    "unit": unit,
}
