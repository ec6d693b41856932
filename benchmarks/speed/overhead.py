"""Rows: what a comparison takes outside the models' forward passes, and how that grows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benchmarks.speed.commands import Commands
from benchmarks.speed.row import Row, at_most
from benchmarks.speed.workplace import Workplace

_DOCUMENTS, _MOST = 5_153, 3.0
_SIZES = (250, 500, 1_000, 2_000)
_STRAIGHT = 5.0  # percent off the line


def outside(place: Workplace) -> Iterator[Row]:
    """A whole comparison, less its imports and what is spent inside the models' forward."""
    task = place.lastword("32k", 192 if place.quick else _DOCUMENTS)
    commands = Commands(place)
    cache = commands.empty("inside-cache")
    _, told = commands.module(
        "inside", place.model("32k"), place.candidate("bf16"), task, place.tasks, cache
    )
    documents = told["documents"]
    yield at_most(
        told["whole"] - told["forward"],
        _MOST,
        " s",
        benchmark=f"CPU seconds outside the models' forward, n = {documents:,}",
        sides=f"compare {told['whole']:.1f} without imports, of which forward "
        f"{told['forward']:.1f}; imports {told['imports']:.1f}",
        how="one process, fresh cache, bf16 candidate; both models, loading, tokens, statistics "
        "and files; once",
    )


def growth(place: Workplace) -> Iterator[Row]:
    """CPU seconds and peak memory of whole comparisons of 1, 2, 4 and 8 times the documents."""
    sizes = [size // 16 for size in _SIZES] if place.quick else list(_SIZES)
    commands, base, candidate = Commands(place), place.model("32k"), place.candidate("bf16")
    tasks = [place.lastword("32k", size) for size in sizes]
    commands.compare(base, candidate, tasks[0], None, "--limit", 2)
    ran = [commands.compare(base, candidate, task, None) for task in tasks]
    for what, unit, values in (
        ("CPU", "s", [one.cpu for one, _ in ran]),
        ("peak memory", "MB", [told["resources"]["peak_memory_bytes"] / 1e6 for _, told in ran]),
    ):
        slope, start = np.polyfit(sizes, values, 1, w=1.0 / np.array(values))
        line = start + slope * np.array(sizes)
        yield at_most(
            100.0 * float(np.max(np.abs(np.array(values) / line - 1.0))),
            _STRAIGHT,
            "%",
            benchmark=f"growth of {what}: farthest from a line",
            sides=", ".join(f"{v:.1f}" for v in values) + f" {unit}",
            how=f"{', '.join(f'{size:,}' for size in sizes)} documents; {start:.1f} {unit} + "
            f"{1000.0 * slope:.1f} {unit} a thousand documents; once each",
        )
