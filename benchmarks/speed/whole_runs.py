"""Rows: whole comparisons against two processes of ``lm_eval``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.speed.body import best_budget, forward, load_body
from benchmarks.speed.commands import Commands
from benchmarks.speed.process import Ran
from benchmarks.speed.row import Row, at_least, at_most
from benchmarks.speed.timing import Seconds, cpu_seconds, medians
from benchmarks.speed.workplace import Workplace

_SMALL, _LARGE = 1_000, 5_153
_USUAL, _DEFAULT = 16, 1
_FASTEST = ", its fastest"
_TARGETS = 7.0, 12.0, 25.0  # fresh, base cached, stopped early


def small(place: Workplace) -> Iterator[Row]:
    """A thousand documents, a candidate in bfloat16; lm_eval twice, evalguard around it."""
    n, turns, repeats = (64, 1, 1) if place.quick else (_SMALL, 2, 5)
    commands, task = Commands(place), place.lastword("32k", n)
    base, candidate = place.model("32k"), place.candidate("bf16")
    sizes = {_DEFAULT: ", its default", **_sizes(place)}
    theirs: dict[int, list[Ran]] = {size: [] for size in sizes}
    ours = []
    commands.compare(base, candidate, task, None, "--limit", 2)  # the data set's own cache
    for turn in range(repeats):
        ours.append(commands.compare(base, candidate, task, None)[0])
        for size in sizes if turn < turns else ():
            theirs[size].append(commands.both(base, candidate, task, size))
    own = _medians(ours)
    for size, best in sizes.items():
        spent = _medians(theirs[size])
        yield _ratio(
            spent.cpu / own.cpu,
            6.0 if best == _FASTEST else None,
            benchmark=f"whole compare, n = {n:,}, lm_eval at batch size {size}{best}",
            sides=f"lm_eval twice {spent.text}, evalguard {own.text}",
            how=f"bf16 candidate; median of {repeats}, lm_eval of {turns}",
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
    commands, task, base = Commands(place), place.lastword("32k", n), place.model("32k")
    lossless, worse = place.candidate("lossless"), place.candidate("5-sigma")
    commands.compare(base, lossless, task, None, "--limit", 2)
    cache = commands.empty("kept-cache")
    full, told = commands.compare(base, lossless, task, cache)
    cached, told_worse = commands.compare(base, worse, task, cache)
    again, told_again = commands.compare(base, worse, task, cache)
    early = [
        (candidate.name, of_all, *commands.compare(base, candidate, task, None, "--sequential"))
        for candidate, of_all in ((lossless, told), (worse, told_worse))
    ]
    for size, best in _sizes(place).items():
        theirs = commands.both(base, lossless, task, size)
        against = f"lm_eval at batch size {size}{best}; once"
        full_x, cached_x, early_x = _TARGETS if best == _FASTEST else (None, None, None)
        yield _row("whole compare", full_x, theirs, full, told, against)
        yield _row("whole compare, base cached", cached_x, theirs, cached, told_worse, against)
        yield _row("whole compare, both cached", None, theirs, again, told_again, against)
        for name, of_all, ran, found in early:
            yield _stopped(name, early_x, theirs, ran, of_all, found, against)


def _sizes(place: Workplace) -> dict[int, str]:
    """lm_eval's batch sizes, and what they are: a usual one, and the fastest for this model.

    The latter is what targets are held against.
    """
    return {_USUAL: "", place.best_batch("32k"): _FASTEST}


def _stopped(
    name: str,
    target: float | None,
    theirs: Ran,
    ran: Ran,
    of_all: dict[str, Any],
    found: dict[str, Any],
    against: str,
) -> Row:
    """The row of an early verdict, which has to be that of all documents."""
    state, full = found["gate"]["state"], of_all["gate"]["state"]
    used = found["sequential"]["tasks"][0]["n_used"]
    how = f"{against}; {used:,} documents asked; verdict {state}, "
    how += "that of the full run" if state == full else f"the full run's is {full}"
    row = _row(f"whole compare, --sequential, {name}", target, theirs, ran, found, how)
    if state == full:
        return row
    return Row(benchmark=row.benchmark, measured="another verdict", met=False)


def _row(
    what: str, target: float | None, theirs: Ran, ours: Ran, told: dict[str, Any], how: str
) -> Row:
    about = {
        "benchmark": f"{what}, n = {told['comparisons'][0]['n']:,}",
        "sides": f"lm_eval twice {theirs.cpu:.1f} ({theirs.wall:.1f}), "
        f"evalguard {ours.cpu:.1f} ({ours.wall:.1f})",
        "how": f"{how}; sigma {told['comparisons'][0]['sigma']:.2f}",
    }
    return _ratio(theirs.cpu / ours.cpu, target, **about)


def _ratio(ratio: float, target: float | None, **about: str) -> Row:
    return (
        Row(measured=f"{ratio:.2f}x", **about)
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
