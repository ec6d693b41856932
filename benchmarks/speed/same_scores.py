"""Rows: the same scores as lm-eval's HFLM in float32, and the same greedy flags."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

from benchmarks.speed.documents import write_lastword
from benchmarks.speed.process import ROOT
from benchmarks.speed.random_models import SHAPES
from benchmarks.speed.row import Row
from benchmarks.speed.sides import Harness, Ours, tasks_of
from benchmarks.speed.workplace import Workplace

_MOST = 1e-4
_DOCUMENTS = 256
_DATA = Path(os.environ.get("EVALGUARD_SHARED_DATA", ROOT.parent / "shared" / "data"))


def same_scores(place: Workplace) -> Iterator[Row]:
    """Every model, document by document, each side in its own batches."""
    n = 32 if place.quick else _DOCUMENTS
    yield _row(place, "demo", ROOT / "demo" / "model", "evalguard_lastword", ROOT / "tasks", n)
    if (_DATA / "stories260K").is_dir():
        folder = _DATA / "stories260K"
        lines = (folder / "tinystories_lastword.jsonl").read_text("utf-8").splitlines()[:n]
        parted = [json.loads(line)["text"].rpartition(" ") for line in lines]
        documents = [{"context": head, "target": last} for head, _, last in parted]
        task = write_lastword(place.tasks, "speed_stories", documents)
        yield _row(place, "stories260K", folder / "hf", task, place.tasks)
    for shape, (_, _, what) in SHAPES.items():
        task = place.lastword(shape, n)
        yield _row(place, f"random, {what}", place.model(shape), task, place.tasks)


def _row(
    place: Workplace, what: str, model: Path, task: str, folder: Path, limit: int | None = None
) -> Row:
    tasks = tasks_of([task], folder, limit)
    requests = tasks.requests(task)
    ours = Ours(model, tasks, place.folder / "cache").score(requests)
    theirs = Harness(model, batch_size=16).score(requests)
    pairs = list(zip(ours, theirs, strict=True))
    most = max(abs((mine.loglikelihood or 0.0) - other[0]) for mine, other in pairs)
    flips = sum(mine.is_greedy != other[1] for mine, other in pairs)
    greedy = "equal" if flips == 0 else f"{flips} of {len(pairs)} differ"
    return Row(
        benchmark=f"same scores as HFLM: {what}",
        measured=f"{most:.1e} nats; greedy flags {greedy}",
        target=f"<= {_MOST:g}; equal",
        met=most <= _MOST and flips == 0,
        how=f"{len(pairs):,} documents, HFLM at batch size 16",
    )
