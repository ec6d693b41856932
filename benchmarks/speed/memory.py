"""Rows: peak memory at a vocabulary of 128k tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from benchmarks.speed.commands import Commands
from benchmarks.speed.row import Row, at_most
from benchmarks.speed.workplace import Workplace

_DOCUMENTS, _THIRD, _USUAL = 64, 0.333, 16


def memory(place: Workplace) -> Iterator[Row]:
    """One model scored in a process of its own, by each side, and a whole comparison."""
    n = 32 if place.quick else _DOCUMENTS
    commands, task, model = Commands(place), place.lastword("128k", n), place.model("128k")
    about = (model, task, place.tasks, place.folder)
    best = place.best_batch("128k")
    _, ours = commands.module("one_side", "evalguard", *about, 0)
    for size in dict.fromkeys((best, _USUAL)):
        _, theirs = commands.module("one_side", "harness", *about, size)
        yield from _rows(ours, theirs, size, f"{n} documents, one model in a process each")
    _, told = commands.compare(model, model, task, None)
    yield Row(
        benchmark="peak memory of a whole compare, both models loaded, 128k vocabulary",
        measured=f"{told['resources']['peak_memory_bytes'] / 1e6:.0f} MB",
        how=f"{n} documents; not a target",
    )


def _rows(
    ours: Mapping[str, float], theirs: Mapping[str, float], size: int, how: str
) -> Iterator[Row]:
    """The whole process, and what scoring adds to the loaded model."""
    what = f"128k vocabulary, HFLM at batch size {size}"
    yield at_most(
        ours["peak"] / theirs["peak"],
        _THIRD,
        "x",
        benchmark=f"peak memory of the process, {what}",
        sides=f"HFLM {theirs['peak']:.0f} MB, evalguard {ours['peak']:.0f} MB",
        how=how,
    )
    added, own = theirs["peak"] - theirs["loaded"], ours["peak"] - ours["loaded"]
    yield at_most(
        own / added if added > 0.0 else 1.0,
        _THIRD,
        "x",
        benchmark=f"peak memory that scoring adds, {what}",
        sides=f"HFLM {added:.0f} MB, evalguard {own:.0f} MB",
        how=f"to {theirs['loaded']:.0f} and {ours['loaded']:.0f} MB before it",
    )
