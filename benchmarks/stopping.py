"""How often stopping early contradicts the verdict of all documents, and what it saves.

    python -m benchmarks.stopping --output benchmarks/results/stopping.md
    python -m benchmarks.stopping --runs reports/A reports/B     # beside them, finished runs

Every population's full verdict is known. Its documents are put into many random orders, and each
order is stopped as ``evalguard compare --sequential`` stops. Contradicted: the share of orders
whose early verdict is not the full one; alpha is 5%. Used: the mean share of the documents that
were asked, and the share that 90% of the orders did with.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.output import deliver, versions
from benchmarks.stopping_populations import CARRIERS, FEWEST_CARRIERS, cells
from benchmarks.stopping_tables import tables_of
from evalguard.core.pairing import PairedScores, pick_rows
from evalguard.stats.drift import estimate_drift
from evalguard.stats.sequential_looks import StoppingRule, find, planned_looks

SEED = 20261120
ORDERS = 200
SIZES = (500, 2000, 5000)
SIGMAS = (0.0, 0.5, 0.99, 1.01, 2.0, 5.0, 10.0)
RULE = StoppingRule(margin=1.0, alpha=0.05, gated=1, seed=SEED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What became of the orders of one population."""

    name: str
    n: int
    sigma: float
    orders: int
    contradicted: int
    used: float
    most_used: float
    early: float


def tally(name: str, paired: PairedScores, orders: int, seed: int = SEED) -> Tally:
    """Stop many random orders of a population, and hold each against its full verdict."""
    n = paired.base.n
    sigma = estimate_drift(paired, confidence=0.95).sigma
    ends = [_stopped(paired, [seed, number]) for number in range(orders)]
    wrong = sum(side is not None and (side == "above") != (sigma > 1.0) for side, _ in ends)
    shares = np.array([used / n for _, used in ends])
    return Tally(
        name=name,
        n=n,
        sigma=sigma,
        orders=orders,
        contradicted=wrong,
        used=float(np.mean(shares)),
        most_used=float(np.quantile(shares, 0.9)),
        early=float(np.mean(shares < 1.0)),
    )


def _stopped(paired: PairedScores, seed: list[int]) -> tuple[str | None, int]:
    """The side that an order of the documents shows first, and after how many of them."""
    n = paired.base.n
    order = np.random.default_rng(seed).permutation(n)
    for look in planned_looks(n)[:-1]:
        rows = np.sort(order[:look])
        part = PairedScores(
            base=pick_rows(paired.base, rows), candidate=pick_rows(paired.candidate, rows)
        )
        ids = paired.base.doc_ids[order[:look]].tolist()
        found = find(part, ids, n, RULE)
        if found is not None and found.side is not None:
            return found.side, look
        if found is not None and found.to_confirm:
            break
    return None, n


def main() -> None:
    """Simulate, and print the tables or write them to a file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, help="write the tables there")
    parser.add_argument("--orders", type=int, default=ORDERS, help="of each population")
    parser.add_argument("--sizes", type=int, nargs="*", default=list(SIZES), metavar="N")
    parser.add_argument("--sigmas", type=float, nargs="*", default=list(SIGMAS), metavar="S")
    parser.add_argument("--seed", type=int, default=SEED, help="of populations and orders")
    parser.add_argument("--only", default="", metavar="TEXT", help="populations with that name")
    parser.add_argument("--runs", type=Path, nargs="*", default=[], metavar="FOLDER",
                        help="finished run folders of evalguard, to be stopped too")  # fmt: skip
    parser.add_argument("--processes", type=int, default=1, help="cores to use")
    options = parser.parse_args()
    start = time.perf_counter()
    made = [
        cell
        for cell in cells(tuple(options.sizes), tuple(options.sigmas), options.seed)
        if options.only in cell[0]
    ]
    real = [(name, paired) for folder in options.runs for name, paired in tables_of(folder)]
    tables = [*((name, paired) for name, _, _, paired in made), *real]
    jobs = [(name, paired, options.orders, options.seed) for name, paired in tables]
    with ProcessPoolExecutor(options.processes) as pool:
        tallies = list(pool.map(tally, *zip(*jobs, strict=True)))
    lines = list(report(tallies[: len(made)], [sigma for _, _, sigma, _ in made], options.orders))
    lines += list(report_real(tallies[len(made) :]))
    minutes = (time.perf_counter() - start) / 60.0
    lines.append(
        f"\n{minutes:.0f} minutes, {options.processes} processes; seed {options.seed}, "
        f"{versions()}."
    )
    deliver(lines, options.output)


def report(tallies: list[Tally], sigmas: list[float], orders: int) -> Iterator[str]:
    """Yield the tables of the simulated populations."""
    error = 100.0 * np.sqrt(RULE.alpha * (1.0 - RULE.alpha) / orders)
    yield "# Stopping early\n"
    yield (
        "`python -m benchmarks.stopping_runs runs`, then `python -m benchmarks.stopping --runs "
        "$(dirname $(find runs -name result.json)) --output benchmarks/results/stopping.md`\n"
    )
    yield (
        f"{orders} random orders of every population, margin 1 sigma, alpha 5%; Monte Carlo error "
        f"of 5%: {error:.1f}. A cell: orders whose early verdict is not that of all documents, in "
        "percent (**bold**: more than 5% and its Monte Carlo error, two-sided) / mean share of the "
        "documents asked / share with which 90% of the orders did. 0.99 and 1.01 sigma are the "
        "hardest: the margin itself. Log-likelihoods that look to be above it are asked in full, "
        "so that only a pass can be wrong."
    )
    columns = list(dict.fromkeys(sigmas))
    by_cell = {(t.name, t.n, s): t for t, s in zip(tallies, sigmas, strict=True)}
    for n in dict.fromkeys(t.n for t in tallies):
        yield f"\n## {n:,} documents\n"
        yield "| differences | " + " | ".join(f"{s:g} sigma" for s in columns) + " |"
        yield "|---" * (len(columns) + 1) + "|"
        for name in dict.fromkeys(t.name for t in tallies):
            found = [by_cell.get((name, n, s)) for s in columns]
            label = f"*{name}*" if CARRIERS.get(name, 1.0) * n < FEWEST_CARRIERS else name
            yield f"| {label} | " + " | ".join(_cell(t) for t in found) + " |"
    yield (
        f"\n*Italic*: fewer than {FEWEST_CARRIERS} documents carry the whole drift, which is more "
        "than is promised."
    )


def report_real(tallies: list[Tally]) -> Iterator[str]:
    """Yield the table of score tables of real runs."""
    if not tallies:
        return
    yield "\n## Score tables of real runs\n"
    yield "| run, task, metric | documents | sigma of all | contradicted / mean / 90% |"
    yield "|---|---|---|---|"
    for t in tallies:
        yield f"| {t.name} | {t.n:,} | {t.sigma:.2f} | {_cell(t)} |"


def _cell(of: Tally | None) -> str:
    if of is None:
        return ""
    share = 100.0 * of.contradicted / of.orders
    allowed = 100.0 * (RULE.alpha + 2.0 * np.sqrt(RULE.alpha * (1.0 - RULE.alpha) / of.orders))
    wrong = f"{share:.1f}" if share <= allowed else f"**{share:.1f}**"
    return f"{wrong} / {100.0 * of.used:.0f}% / {100.0 * of.most_used:.0f}%"


if __name__ == "__main__":
    main()
