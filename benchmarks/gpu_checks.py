"""Rows of the table about a GPU that check what comes out, beside those about time.

Tests marked ``gpu``, fla's kernels and torchao's int8 run with the packages that this Python has;
what is not installed is a row that says so.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.speed.process import ROOT, Ran, run
from benchmarks.speed.row import Row

_MARKED = ("tests/core", "tests/models", "tests/run")
_PATIENCE = 150.0  # seconds for fla, which tries every shape of block of every kernel
# Units of rounding of float32, float16 and bfloat16.
_ROUNDING = {"float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}


def run_marked_tests() -> Row:
    """Run the tests marked ``gpu`` that need no environment of their own."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-m", "gpu", "-q", "-p", "no:cacheprovider",
         "-W", "ignore::SyntaxWarning", *_MARKED],
        capture_output=True, text=True, cwd=ROOT, env={**os.environ, **_paths()}, check=False,
    )  # fmt: skip
    print(done.stdout[-6000:], file=sys.stderr, flush=True)
    counts = re.findall(r"(\d+) (passed|failed|skipped|errors?)", done.stdout[-400:])
    return Row(
        benchmark=f"tests marked gpu in {', '.join(_MARKED)}",
        measured=", ".join(f"{number} {word}" for number, word in counts) or "none ran",
        target="none fails",
        met=done.returncode == 0 and "passed" in done.stdout[-400:],
        how="one process",
    )


def agree_with_fla(device: str) -> Row:
    """Compare our stand-ins of fla's kernels with fla's own, compiled for the device."""
    benchmark = "RWKV-7 kernels beside flash-linear-attention's own"
    if find_spec("fla") is None:
        return Row(benchmark=benchmark, measured="not run", how="fla is not installed")
    script = ROOT / "tests" / "systems" / "fla_agreement.py"
    env = {**os.environ, **_paths()}
    kind = "cuda" if device.startswith("cuda") else "cpu"
    try:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", str(script), kind],
            capture_output=True, text=True, env=env, check=False, timeout=_PATIENCE,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        how = f"its kernels were not compiled in {_PATIENCE:.0f} seconds"
        return Row(benchmark=benchmark, measured="not known", how=how)
    if done.returncode:
        said = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        return Row(benchmark=benchmark, measured="failed", met=False, how=said[0].replace("|", "/"))
    found: dict[str, dict[str, float]] = json.loads(done.stdout)
    kernels = {
        name: one for name, one in found.items() if not name.startswith("recurrence against")
    }
    units = {
        name: one["largest"] / one["scale"] / _ROUNDING[name.rpartition(" ")[2]]
        for name, one in kernels.items()
        if not (name.startswith("chunks") and name.endswith("float32"))
    }
    worst = max(units, key=lambda name: units[name])
    chunks = max(one["rms"] for name, one in kernels.items() if name.startswith("chunks float32"))
    cost = found["recurrence against chunks, both fla's float32"]["rms"]
    return Row(
        benchmark=benchmark,
        measured=f"{units[worst]:.2g} units of rounding at most",
        target="< 8",
        met=units[worst] < 8.0 and chunks < 0.3 * cost,
        how=f"{len(units)} kernels and precisions, the worst: {worst}; chunks in float32 differ by "
        f"{chunks:.2g} (rms), fla's chunks from its recurrence by {cost:.2g}",
    )


def compare_quantised(model: Path, tasks: Path, options: argparse.Namespace) -> Row:
    """A checkpoint beside its int8 weights by torchao: KL on the device and on a CPU."""
    benchmark = "torchao int8 weights, mean KL on the device beside that on a CPU"
    if find_spec("torchao") is None:
        return Row(benchmark=benchmark, measured="not run", how="torchao is not installed")
    from evalguard.recipes.torchao import quantise

    folder = model.parent / "int8"
    quantise(folder, str(model))
    found = {
        device: _compare(model, folder, tasks, device, "gpu_choice", "--distributions", "reference",
                         "--limit", 16, dtype="float32")[1]
        for device in (options.device, "cpu")
    }  # fmt: skip
    here, there = (_mean_kl(document) for document in found.values())
    return Row(
        benchmark=benchmark,
        measured=f"{here:.6g} and {there:.6g} nats",
        target="within 1%",
        met=abs(here - there) <= 0.01 * there,
        how="16 documents, float32 arithmetic, int8 weights of every linear layer",
    )


def compare_whole(
    models: tuple[Path, Path], tasks: Path, batch_size: int, options: argparse.Namespace
) -> Iterator[Row]:
    """Whole commands in wall-clock seconds: two of ``lm_eval``, and one ``evalguard compare``."""
    theirs, ours = [], []
    plain = ("--track", "none")
    _compare(*models, tasks, options.device, "gpu_lastword", *plain, "--limit", 2, dtype="bfloat16")
    for _ in range(max(options.repeats // 2, 1)):
        theirs.append(
            sum(_harness(model, tasks, batch_size, options.device).wall for model in models)
        )
        ours.append(
            _compare(*models, tasks, options.device, "gpu_lastword", *plain, dtype="bfloat16")[
                0
            ].wall
        )
    spent = statistics.median(theirs), statistics.median(ours)
    yield Row(
        benchmark="whole compare against two lm_eval runs, last words after about 200 tokens",
        measured=f"{spent[0] / spent[1]:.2f}x",
        sides=f"lm_eval twice {spent[0]:.1f}, evalguard {spent[1]:.1f}",
        how=f"{options.documents} documents, commands with imports and loading, lm_eval at batch "
        f"size {batch_size}; medians of {len(ours)}",
    )


def _harness(model: Path, tasks: Path, batch_size: int, device: str) -> Ran:
    words = [
        "-m", "lm_eval", "run", "--model", "hf", "--device", device, "--log_samples",
        "--model_args", f"pretrained={model},dtype=bfloat16", "--batch_size", batch_size,
        "--tasks", "gpu_lastword", "--include_path", tasks, "--output_path", tasks / "lm_eval",
    ]  # fmt: skip
    return run([sys.executable, *words], _environment(tasks))


def _compare(
    base: Path, candidate: Path, tasks: Path, device: str, task: str, *more: object, dtype: str
) -> tuple[Ran, dict[str, Any]]:
    words = [
        "-m", "evalguard", "compare", "--base", base, "--cand", candidate, "--tasks", task,
        "--base-model-args", f"dtype={dtype}", "--cand-model-args", f"dtype={dtype}",
        "--include_path", tasks, "--output-path", tasks / "reports", "--cache-dir",
        tasks / "compare-cache", "--no-cache", "--device", device, "--quiet", "--json", *more,
    ]  # fmt: skip
    ran = run([sys.executable, *words], _environment(tasks), codes=(0, 1))
    return ran, json.loads(ran.out)


def _mean_kl(document: dict[str, Any]) -> float:
    (found,) = document["distributions"]
    return float(found["kl"]["value"])


def _environment(tasks: Path) -> dict[str, str]:
    return {"HF_DATASETS_CACHE": str(tasks / "datasets"), **_paths()}


def _paths() -> dict[str, str]:
    """This checkout, then what the caller's own path holds."""
    known = os.environ.get("PYTHONPATH", "")
    return {"PYTHONPATH": os.pathsep.join([str(ROOT), *([known] if known else [])])}
