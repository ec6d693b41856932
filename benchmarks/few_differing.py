"""How often the bootstrap's interval holds the true drift of f1, mcc and a ratio of totals where
few documents differ: BCa alone, and joined with the jackknife's t.

    python -m benchmarks.few_differing --output benchmarks/results/few_differing.md
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.differences import Rng
from benchmarks.output import deliver
from benchmarks.tally import seed_of
from evalguard.stats.bootstrap import paired_bootstrap

Counts = NDArray[np.int64]
SEED, POPULATION, RESAMPLES = 20_261_125, 2_000_000, 400


def f1(cells: Counts) -> float:
    """Of counts of gold * 2 + predicted."""
    either = 2 * cells[3] + cells[1] + cells[2]
    return float(2 * cells[3] / either) if either else 0.0


def mcc(cells: Counts) -> float:
    """Likewise, Matthews' correlation."""
    right, false, missed, found = (float(cell) for cell in cells)
    spread = (found + false) * (found + missed) * (right + false) * (right + missed)
    return (found * right - false * missed) / spread**0.5 if spread else 0.0


@dataclass(frozen=True, slots=True)
class Row:
    """Labels of which the base has ``error`` wrong, and a candidate that flips some.

    ``change``: (rng, gold, base's) -> whether the candidate says the other.
    """

    name: str
    n: int
    positive: float
    change: Callable[[Rng, Counts, Counts], NDArray[np.bool_]]
    error: float = 0.15

    def sample(self, rng: Rng, n: int) -> tuple[Counts, Counts]:
        """Cells of base and candidate."""
        gold = (rng.random(n) < self.positive).astype(np.int64)
        base = np.where(rng.random(n) < self.error, 1 - gold, gold)
        candidate = np.where(self.change(rng, gold, base), 1 - base, base)
        return gold * 2 + base, gold * 2 + candidate


def _any(share: float) -> Callable[[Rng, Counts, Counts], NDArray[np.bool_]]:
    return lambda rng, gold, _: rng.random(gold.size) < share


def _found(share: float) -> Callable[[Rng, Counts, Counts], NDArray[np.bool_]]:
    return lambda rng, gold, base: (gold * base == 1) & (rng.random(gold.size) < share)


ROWS = (
    Row("40 of 1,319 flip", 1_319, 0.4, _any(40 / 1_319)),
    Row("40 of 200 flip", 200, 0.4, _any(0.2)),
    Row("40 positives lost of 1,319 documents", 1_319, 0.4, _found(40 / 1_319 / 0.34)),
    Row("5% positive, 40 of 1,319 flip", 1_319, 0.05, _any(40 / 1_319), 0.03),
    Row("13 of 200 flip", 200, 0.4, _any(13 / 200)),
    Row("13 of 50 flip", 50, 0.4, _any(13 / 50)),
)


def rows(repetitions: int) -> Iterator[str]:
    """Yield the table."""
    yield "| documents | metric | BCa alone | joined with the jackknife's t |"
    yield "|---|---|---|---|"
    for row in ROWS:
        for name, metric in (("f1", f1), ("mcc", mcc)):
            alone, joined = coverage(row, metric, repetitions)
            yield f"| {row.name} | {name} | {alone:.1%} | {joined:.1%} |"


def coverage(row: Row, metric: Callable[[Counts], float], repetitions: int) -> tuple[float, float]:
    """Shares of the runs whose 95% interval holds the truth, without and with the jackknife."""
    truth = _drift(metric, *row.sample(np.random.default_rng(SEED), POPULATION))
    held = np.zeros((repetitions, 2), np.bool_)
    for run in range(repetitions):
        base, candidate = row.sample(np.random.default_rng([SEED, seed_of(row.name), run]), row.n)
        for place, differing in enumerate((None, int(np.count_nonzero(base != candidate)))):
            estimate = paired_bootstrap(
                lambda chosen, cells=base: metric(_counts(cells[chosen])),
                lambda chosen, cells=candidate: metric(_counts(cells[chosen])),
                row.n,
                resamples=RESAMPLES,
                confidence=0.95,
                sign=-1,
                differing=differing,
                seed=run,
            ).estimate
            held[run, place] = estimate.low <= truth <= estimate.high
    alone, joined = held.mean(axis=0)
    return float(alone), float(joined)


def _drift(metric: Callable[[Counts], float], base: Counts, candidate: Counts) -> float:
    return metric(_counts(base)) - metric(_counts(candidate))


def _counts(cells: Counts) -> Counts:
    return np.bincount(cells, minlength=4)


def main() -> None:
    """Simulate, and print the table or write it to a file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--repetitions", type=int, default=400)
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    head = [
        "# f1 and mcc where few documents differ",
        "",
        f"`python -m benchmarks.few_differing`: how often a 95% interval holds the true drift, "
        f"{given.repetitions} runs a row (± 1.1% at 95%), {RESAMPLES} resamples. The second column "
        "is what a comparison gives.",
        "",
    ]
    deliver([*head, *rows(given.repetitions)], given.output)


if __name__ == "__main__":
    main()
