"""How often a search names the guilty settings exactly, and what it costs, against other searches.

    python -m benchmarks.bisect_simulation --output benchmarks/results/bisect_simulation.md

Planted drift (benchmarks/bisect_planting.py); the margin is half of an effect. Only candidates that
fail the gate are searched, but for the masked pair. The search was tuned on other seeds.
"""

from __future__ import annotations

import argparse
import math
import platform
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from benchmarks.bisect_baselines import Judge, bisection, delta_debugging, one_at_a_time
from benchmarks.bisect_planting import CASES, DOCUMENTS, SPREADS, PlantedOracle, Planting, planting
from benchmarks.output import deliver
from evalguard.bisect import find_culprits

SEED = 20261120
SIZES = (8, 16, 64)
EFFECTS = (2.0, 3.0, 4.0, 5.0, 7.0, 10.0)
JITTER_LIMIT = 3.0  # sigma: the other searches call less than that jitter
SEARCHES = ("one at a time", "bisection", "ddmin", "evalguard", "evalguard, thorough")
_OTHERS = {"one at a time": one_at_a_time, "bisection": bisection, "ddmin": delta_debugging}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a search made of one planting."""

    exact: bool
    valid: bool
    innocent: bool
    cost: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """The outcomes of all runs of one case."""

    case: str
    n: int
    effect: float
    search: str
    runs: int
    exact: float
    valid: float
    innocent: float
    cost: float
    cost_error: float


def drawn(
    case: str, n: int, effect: float, number: int, seed: int
) -> tuple[Planting, PlantedOracle]:
    """A planting and its oracle; drawn again until the candidate fails the gate."""
    rng = np.random.default_rng([seed, zlib.crc32(f"{case}|{n}|{effect}".encode()), number])
    spread = SPREADS[number % len(SPREADS)]
    while True:
        planted = planting(case, n, effect, rng)
        oracle = PlantedOracle(planted, names(n), spread, int(rng.integers(1 << 31)))
        if case == "masked pair" or oracle.drift(frozenset(names(n))) > effect / 2.0:
            return planted, oracle


@cache
def names(n: int) -> tuple[str, ...]:
    """Names of n settings."""
    return tuple(f"setting-{number}" for number in range(n))


def outcome(case: str, n: int, effect: float, search: str, number: int, seed: int) -> Outcome:
    """Search one planting."""
    planted, oracle = drawn(case, n, effect, number, seed)
    settings = names(n)
    margin = effect / 2.0
    if search in _OTHERS:
        judge = Judge(oracle, settings, max(margin, JITTER_LIMIT))
        named = _OTHERS[search](judge, settings)
        cost, diffuse = judge.cost, False
    else:
        result = find_culprits(
            oracle, settings, margin=margin, yardstick=oracle.sigma, seed=number,
            thorough="thorough" in search,
        )  # fmt: skip
        named = {culprit.name for culprit in result.culprits}
        cost, diffuse = result.cost, result.status == "diffuse"
    guilty = {settings[one] for one in planted.guilty}
    left = oracle.drift(frozenset(settings) - named)
    said = diffuse if case == "diffuse" else True
    return Outcome(
        exact=named == guilty and said,
        valid=named <= guilty and (left <= margin or (diffuse and case == "diffuse")),
        innocent=not named <= guilty,
        cost=cost,
    )


def cell(case: str, n: int, effect: float, search: str, runs: int, seed: int) -> Cell:
    """Search many plantings of a case."""
    outcomes = [outcome(case, n, effect, search, number, seed) for number in range(runs)]
    costs = np.array([o.cost for o in outcomes])
    return Cell(
        case=case, n=n, effect=effect, search=search, runs=runs,
        exact=float(np.mean([o.exact for o in outcomes])),
        valid=float(np.mean([o.valid for o in outcomes])),
        innocent=float(np.mean([o.innocent for o in outcomes])),
        cost=float(costs.mean()),
        cost_error=float(costs.std(ddof=1) / math.sqrt(runs)) if runs > 1 else math.nan,
    )  # fmt: skip


def main() -> None:
    """Simulate, and print the tables or write them to a file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, help="write the tables there")
    parser.add_argument("--runs", type=int, default=300, help="plantings in each cell")
    parser.add_argument("--sizes", type=int, nargs="*", default=list(SIZES), metavar="N")
    parser.add_argument("--effects", type=float, nargs="*", default=list(EFFECTS), metavar="SIGMA")
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=CASES, metavar="CASE")
    parser.add_argument("--searches", nargs="*", default=list(SEARCHES[:4]), choices=SEARCHES,
                        metavar="SEARCH")  # fmt: skip
    parser.add_argument("--seed", type=int, default=SEED)
    options = parser.parse_args()
    start = time.process_time()
    cells = [
        cell(case, n, effect, search, options.runs, options.seed)
        for n in options.sizes
        for effect in options.effects
        for case in options.cases
        for search in options.searches
    ]
    lines = list(report(cells, options.runs))
    lines.append(
        f"\n{(time.process_time() - start) / 60.0:.0f} minutes of one core; Python "
        f"{platform.python_version()}, numpy {np.__version__}, seed {options.seed}."
    )
    deliver(lines, options.output)


def report(cells: list[Cell], runs: int) -> Iterator[str]:
    """Yield the tables."""
    share, rare = (100.0 * math.sqrt(p * (1.0 - p) / runs) for p in (0.95, 0.02))
    yield "# Searches for guilty settings, on planted drift\n"
    yield f"`python -m benchmarks.bisect_simulation --runs {runs} --output FILE`\n"
    yield (
        f"{runs} plantings a cell, a third each with effects that are uniform over "
        f"{DOCUMENTS:,} documents, on 5% of them, and lognormal over them. Effects in standard "
        "errors of the jitter of one assignment over all documents; jitter is normal and each "
        "assignment's own. The margin is half of an effect. A cell: exact set % / valid fix (no "
        "innocent named, drift left inside the margin) % / an innocent named % / full evaluations "
        "without base and candidate, 0.05 for each launched assignment, with Monte Carlo error. "
        f"Monte Carlo error of 95%: {share:.1f}; of 2%: {rare:.1f}. Diffuse: every setting does "
        "0.5 to 1.5 of the mean part of two effects; exact is to say so and to name nobody. "
        "Crash rules: two random ones, not declared: a at candidate needs b at candidate. Only "
        "candidates that fail the gate are searched, but for the masked pair."
    )
    searches = list(dict.fromkeys(c.search for c in cells))
    found = {(c.n, c.effect, c.case, c.search): c for c in cells}
    for n in dict.fromkeys(c.n for c in cells):
        for effect in dict.fromkeys(c.effect for c in cells):
            yield f"\n## {n} settings, effects of {effect:g} sigma\n"
            yield "| case | " + " | ".join(searches) + " |"
            yield "|---" * (len(searches) + 1) + "|"
            for case in dict.fromkeys(c.case for c in cells):
                texts = [_text(found[n, effect, case, search]) for search in searches]
                yield f"| {case} | " + " | ".join(texts) + " |"


def _text(of: Cell) -> str:
    shares = " / ".join(f"{100.0 * share:.0f}" for share in (of.exact, of.valid, of.innocent))
    return f"{shares} / {of.cost:.1f} ± {of.cost_error:.1f}"


if __name__ == "__main__":
    main()
