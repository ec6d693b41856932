"""How fast evalguard is on a GPU beside lm-eval, what exact KL adds, and whether it is right there.

    python -m benchmarks.gpu_speed --output benchmarks/results/gpu.md

One call, less than nine minutes on an H100; ``--small --device cpu`` tries it without a GPU. The
table is written anew after every row. Wall-clock seconds, both sides by turns in one run, medians.
The model is a random Llama: nothing is downloaded. Candidates have its shape and other weights.
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu_checks import agree_with_fla, compare_quantised, compare_whole, run_marked_tests
from benchmarks.output import deliver
from benchmarks.speed import documents
from benchmarks.speed.process import OFFLINE, ONE_THREAD
from benchmarks.speed.row import Row, table
from benchmarks.speed.sides import Harness, Ours, tasks_of
from benchmarks.speed.timing import alternating
from benchmarks.speed.vocabulary import save_tokenizer
from evalguard.harness.requests import TaskRequests

_SHAPE = {
    "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22,
    "num_attention_heads": 32, "num_key_value_heads": 4, "vocab_size": 128_256,
}  # fmt: skip
_SMALL = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 32_000,
}  # fmt: skip
_COMMON = {
    "max_position_embeddings": 2048, "initializer_range": 0.05, "bos_token_id": 0,
    "eos_token_id": 1, "pad_token_id": 1, "tie_word_embeddings": False,
}  # fmt: skip
_BATCH_SIZES = (8, 16, 32, 64, 128)
_PACKAGES = ("lm_eval", "torch", "transformers", "numpy")


def main() -> None:
    """Measure on the device, and print the table or write it to a file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cuda", help="where the models run")
    parser.add_argument("--documents", type=int, default=512, help="last words that are scored")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--small", action="store_true", help="a tiny model: does it run?")
    parser.add_argument("--output", type=Path, help="write the table there")
    options = parser.parse_args()
    os.environ.update({**ONE_THREAD, **OFFLINE})
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="evalguard-gpu-") as made:
        for row in _measure(Path(made), options):
            rows.append(row)
            if options.output:
                deliver(_page(rows, options), options.output)
    if not options.output:
        deliver(_page(rows, options), None)


def _measure(folder: Path, options: argparse.Namespace) -> Iterator[Row]:
    shape = {**_COMMON, **(_SMALL if options.small else _SHAPE)}
    base, candidate = (
        _save_model(folder / name, shape, seed, options.device)
        for seed, name in enumerate(("base", "candidate"))
    )
    tasks = folder / "tasks"
    few = max(options.documents // 8, 4)
    chosen = list(documents.choices(few))
    last = [
        {"context": one["context"], "target": one["choices"][0].strip()}
        for one in documents.choices(options.documents)
    ]
    documents.write_choice(tasks, "gpu_choice", chosen)
    documents.write_lastword(tasks, "gpu_lastword", last)
    best: dict[str, int] = {}
    for task, what in (
        ("gpu_lastword", "last words after about 200 tokens"),
        ("gpu_choice", "four continuations of 200 shared tokens"),
    ):
        row, best[task] = _beside_harness(base, tasks, task, what, options)
        yield row
    yield _exact_kl((base, candidate), tasks, options)
    yield _divergences(shape["vocab_size"], options)
    yield run_marked_tests()
    small = _save_model(folder / "small", {**_COMMON, **_SMALL}, 2, options.device)
    yield compare_quantised(small, tasks, options)
    yield from compare_whole((base, candidate), tasks, best["gpu_lastword"], options)
    yield agree_with_fla(options.device)


def _save_model(folder: Path, shape: dict[str, Any], seed: int, device: str) -> Path:
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    save_tokenizer(folder, shape["vocab_size"])
    torch.manual_seed(seed)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(LlamaConfig(**shape), dtype=torch.bfloat16)
    model.save_pretrained(folder)
    return folder


def _beside_harness(
    model: Path, tasks: Path, task: str, what: str, options: argparse.Namespace
) -> tuple[Row, int]:
    requests, ours = _side(model, tasks, task, options)
    harness = Harness(model, dtype="bfloat16", device=options.device)
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
        benchmark=f"scoring alone, {what}",
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


def _exact_kl(models: Sequence[Path], tasks: Path, options: argparse.Namespace) -> Row:
    from evalguard.models.hf.lockstep import score_in_lockstep

    requests, base = _side(models[0], tasks, "gpu_lastword", options)
    _, candidate = _side(models[1], tasks, "gpu_lastword", options)
    asked = requests.requests
    scorers: list[Any] = [base.scorer, candidate.scorer]
    spent = alternating(
        {
            "apart": lambda: [scorer.score(asked) for scorer in scorers],
            "lock-step": lambda: score_in_lockstep(*scorers, asked, asked, seed=0),
        },
        options.repeats,
    )
    _, _, same = score_in_lockstep(scorers[0], scorers[0], asked, asked, seed=0)
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
        f"in the mean, of the base against itself {np.abs(zero).max():.2g} at most",
    )


def _divergences(vocabulary: int, options: argparse.Namespace) -> Row:
    import torch

    from evalguard.core.divergence import divergence
    from evalguard.models.hf.device_divergence import compare_rows_on_device

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
    model: Path, tasks: Path, task: str, options: argparse.Namespace
) -> tuple[TaskRequests, Ours]:
    found = tasks_of([task], tasks)
    ours = Ours(model, found, tasks / "cache", dtype="bfloat16", device=options.device)
    return found.requests(task), ours


def _page(rows: list[Row], options: argparse.Namespace) -> Iterator[str]:
    import torch

    cuda = str(options.device).startswith("cuda")
    device = torch.cuda.get_device_name(0) if cuda else platform.processor() or platform.machine()
    size = "a tiny model" if options.small else "1.5 billion parameters in bfloat16"
    yield "# Speed on a GPU\n"
    asked = (
        f"--documents {options.documents} --repeats {options.repeats}{' --small' * options.small}"
    )
    asked += f" --output {options.output}" if options.output else ""
    yield f"`python -m benchmarks.gpu_speed {asked}`: {device}; {size}.\n"
    yield (
        f"Ratios of wall-clock seconds, both sides by turns in one run, medians of "
        f"{options.repeats}.\n"
    )
    yield from table(rows, "wall-clock seconds")
    packages = ", ".join(f"{name} {version(name)}" for name in _PACKAGES)
    yield f"\nPython {platform.python_version()}, {packages}."


if __name__ == "__main__":
    main()
