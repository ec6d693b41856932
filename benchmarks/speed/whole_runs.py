"""Rows: whole comparisons against two processes of ``lm_eval``."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

from benchmarks.speed.body import best_budget, forward, load_body
from benchmarks.speed.commands import Commands
from benchmarks.speed.process import Ran
from benchmarks.speed.row import Row, at_least, at_most
from benchmarks.speed.timing import Seconds, cpu_seconds, medians
from benchmarks.speed.workplace import Workplace

_SMALL, _LARGE = 1_000, 5_153


def small(place: Workplace) -> Iterator[Row]:
    """A thousand documents, a candidate in bfloat16; lm_eval twice, evalguard around it."""
    n, turns, repeats = (64, 1, 1) if place.quick else (_SMALL, 2, 5)
    commands, task = Commands(place), place.lastword("32k", n)
    base, candidate, size = place.model("32k"), place.candidate("bf16"), place.best_batch("32k")
    theirs, ours = [], []
    commands.compare(base, candidate, task, None, "--limit", 2)  # the data set's own cache
    for turn in range(repeats):
        ours.append(commands.compare(base, candidate, task, None)[0])
        if turn < turns:
            theirs.append(commands.both(base, candidate, task, size))
    spent, own = _medians(theirs), _medians(ours)
    how = f"n = {n:,}, bf16 candidate, lm_eval at batch size {size}; median of {repeats}, "
    how += f"lm_eval of {turns}"
    yield at_least(
        spent.cpu / own.cpu,
        6.0,
        benchmark=f"whole compare, n = {n:,}",
        sides=f"lm_eval twice {spent.text}, evalguard {own.text}",
        how=how,
    )
    body, imports = _body(place, task), _medians([commands.imports() for _ in range(5)])
    yield at_most(
        own.cpu / (2.0 * body + imports.cpu),
        1.2,
        "x",
        benchmark=f"whole compare over body forward of both + imports, n = {n:,}",
        sides=f"evalguard {own.text}, body {body:.2f} each, imports {imports.text}",
        how="body: length-sorted, best token budget; median of 3, imports of 5",
    )


def large(place: Workplace) -> Iterator[Row]:
    """As many documents as LAMBADA has: fresh, with the base cached, and with early stopping."""
    n = 192 if place.quick else _LARGE
    commands, task = Commands(place), place.lastword("32k", n)
    base, size = place.model("32k"), place.best_batch("32k")
    lossless, worse = place.candidate("lossless"), place.candidate("5-sigma")
    commands.compare(base, lossless, task, None, "--limit", 2)
    theirs = commands.both(base, lossless, task, size)
    against = f"n = {n:,}, lm_eval at batch size {size}; once"
    cache = place.folder / "kept-cache"
    shutil.rmtree(cache, ignore_errors=True)
    full, told = commands.compare(base, lossless, task, cache)
    yield _row("whole compare", 7.0, theirs, full, told, against)
    cached, told_worse = commands.compare(base, worse, task, cache)
    yield _row("whole compare, base cached", 12.0, theirs, cached, told_worse, against)
    again, told_again = commands.compare(base, worse, task, cache)
    yield _row("whole compare, both cached", None, theirs, again, told_again, against)
    for candidate, of_all in ((lossless, told), (worse, told_worse)):
        ran, early = commands.compare(base, candidate, task, None, "--sequential")
        same = early["gate"]["state"] == of_all["gate"]["state"]
        used = early["sequential"]["tasks"][0]["n_used"]
        how = f"{against}; {used:,} documents asked; verdict {early['gate']['state']}, " + (
            "that of the full run" if same else f"the full run's is {of_all['gate']['state']}"
        )
        row = _row(f"whole compare, --sequential, {candidate.name}", 25.0, theirs, ran, early, how)
        yield row if same else Row(benchmark=row.benchmark, measured="another verdict", met=False)


def _row(
    what: str, target: float | None, theirs: Ran, ours: Ran, told: dict[str, Any], how: str
) -> Row:
    about = {
        "benchmark": f"{what}, n = {told['comparisons'][0]['n']:,}",
        "sides": f"lm_eval twice {theirs.cpu:.1f} ({theirs.wall:.1f}), "
        f"evalguard {ours.cpu:.1f} ({ours.wall:.1f})",
        "how": f"{how}; sigma {told['comparisons'][0]['sigma']:.2f}",
    }
    ratio = theirs.cpu / ours.cpu
    return (
        Row(measured=f"{ratio:.1f}x", **about)
        if target is None
        else at_least(ratio, target, **about)
    )


def _body(place: Workplace, task: str) -> float:
    """CPU seconds of one model's body on a task's tokens."""
    import torch

    torch.set_num_threads(1)
    sequences = place.ours("32k", task).fed(place.requests(task))
    model = load_body(place.model("32k"))
    budget = best_budget(model, sequences)
    return sorted(cpu_seconds(forward, model, sequences, budget) for _ in range(3))[1]


def _medians(ran: list[Ran]) -> Seconds:
    return medians([(one.cpu, one.wall) for one in ran])
