"""How often a change point is found where there is none, in nights that depend on each other, and
how often one that is there, beside an oracle.

    python -m benchmarks.change_points --output benchmarks/results/change_points.md
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.night_series import (
    Floats,
    Make,
    Rng,
    normal,
    persistent,
    shared_for_a_week,
    stepped,
)
from benchmarks.output import deliver
from evalguard.nights.change_points import SHORTEST, change_points

SEED = 20_261_130
NIGHTS = (20, 40, 80)
STEP = 2.0  # in standard deviations of a night, from the middle on
_SPREAD = 0.3
_ALPHA = 0.05
_ORACLE_SERIES = 2_000
SERIES: dict[str, tuple[Make, Callable[[Floats], Floats]]] = {
    "independent": (partial(normal, spread=_SPREAD), lambda lags: np.where(lags == 0, 1.0, 0.0)),
    **{
        f"autoregressive, {rho:g}": (partial(persistent, rho=rho), partial(np.power, rho))
        for rho in (0.3, 0.6, 0.8)
    },
    "documents shared for a week": (
        shared_for_a_week,
        lambda lags: np.where(lags == 0, 1.0, 0.8 * np.maximum(0.0, 1.0 - lags / 7.0)),
    ),
}
"""Series without a step, and how nights so far apart are correlated."""


def main() -> None:
    """Simulate; print the table or write it to a file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--output", type=Path, help="write the table there")
    parser.add_argument("--runs", type=int, default=1_000, help="series of a row")
    options = parser.parse_args()
    deliver(report(options.runs), options.output)


def report(runs: int) -> Iterator[str]:
    """The page, line by line."""
    yield "# Change points that are none"
    yield ""
    yield "`python -m benchmarks.change_points --output benchmarks/results/change_points.md`"
    yield ""
    yield (
        f"{runs:,} series a row, seed {SEED}, alpha 5%. False: series without a step in which a "
        f"change point is found. Found: the same with a step of {STEP:.0f} standard deviations in "
        "the middle. Oracle: what finds it in the same nights knowing how they depend on each "
        "other, by the largest of all generalised least squares contrasts at the value that "
        f"{_ORACLE_SERIES:,} series without a step exceed in 5%."
    )
    yield ""
    yield "| nights | " + " | ".join(f"{n} nights: false | found | oracle" for n in NIGHTS) + " |"
    yield "|---|" + "---|---|---|" * len(NIGHTS)
    rng = np.random.default_rng(SEED)
    for name, (make, correlation) in SERIES.items():
        cells = []
        for nights in NIGHTS:
            false = found = 0
            for _ in range(runs):
                quiet = make(rng, nights)
                false += bool(change_points(*quiet).points)
                moved = stepped(quiet, {nights // 2: STEP * _SPREAD})
                found += bool(change_points(*moved).points)
            oracle = oracle_power(make, correlation, nights, np.random.default_rng([SEED, nights]))
            cells.append(f"{false / runs:.0%} | {found / runs:.0%} | {oracle:.0%}")
        yield f"| {name} | {' | '.join(cells)} |"


def oracle_power(
    make: Make, correlation: Callable[[Floats], Floats], nights: int, rng: Rng
) -> float:
    """The share of series with the step in which its best contrast is beyond the 5% of others."""
    order = np.arange(nights, dtype=np.float64)
    precision = np.linalg.inv(correlation(np.abs(order[:, None] - order[None, :])))
    sums = precision.sum(axis=0)
    of_a_level = precision - np.outer(sums, sums) / sums.sum()  # whatever the level is
    splits = np.arange(SHORTEST, nights - SHORTEST + 1)
    after = (order[None, :] >= splits[:, None]).astype(np.float64)
    contrasts = after @ of_a_level
    contrasts /= np.sqrt(np.sum(contrasts * after, axis=1))[:, None]
    quiet = np.array([make(rng, nights)[0] for _ in range(2 * _ORACLE_SERIES)]) / _SPREAD
    step = STEP * (order >= nights // 2)
    null, moved = quiet[:_ORACLE_SERIES], quiet[_ORACLE_SERIES:] + step
    largest = [np.max(np.abs(values @ contrasts.T), axis=1) for values in (null, moved)]
    return float(np.mean(largest[1] > np.quantile(largest[0], 1.0 - _ALPHA)))


if __name__ == "__main__":
    main()
