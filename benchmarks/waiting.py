"""CPU seconds and memory of what people wait for: two finished runs, many tasks, the demo.

    python -m benchmarks.waiting --output benchmarks/results/waiting.md

Every command is a process of its own; its CPU seconds and peak memory are those that the system
counts for it (``os.wait4``). Beside it stands what can hardly be gone below: the same lines read by
orjson with scipy imported, which is run in turn with it, so that a ratio is of one machine in one
state. Medians of ``--repeats``. ``--demo`` runs `evalguard demo` from a cold cache too. Modules are
compiled once, before anything is measured, as an installed package's are.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.output import deliver
from tests import written_runs

COMMAND = "python -m benchmarks.waiting --output benchmarks/results/waiting.md"
_FLOOR = """
import sys, orjson, scipy.stats
for name in sys.argv[1:]:
    with open(name, "rb") as file:
        for line in file:
            orjson.loads(line)
"""
_TASKS, _OF_TASK = 57, 250


@dataclass(frozen=True, slots=True)
class Cost:
    """What a process took."""

    cpu: float
    peak_mb: float


def main() -> None:
    """Measure; print the table or write it to a file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--demo", action="store_true")
    parser.add_argument("--output", type=Path)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = [
            *_finished_runs(Path(folder), chosen.documents, chosen.repeats),
            _many_tasks(Path(folder), chosen.repeats),
            *([_demo(Path(folder), chosen.repeats)] if chosen.demo else []),
        ]
    head = [
        "# What people wait for",
        "",
        f"`{COMMAND}`; Python {sys.version.split()[0]}, {os.cpu_count()} cores, medians of "
        f"{chosen.repeats}. Floor: the same lines read by orjson, and scipy imported. Modules were "
        "compiled before.",
        "",
        "| command | CPU s | peak MB | floor, CPU s | ratio |",
        "|---|---|---|---|---|",
    ]
    deliver([*head, *rows], chosen.output)


def _finished_runs(folder: Path, documents: int, repeats: int) -> list[str]:
    rows = []
    for make in (written_runs.last_words, written_runs.choices, written_runs.numbers):
        written_runs.N = documents
        sides = []
        for port in (False, True):
            sides.append(folder / make.__name__ / ("cand" if port else "base"))
            _write_apart(lambda make=make, port=port: [make(port)], port, sides[-1])
        said = f"two finished runs of {documents:,} documents ({make.__name__})"
        rows.append(_compare(said, sides, folder, repeats))
    return rows


def _many_tasks(folder: Path, repeats: int) -> str:
    written_runs.N = _OF_TASK
    sides = []
    for port in (False, True):
        sides.append(folder / "many" / ("cand" if port else "base"))
        _write_apart(lambda port=port: _choices(port), port, sides[-1])
    return _compare(f"{_TASKS} tasks of {_OF_TASK} documents", sides, folder, repeats)


def _choices(port: bool) -> list[written_runs.WrittenTask]:
    tasks = []
    for number in range(_TASKS):
        task = written_runs.choices(port)
        task.name = task.config["task"] = f"choices_{number:02}"
        tasks.append(task)
    return tasks


def _write_apart(
    make: Callable[[], list[written_runs.WrittenTask]], port: bool, folder: Path
) -> None:
    """Write a run in a process of its own: what this one has in memory is its children's peak."""
    process = os.fork()
    if process == 0:
        tasks = {task.name: task for task in make()}
        model = "org/port" if port else "org/model"
        written_runs.WrittenRun(tasks=tasks, model=model).write(folder)
        os._exit(0)
    os.waitpid(process, 0)


def _compare(said: str, sides: Sequence[Path], folder: Path, repeats: int) -> str:
    files = [str(file) for side in sides for file in sorted(side.glob("samples_*.jsonl"))]
    base, candidate = map(str, sides)
    words = ["-m", "evalguard", "compare", "--base", base, "--cand", candidate, "--json"]
    costs, floors = [], []
    if not (folder / "compiled").exists():
        _measure(words, folder)
    for _ in range(repeats):
        costs.append(_measure(words, folder))
        floors.append(_measure(["-c", _FLOOR, *files], folder))
    return _row(said, costs, floors)


def _demo(folder: Path, repeats: int) -> str:
    words = ["-m", "evalguard", "demo"]
    if not (folder / "compiled").exists():
        _measure(words, folder, cache="cache-before")
    costs = [_measure(words, folder, cache=f"cache-{number}") for number in range(repeats)]
    return _row("evalguard demo, from cold", costs, [])


def _row(said: str, costs: Sequence[Cost], floors: Sequence[Cost]) -> str:
    cpu = statistics.median(one.cpu for one in costs)
    peak = statistics.median(one.peak_mb for one in costs)
    if not floors:
        return f"| {said} | {cpu:.1f} | {peak:.0f} | | |"
    floor = statistics.median(one.cpu for one in floors)
    return f"| {said} | {cpu:.1f} | {peak:.0f} | {floor:.1f} | {cpu / floor:.1f} |"


def _measure(words: Sequence[str], folder: Path, cache: str = "cache") -> Cost:
    """Run Python with these words in ``folder``, its children's CPU seconds included."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((os.getcwd(), os.environ.get("PYTHONPATH", ""))),
        "EVALGUARD_CACHE_DIR": str(folder / cache),
        "OMP_NUM_THREADS": "1",
        "PYTHONPYCACHEPREFIX": str(folder / "compiled"),
    }
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    process = os.fork()
    if process == 0:
        os.chdir(folder)
        for stream in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
        os.execve(sys.executable, [sys.executable, *words], environment)
    _, status, used = os.wait4(process, 0)
    if os.waitstatus_to_exitcode(status) not in (0, 1):
        raise SystemExit(f"{' '.join(words)}: exit {os.waitstatus_to_exitcode(status)}")
    return Cost(used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)


if __name__ == "__main__":
    main()
