"""How often a change point is found where there is none, in nights that depend on each other.

python -m benchmarks.change_points --output benchmarks/results/change_points.md
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

import evalguard
from benchmarks.night_series import Make, normal, persistent, shared_for_a_week, stepped
from benchmarks.output import deliver
from evalguard.stats.series.change_points import change_points

SEED = 20_261_130
NIGHTS = (20, 40, 80)
STEP = 2.0  # in standard deviations of a night, from the middle on
_SPREAD = 0.3
SERIES: dict[str, Make] = {
    "independent": partial(normal, spread=_SPREAD),
    "autoregressive, 0.3": partial(persistent, rho=0.3),
    "autoregressive, 0.6": partial(persistent, rho=0.6),
    "autoregressive, 0.8": partial(persistent, rho=0.8),
    "documents shared for a week": shared_for_a_week,
}


def main() -> None:
    """Simulate; print the table or write it to a file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
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
        f"evalguard {evalguard.__version__}. {runs:,} series a row, seed {SEED}, alpha 5%. False: "
        "series without a step in which a change point is found. Found: the same with a step of "
        f"{STEP:.0f} standard deviations in the middle."
    )
    yield ""
    yield "| nights | " + " | ".join(f"{n} nights: false | found" for n in NIGHTS) + " |"
    yield "|---|" + "---|---|" * len(NIGHTS)
    rng = np.random.default_rng(SEED)
    for name, make in SERIES.items():
        cells = []
        for nights in NIGHTS:
            false = found = 0
            for _ in range(runs):
                quiet = make(rng, nights)
                false += bool(change_points(*quiet).points)
                moved = stepped(quiet, {nights // 2: STEP * _SPREAD})
                found += bool(change_points(*moved).points)
            cells.append(f"{false / runs:.0%} | {found / runs:.0%}")
        yield f"| {name} | {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
