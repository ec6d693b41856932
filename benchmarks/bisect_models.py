"""Guilty settings planted at random in real models, and what `evalguard bisect` makes of them.

    python -m benchmarks.bisect_models --output benchmarks/results/bisect_models.md

Models with random weights in two architectures, whose documents are sampled from themselves, so
that every change of their computation costs likelihood (benchmarks/sampled_models.py). Of 12 to 16
settings 1 to 3 are turned until they cost 2.5 to 25 sigma alone; the others are what conversions do
without harm. The truth is measured on all documents, each setting alone and in the candidate's
context, without the search, its caches and its workers.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.bisect_guard import BASE, CANDIDATE, write_guard
from benchmarks.bisect_model_planting import Dials, Planted, planted
from benchmarks.output import deliver
from benchmarks.sampled_models import CONFIGS, TASK, sampled

SEED = 20261120
PLANTINGS = 20
DOCUMENTS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One planting, and what was found.

    ``plain``: CPU seconds of loading a model and scoring all documents once, in one process;
    ``seconds`` and ``cpu``: of the comparison and its bisection, workers included.
    """

    number: int
    planted: Planted
    named: frozenset[str]
    status: str
    drift: float
    evaluations: float
    probes: int
    seconds: float
    cpu: float
    plain: float

    @property
    def exact(self) -> bool:
        return self.named == self.planted.guilty

    @property
    def innocents(self) -> frozenset[str]:
        """Settings that were named and do nothing."""
        return self.named - self.planted.guilty


def searched(number: int, found: Planted, folder: Path) -> Row:
    """Let evalguard compare and bisect a planting, with nothing known before."""
    import evalguard

    guard = write_guard(folder / f"{number}.yaml", found.place, found.settings)
    start, spent = time.perf_counter(), _cpu()
    result = evalguard.bisect_settings(
        BASE, CANDIDATE, config=guard, device="cpu", threads=1,
        cache_dir=folder / f"cache-{number}", write=False, quiet=True,
    )  # fmt: skip
    seconds, cpu = time.perf_counter() - start, _cpu() - spent
    report = result.report.bisect
    assert report is not None, result.report.bisect_reason
    return Row(
        number=number,
        planted=found,
        named=frozenset(culprit.setting for culprit in report.culprits),
        status=report.status,
        drift=report.searches[0].drift_sigma or 0.0,
        evaluations=report.evaluations,
        probes=report.probes,
        seconds=seconds,
        cpu=cpu,
        plain=found.truth.seconds,
    )


def _cpu() -> float:
    """CPU seconds of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def rows(plantings: int, documents: int, seed: int) -> Iterator[Row]:
    """Plant and search, the architectures by turns."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        dials: dict[str, Dials] = {}
        for number in range(plantings):
            kind = sorted(CONFIGS)[number % len(CONFIGS)]
            if kind not in dials:
                made = sampled(kind, folder, documents=documents, seed=seed)
                dials[kind] = Dials.measured(made)
            found = planted(dials[kind], np.random.default_rng([seed, number]))
            yield searched(number, found, folder)


def main() -> None:
    """Plant, search, and print the table or write it to a file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, help="write the table there")
    parser.add_argument("--plantings", type=int, default=PLANTINGS)
    parser.add_argument("--documents", type=int, default=DOCUMENTS)
    parser.add_argument("--seed", type=int, default=SEED)
    options = parser.parse_args()
    deliver(report(list(_told(options)), options), options.output)


def _told(options: argparse.Namespace) -> Iterator[Row]:
    for row in rows(options.plantings, options.documents, options.seed):
        print(_line(row), flush=True)
        yield row


def report(found: list[Row], options: argparse.Namespace) -> Iterator[str]:
    """Yield the table."""
    import torch
    import transformers

    costs = [row.evaluations for row in found]
    exact = sum(row.exact for row in found)
    named = sum(bool(row.innocents) for row in found)
    yield "# Bisection on real models\n"
    yield (
        f"`python -m benchmarks.bisect_models --plantings {options.plantings} --documents "
        f"{options.documents} --seed {options.seed} --output FILE`\n"
    )
    yield (
        f"{len(found)} plantings on {options.documents:,} documents of task {TASK}, perplexity "
        "gated at 1 sigma. Exactly the guilty settings were named in "
        f"**{exact} of {len(found)}**; an innocent one in **{named}**. Mean cost "
        f"{np.mean(costs):.1f} full evaluations (median {np.median(costs):.1f}, at most "
        f"{max(costs):.1f}; base and candidate excepted), and as CPU time, with base, "
        "candidate, workers and start-up, that of "
        f"{np.mean([row.cpu / row.plain for row in found]):.0f} plain full evaluations of "
        f"{np.mean([row.plain for row in found]):.2f} s.\n"
    )
    yield "Planted: sigma alone / in the candidate's context, measured apart from the search.\n"
    yield "| | model | settings | planted | drift | named | status | FE | probes | s | CPU s |"
    yield "|---" * 11 + "|"
    yield from map(_line, found)
    yield (
        f"\nPython {platform.python_version()}, torch {torch.__version__}, transformers "
        f"{transformers.__version__}, one thread of {os.cpu_count()} {platform.machine()} cores "
        f"that other work shared (CPU seconds count), seed {options.seed}."
    )


def _line(row: Row) -> str:
    truth = row.planted.truth
    sizes = ", ".join(
        f"{name} {truth.reported(row.planted.alone[name]):.1f} / "
        f"{truth.reported(row.planted.in_context[name]):.1f}"
        for name in sorted(row.planted.guilty)
    )
    other = ", ".join(sorted(row.named)) or "nobody"
    cells = [
        row.number, row.planted.place.kind, len(row.planted.settings), sizes, f"{row.drift:.1f}",
        "exactly these" if row.exact else f"**{other}**", row.status, f"{row.evaluations:.1f}",
        row.probes, f"{row.seconds:.0f}", f"{row.cpu:.0f}",
    ]  # fmt: skip
    return "| " + " | ".join(map(str, cells)) + " |"


if __name__ == "__main__":
    main()
