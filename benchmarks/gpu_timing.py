"""Rows of the table about a GPU that are times, both sides by turns in one process."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu_models import CHOICES, LAST_WORDS, compared_shape
from benchmarks.speed.row import Row
from benchmarks.speed.sides import Harness, Ours, tasks_of
from benchmarks.speed.timing import alternating
from evalguard.harness.requests import TaskRequests

_BATCH_SIZES = (8, 16, 32, 64, 128)
_WHAT = {
    LAST_WORDS: "last words after about 200 tokens",
    CHOICES: "four continuations of 200 shared tokens",
}


def time_scoring(folder: Path, options: argparse.Namespace) -> Iterator[Row]:
    """Scoring alone, beside lm-eval's HFLM at its best batch size."""
    for task in (LAST_WORDS, CHOICES):
        row, best = _beside_harness(folder, task, options)
        if task == LAST_WORDS:
            (folder / "best-batch-size").write_text(str(best))
        yield row


def time_distributions(folder: Path, options: argparse.Namespace) -> Iterator[Row]:
    """What exact KL adds to scoring both models, and what the arithmetic of it takes."""
    yield _time_lockstep(folder, options)
    yield _time_divergences(int(compared_shape(options)["vocab_size"]), options)


def _beside_harness(folder: Path, task: str, options: argparse.Namespace) -> tuple[Row, int]:
    requests, ours = _side(folder, "base", task, options)
    harness = Harness(folder / "base", dtype="bfloat16", device=options.device)
    best = _best_batch(harness, requests)
    spent = alternating(
        {"HFLM": lambda: harness.score(requests), "evalguard": lambda: ours.score(requests)},
        options.repeats,
    )
    off = np.array(
        [
            (mine.loglikelihood or 0.0) - theirs[0]
            for mine, theirs in zip(ours.score(requests), harness.score(requests), strict=True)
        ]
    )
    row = Row(
        benchmark=f"scoring alone, {_WHAT[task]}",
        measured=f"{spent['HFLM'].wall / spent['evalguard'].wall:.2f}x",
        sides=f"HFLM {spent['HFLM'].wall:.2f}, evalguard {spent['evalguard'].wall:.2f}",
        how=f"{requests.n_documents} documents, HFLM at its best batch size {best}, evalguard at "
        f"{ours.token_budget} tokens a pass; scores differ by {np.abs(off).max():.2g} nats at "
        f"most, {off.mean():+.2g} in the mean (bfloat16)",
    )
    return row, best


def _best_batch(harness: Harness, requests: TaskRequests) -> int:
    def score(size: int) -> None:
        harness.lm.batch_size_per_gpu = size
        harness.score(requests, 256)

    spent = alternating({str(size): lambda size=size: score(size) for size in _BATCH_SIZES}, 1)
    best = min(_BATCH_SIZES, key=lambda size: spent[str(size)].wall)
    harness.lm.batch_size_per_gpu = best
    return best


def _time_lockstep(folder: Path, options: argparse.Namespace) -> Row:
    from evalguard.models.hf.lockstep import score_in_lockstep

    requests, base = _side(folder, "base", LAST_WORDS, options)
    _, candidate = _side(folder, "candidate", LAST_WORDS, options)
    _, twin = _side(folder, "base", LAST_WORDS, options)
    asked = requests.requests
    scorers: list[Any] = [base.scorer, candidate.scorer]
    spent = alternating(
        {
            "apart": lambda: [scorer.score(asked) for scorer in scorers],
            "lock-step": lambda: score_in_lockstep(*scorers, asked, asked, seed=0),
        },
        options.repeats,
    )
    # a twin that was loaded anew: other places in memory, for which a library may choose other sums
    _, _, same = score_in_lockstep(scorers[0], twin.scorer, asked, asked, seed=0)  # type: ignore[arg-type]
    _, _, moved = score_in_lockstep(*scorers, asked, asked, seed=0)
    zero, kl = (
        np.concatenate([one.kl for one in found.divergences if one is not None])
        for found in (same, moved)
    )
    return Row(
        benchmark="both models in lock-step with exact KL, over both without",
        measured=f"{spent['lock-step'].wall / spent['apart'].wall:.3f}x",
        sides=f"apart {spent['apart'].wall:.2f}, lock-step {spent['lock-step'].wall:.2f}",
        how=f"{len(kl):,} positions of {requests.n_documents} documents; KL {kl.mean():.4g} nats "
        f"in the mean, of the base against itself, loaded twice, {np.abs(zero).max():.2g} at most",
    )


def _time_divergences(vocabulary: int, options: argparse.Namespace) -> Row:
    import torch

    from evalguard.core.divergence import divergence
    from evalguard.models.device_rows import compare_rows_on_device

    positions = 64
    draws = torch.Generator().manual_seed(0)
    base = torch.randn(positions, vocabulary, generator=draws).log_softmax(-1)
    moved = (base + 0.1 * torch.randn(base.shape, generator=draws)).log_softmax(-1)
    there = [rows.to(options.device) for rows in (base, moved)]
    ids = np.arange(positions)
    spent = alternating(
        {
            "core": lambda: divergence(base.numpy(), moved.numpy(), ids),
            "device": lambda: compare_rows_on_device(*there, ids),
        },
        options.repeats,
    )
    return Row(
        benchmark="divergences on the device, over numpy's on the CPU",
        measured=f"{spent['core'].wall / spent['device'].wall:.1f}x",
        sides=f"numpy {1e3 * spent['core'].wall / positions:.3f} ms, device "
        f"{1e3 * spent['device'].wall / positions:.3f} ms a position",
        how=f"{positions} positions, {vocabulary:,} tokens, all that a comparison keeps of them",
    )


def _side(
    folder: Path, model: str, task: str, options: argparse.Namespace
) -> tuple[TaskRequests, Ours]:
    tasks = folder / "tasks"
    found = tasks_of([task], tasks)
    cache = tasks / "cache"
    ours = Ours(folder / model, found, cache, dtype="bfloat16", device=options.device)
    return found.requests(task), ours
