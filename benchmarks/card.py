"""How long a card of many finished runs takes: its Markdown with the plot, from their folders.

    python -m benchmarks.card --output benchmarks/results/card.md

Runs are copies of one that is given (the committed one of the demo by default: 7 metrics, 3 tasks
with KL, a bisection), each under another candidate's name, with a size. Each card is a process of
its own; beside it stands `evalguard --version`, run in turn, which is what starting Python costs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.output import deliver
from evalguard.core.checksum import with_checksum

COMMAND = "python -m benchmarks.card --output benchmarks/results/card.md"
_RUN = Path(__file__).parent.parent / "reports" / "20261130T145216Z-orig-vs-fla-port"


def main() -> None:
    """Measure; print the table or write it to a file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--run", type=Path, default=_RUN)
    parser.add_argument("--runs", type=int, nargs="+", default=[1, 20, 100])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", type=Path)
    chosen = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as place:
        for number in chosen.runs:
            folders = _write_runs(chosen.run, Path(place), number)
            output = Path(place) / "card.md"
            card = ["card", *map(str, folders), "-o", str(output)]
            taken = [(_run(card), _run(["--version"])) for _ in range(chosen.repeats)]
            (cpu, wall), (start, _) = (
                [statistics.median(one) for one in zip(*side, strict=True)]
                for side in zip(*taken, strict=True)
            )
            rows.append(f"| {number} | {cpu:.2f} | {wall:.2f} | {start:.2f} |")
    head = [
        "# A card of many runs",
        "",
        f"`{COMMAND}`; Python {sys.version.split()[0]}, {os.cpu_count()} cores, medians of "
        f"{chosen.repeats}. Aimed at: twenty runs in under five seconds.",
        "",
        "| runs | CPU s | wall s | `evalguard --version`, CPU s |",
        "|---|---|---|---|",
    ]
    deliver([*head, *rows], chosen.output)


def _write_runs(run: Path, place: Path, number: int) -> list[Path]:
    document = json.loads((run / "result.json").read_text(encoding="utf-8"))
    folders = []
    for at in range(number):
        size = {
            "bytes": 10**9 + at,
            "weights": 10**9,
            "kind": "gguf",
            "loaded_as": "",
            "reason": "",
        }
        candidate = {
            **document["candidate"],
            "name": f"Q{at}",
            "digest": f"{at:016x}",
            "size": size,
        }
        folder = place / f"base-vs-Q{at}"
        folder.mkdir(exist_ok=True)
        text = json.dumps(with_checksum({**document, "candidate": candidate}))
        (folder / "result.json").write_text(text, encoding="utf-8")
        folders.append(folder)
    return folders


def _run(words: list[str]) -> tuple[float, float]:
    """CPU and wall-clock seconds of a command."""
    started = time.perf_counter()
    program = [sys.executable, "-m", "evalguard", *words]
    child = os.posix_spawn(
        sys.executable, program, os.environ,
        file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)],
    )  # fmt: skip
    _, status, used = os.wait4(child, 0)
    if status:
        raise SystemExit(f"{' '.join(words[:1])} ended with {os.waitstatus_to_exitcode(status)}")
    return used.ru_utime + used.ru_stime, time.perf_counter() - started


if __name__ == "__main__":
    main()
