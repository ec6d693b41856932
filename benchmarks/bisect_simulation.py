"""How often a search names the guilty settings exactly, and what it costs, against other searches.

    python -m benchmarks.bisect_simulation --cells build/bisect.jsonl --minutes 60
    python -m benchmarks.bisect_simulation --cells build/bisect.jsonl --minutes 0 \\
        --output benchmarks/results/bisect_simulation.md

Planted drift (benchmarks/bisect_planting.py). Cells come in the order of their weight, a few
plantings at a time, and are appended to the file: it can be stopped at any time and goes on where
it was. ``--part 1/2`` and ``--part 2/2`` share the work of two processes, with a file each or one.
``--case`` and ``--search`` take some of the cells.
``--sums`` adds a file up; benchmarks/results/bisect_simulation.jsonl are the published counts, and
a copy of it can be gone on from.
The search was developed on the seeds 4, 77 and 91.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.bisect_counts import Key, append, counted, read, sums
from benchmarks.bisect_outcomes import OTHERS, OURS
from benchmarks.bisect_planting import CASES
from benchmarks.bisect_tables import report
from benchmarks.output import deliver

SEED = 20261121
RUNS = 300
SIZES = (16, 8, 64)
EFFECTS = (5.0, 7.0, 10.0, 4.0, 3.0, 2.0)
_CLEAR = 5.0  # sigma: from there on the targets hold, and below it thorough is of interest
_CHUNK = 20  # plantings between two lines of the file
_JITTER_PASSES = 5.0  # sigma: jitter alone fails no gate of half a larger effect


def schedule() -> Iterator[Key]:
    """Yield all cells, the most telling first: clear effects, this search and then the others."""
    evalguard, thorough, given = OURS
    for search in (evalguard, given, *OTHERS):
        yield from _cells(_CLEAR, search)
    for search in (evalguard, thorough, *OTHERS):
        for effect in EFFECTS:
            if effect != _CLEAR and (search != thorough or effect < _CLEAR):
                yield from _cells(effect, search)


def _cells(effect: float, search: str) -> Iterator[Key]:
    for n in SIZES:
        for case in CASES:
            if case != "jitter only" or effect <= _JITTER_PASSES:
                yield case, n, effect, search


def main() -> None:
    """Simulate for some time, and write the tables where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cells", type=Path, required=True, help="file of counts, added to")
    parser.add_argument("--minutes", type=float, default=60.0, help="stop after that time")
    parser.add_argument("--runs", type=int, default=RUNS, help="plantings in each cell")
    parser.add_argument("--part", default="1/1", metavar="I/K", help="every K-th cell from I on")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--any-code", action="store_true", help="add up counts of other versions")
    parser.add_argument("--output", type=Path, help="write the tables there")
    parser.add_argument("--sums", type=Path, help="write the counts there, a line for each cell")
    parser.add_argument("--case", action="append", choices=CASES, help="only these cases")
    parser.add_argument("--search", action="append", help="only these searches")
    options = parser.parse_args()
    part, parts = (int(number) for number in options.part.split("/"))
    end = time.monotonic() + 60.0 * options.minutes
    known = read(options.cells, options.seed)
    wanted = [
        key
        for key in schedule()
        if key[0] in (options.case or CASES) and key[3] in (options.search or (key[3],))
    ]
    for key in wanted[part - 1 :: parts]:
        at = known[key].runs if key in known else 0
        while at < options.runs and time.monotonic() < end:
            runs = min(_CHUNK, options.runs - at)
            append(options.cells, counted(key, at, runs, options.seed), options.seed)
            at += runs
    if options.output:
        found = read(options.cells, options.seed, any_code=options.any_code)
        deliver(report(found, options.seed), options.output)
    if options.sums:
        deliver(sums([options.cells]), options.sums)


if __name__ == "__main__":
    main()
