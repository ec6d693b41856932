"""Size and speed of a history: bytes a document, and what a trend and two nights' flips take.

    python -m benchmarks.history --nights 365 --output benchmarks/results/history.md

Nights of 20 metrics of 5,000 documents, half of them right or wrong, half log-likelihoods in
float32 that move by 0.1 nats; a year of them is 36.5 million document rows. A query opens the file
each time, as a command does. Times are medians of 25.
"""

from __future__ import annotations

import argparse
import os
import platform
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.output import deliver
from evalguard.nights.document_scores import DocumentScores
from evalguard.nights.history.history_file import HistoryFile, StoredMetric
from evalguard.nights.history_flips import broken_documents, flips
from evalguard.nights.history_questions import HistorySelection, check_history, find_trends
from evalguard.nights.history_report import MetricKey, NightMetric, NightRun

TASKS, DOCUMENTS, REPEATS = 20, 5_000, 25
PAIR = ("orig", "port")
COMMAND = "python -m benchmarks.history --nights 365 --output benchmarks/results/history.md"
# What a trial of this layout showed for a year: bytes, seconds.
AIM_BYTES, AIM_TREND, AIM_FLIPS = 165e6, 6.5e-3, 1.3e-3


def main() -> None:
    """Measure; print the table or write it to a file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nights", type=int, default=30)
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "history.sqlite"
        took = kept(file, given.nights)
        lines = table(file, given.nights, took)
    deliver(lines, given.output)


def kept(file: Path, nights: int) -> float:
    """Keep the nights; return the seconds that one took."""
    rng = np.random.default_rng(20261120)
    prints = [rng.integers(0, 2**64, DOCUMENTS, dtype=np.uint64) for _ in range(TASKS)]
    bases = [base_scores(rng, task) for task in range(TASKS)]
    spent = 0.0
    with HistoryFile(file, create=True) as history:
        for night in range(nights):
            metrics = []
            for task in range(TASKS):
                scores = DocumentScores(
                    aggregation="perplexity" if task % 2 else "mean",
                    higher_is_better=task % 2 == 0,
                    doc_ids=np.arange(DOCUMENTS),
                    prints=prints[task],
                    base=bases[task],
                    candidate=candidate_scores(rng, bases[task], task),
                )
                metrics.append(StoredMetric(metric=metric(task, rng.normal()), documents=scores))
            start = time.perf_counter()
            history.add(run(night), metrics, {"packages": {"torch": "2.13"}})
            spent += time.perf_counter() - start
    return spent / nights


def base_scores(rng: np.random.Generator, task: int) -> Any:
    """Scores of a base: log-likelihoods for odd tasks."""
    if task % 2:
        return narrow(rng.normal(-1.5, 1.4, DOCUMENTS))
    return (rng.random(DOCUMENTS) < 0.6).astype(np.float64)


def candidate_scores(rng: np.random.Generator, base: Any, task: int) -> Any:
    """Scores of one night's candidate: 3% flips, or 0.1 nats."""
    if task % 2:
        return narrow(base + rng.normal(0.0, 0.1, DOCUMENTS))
    return np.where(rng.random(DOCUMENTS) < 0.03, 1.0 - base, base)


def narrow(values: Any) -> Any:
    """As a model gives them: float32."""
    return values.astype(np.float32).astype(np.float64)


def run(night: int) -> NightRun:
    """A run at 03:00."""
    return NightRun(
        created=f"{np.datetime64('2026-01-01') + np.timedelta64(night, 'D')}T03:00:00+00:00",
        base=PAIR[0],
        base_digest="b" * 16,
        candidate=PAIR[1],
        candidate_digest=f"{night:016x}",
        exit_code=0,
        passed=True,
        state="passed",
        margin=1.0,
        fail_on="margin",
        version="0.1.0",
        environment="e" * 16,
        folder=f"reports/{night}",
    )


def metric(task: int, sigma: float) -> NightMetric:
    """A metric whose sigma moves from night to night."""
    return NightMetric(
        task=f"task{task}",
        filter="none",
        metric="perplexity" if task % 2 else "acc",
        higher_is_better=task % 2 == 0,
        n=DOCUMENTS,
        n_used=DOCUMENTS,
        base=0.6,
        base_stderr=0.007,
        candidate=0.59,
        candidate_stderr=0.007,
        sigma=sigma,
        sigma_low=sigma - 0.3,
        sigma_high=sigma + 0.3,
        paired_stderr=0.001,
        p_value=0.1,
        method="paired-t",
        outcome="degraded",
        significant=True,
        certain=False,
        bit_identical=False,
        gated=True,
    )


def table(file: Path, nights: int, took: float) -> list[str]:
    """The figures, as Markdown."""
    rows = nights * TASKS * DOCUMENTS
    size = file.stat().st_size
    year = rows / (365 * TASKS * DOCUMENTS)
    acc, perplexity = ("task0", "none", "acc"), ("task1", "none", "perplexity")
    lines = [
        "# The history file",
        "",
        f"{nights} nights x {TASKS} metrics x {DOCUMENTS:,} documents = {rows / 1e6:.1f} million "
        f"document rows; Python {platform.python_version()}, sqlite {sqlite3.sqlite_version}, "
        f"{os.cpu_count()} cores, shared. `{COMMAND}`",
        "",
        "| what | found | a trial of a year |",
        "|---|---|---|",
        f"| size | {size / 1e6:.1f} MB, {size / rows:.2f} bytes a document | "
        f"{AIM_BYTES * year / 1e6:.1f} MB |",
        f"| keeping a night | {milliseconds(took)} | |",
    ]
    for name, aim, work in (
        ("trend of one metric: rows", AIM_TREND, lambda: nights_of(file, acc)),
        ("flips between two nights, right or wrong", AIM_FLIPS, lambda: two(file, nights, acc)),
        ("flips, log-likelihoods", AIM_FLIPS, lambda: two(file, nights, perplexity)),
    ):
        lines.append(f"| {name} | {milliseconds(median(work))} | {milliseconds(aim)} |")
    for name, work in (
        ("trend with change points, one metric", lambda: scanned(file)),
        ("what broke again, over all nights, one metric", lambda: again(file, nights, acc)),
        ("`history check`", lambda: check_history(file)),
    ):
        lines.append(f"| {name} | {milliseconds(median(work, 3))} | |")
    return lines


def nights_of(file: Path, key: MetricKey) -> None:
    """The trend query."""
    with HistoryFile(file) as history:
        history.nights(PAIR, key)


def two(file: Path, last: int, key: MetricKey) -> None:
    """The flips query: two nights' documents, compared."""
    with HistoryFile(file) as history:
        found = history.documents([last - 1, last], key)
        flips(found[last - 1], found[last])


def scanned(file: Path) -> None:
    """What `history trend` does for one metric."""
    find_trends(file, HistorySelection(task="task1"))


def again(file: Path, last: int, key: MetricKey) -> None:
    """What `history flips` adds to the flips."""
    with HistoryFile(file) as history:
        found = history.documents(range(1, last + 1), key)
        broken_documents(found.pop(last), found)


def median(work: Callable[[], object], repeats: int = REPEATS) -> float:
    """Seconds."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def milliseconds(seconds: float) -> str:
    """Return "6.5 ms"."""
    return f"{seconds * 1e3:.1f} ms"


if __name__ == "__main__":
    main()
