"""How fast evalguard is beside lm-eval's own command: every row of one table.

    python -m benchmarks.speed --output benchmarks/results/speed.md
    python -m benchmarks.speed --rows alone limit --quick

Both sides of a ratio are measured in one run, by turns, on one thread; the limit stands beside
them. Ratios are of CPU seconds: wall-clock seconds stand in brackets.
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

from benchmarks.output import deliver
from benchmarks.speed import memory, overhead, same_scores, scoring_time, whole_runs
from benchmarks.speed.process import OFFLINE, ONE_THREAD
from benchmarks.speed.row import Row, table
from benchmarks.speed.workplace import Workplace

ROWS: dict[str, Callable[[Workplace], Iterator[Row]]] = {
    "same": same_scores.same_scores,
    "alone": scoring_time.alone,
    "choice": scoring_time.multiple_choice,
    "few-shot": scoring_time.few_shot,
    "limit": scoring_time.limit,
    "small": whole_runs.small,
    "large": whole_runs.large,
    "overhead": overhead.outside,
    "growth": overhead.growth,
    "memory": memory.memory,
}
_PACKAGES = ("lm_eval", "torch", "transformers", "tokenizers", "numpy")


def main() -> None:
    """Measure, and print the table or write it to a file, anew after every row."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", nargs="*", choices=list(ROWS), default=list(ROWS),
                        metavar="ROW", help=f"which to measure: {', '.join(ROWS)}")  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="few documents, once: does it run?")
    parser.add_argument("--output", type=Path, help="write the table there")
    parser.add_argument("--keep", type=Path, metavar="FOLDER",
                        help="models and tasks; used again if they are there")  # fmt: skip
    options = parser.parse_args()
    os.environ.update({**ONE_THREAD, **OFFLINE})  # before torch and lm_eval are imported
    rows, start = [], time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="evalguard-speed-") as made:
        place = Workplace(options.keep or Path(made), quick=options.quick)
        for name in options.rows:
            for row in ROWS[name](place):
                rows.append(row)
                minutes = (time.perf_counter() - start) / 60.0
                if options.output:
                    deliver(page(rows, options.rows, minutes, place), options.output)
    if not options.output:
        deliver(page(rows, options.rows, minutes, place), None)


def page(rows: list[Row], names: list[str], minutes: float, place: Workplace) -> Iterator[str]:
    """Yield the table with its conditions."""
    chosen = "" if list(names) == list(ROWS) else f" --rows {' '.join(names)}"
    yield "# Speed\n"
    yield f"`python -m benchmarks.speed{chosen}{' --quick' * place.quick} --output ...`\n"
    yield (
        "Ratios of CPU seconds, both sides by turns in one run, one thread each (OMP_NUM_THREADS=1)"
        "; a target is what was aimed at. Models are random: Llamas with hidden size 192 and 4 "
        "layers, texts with the lengths of LAMBADA's passages. The body is `model.model(input_ids)`"
        " alone, on distinct sequences sorted by length, at the token budget at which it is "
        "fastest. A lossless candidate has the base's weights in a file of other bytes, so that "
        "nothing is cached for it; the 5-sigma one has noise on its linear layers"
        + (f" ({100.0 * place.noise:.3g}% of each weight)" if place.noise else "")
        + ".\n"
    )
    yield from table(rows)
    packages = ", ".join(f"{name} {version(name)}" for name in _PACKAGES)
    yield (
        f"\n{minutes:.1f} minutes; {_processor()}, {os.cpu_count()} cores; Python "
        f"{platform.python_version()}, {packages}."
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


if __name__ == "__main__":
    main()
