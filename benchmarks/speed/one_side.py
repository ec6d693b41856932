"""One model scored by one side in this process; prints its peak memory before and after, in MB."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from benchmarks.speed.sides import Harness, Ours, tasks_of
from evalguard.worker.process_family import peak_memory


def main() -> None:
    """Load a model and a task, and score."""
    side, model, task, tasks, folder, batch_size = sys.argv[1:]
    loaded_tasks = tasks_of([task], Path(tasks))
    requests = loaded_tasks.requests(task)
    scorer = (
        Harness(Path(model), int(batch_size))
        if side == "harness"
        else Ours(Path(model), loaded_tasks, Path(folder) / "cache")
    )
    loaded = _peak()
    scorer.score(requests)
    print(json.dumps({"loaded": loaded, "peak": _peak()}))


def _peak() -> float:
    return (peak_memory() or 0) / 1e6


if __name__ == "__main__":
    main()
