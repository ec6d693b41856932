"""Rows of the table about a GPU that check what comes out, and whole commands.

Tests marked ``gpu``, fla's kernels, torchao's int8, vLLM's exact KL.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.gpu_models import CHOICES, LAST_WORDS, make_inputs, working_environment
from benchmarks.speed.process import ROOT, Ran, run
from benchmarks.speed.row import Row, at_most

# Tests under it have environments of their own, which take minutes to make.
_WITH_OWN_ENVIRONMENT = ROOT / "tests" / "systems"
_OUTCOME = re.compile(r"^(\S+::.+?) (PASSED|FAILED|ERROR|SKIPPED)", re.MULTILINE)
# Units of rounding of float32, float16 and bfloat16.
_ROUNDING = {"float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}


def prepare_device(folder: Path, options: argparse.Namespace) -> Iterator[Row]:
    """Make models and tasks; say what the device is."""
    import torch

    make_inputs(folder, options)
    cuda = str(options.device).startswith("cuda")
    name = torch.cuda.get_device_name(options.device) if cuda else platform.processor()
    built = f"CUDA {torch.version.cuda}, " if cuda else ""
    memory = f"{torch.cuda.mem_get_info(options.device)[1] / 2**30:.0f} GiB, " if cuda else ""
    yield Row(
        benchmark="device",
        measured=name or platform.machine(),
        how=f"{memory}{built}torch {torch.__version__}, {os.cpu_count()} cores",
    )


def run_marked_tests(folder: Path, _: argparse.Namespace) -> Iterator[Row]:
    """Run the tests marked ``gpu`` that need no environment of their own; a row for each failure.

    Their names and outcomes are read while they run, so that one that hangs leaves the others'.
    """
    files = [
        str(file.relative_to(ROOT))
        for file in sorted((ROOT / "tests").rglob("test_*.py"))
        if _WITH_OWN_ENVIRONMENT not in file.parents and "pytest.mark.gpu" in file.read_text()
    ]
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "pytest", "-m", "gpu", "-v", "--tb=short", "-p",
         "no:cacheprovider", "-p", "no:randomly", "-W", "ignore::SyntaxWarning", *files],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT,
        env={**os.environ, **working_environment(folder)},
    )  # fmt: skip
    counts: dict[str, int] = {}
    assert process.stdout is not None
    for line in process.stdout:
        print(line, end="", flush=True)  # kept with the part, where it does not end well
        found = _OUTCOME.match(line)
        if found is None:
            continue
        test, outcome = found[1].rpartition("/")[2], found[2].lower()
        counts[outcome] = counts.get(outcome, 0) + 1
        if outcome in ("failed", "error"):
            yield Row(benchmark=f"test {test}", measured=outcome, target="passes", met=False)
    code = process.wait()
    ran = counts.keys() - {"skipped"}
    yield Row(
        benchmark=f"tests marked gpu, in {len(files)} files",
        measured=", ".join(f"{number} {word}" for word, number in counts.items()) or "none ran",
        target="none fails",
        met=code == 0 if ran else None,
        how="one process; those of tests/systems are parts of this table",
    )
    if code not in (0, 1):
        raise SystemExit(f"pytest ended with {code}")


def compare_vllm(folder: Path, options: argparse.Namespace) -> Iterator[Row]:
    """Exact KL inside vLLM, of a model and of one whose weights moved, beside Hugging Face's."""
    base = {"model": "hf", "model_args": {"pretrained": str(folder / "small"), "dtype": "float32"}}
    vllm: dict[str, Any] = {"dtype": "float32", "enforce_eager": True}
    if str(options.device).startswith("cuda"):
        vllm["gpu_memory_utilization"] = 0.3
    found = {}
    for name in ("small", "moved"):
        pretrained = str(folder / name)
        sides: dict[str, dict[str, Any]] = {
            "vllm": {
                "model": "vllm",
                "model_args": {**vllm, "pretrained": pretrained},
                "python": options.vllm_python or sys.executable,
            },
            "hf": {"model": "hf", "model_args": {"pretrained": pretrained, "dtype": "float32"}},
        }
        for engine, candidate in sides.items():
            if name == "small" and engine == "hf":
                continue
            guard = folder / f"{name}-{engine}.yaml"
            models = {"base": base, "candidate": candidate}
            guard.write_text(json.dumps({"models": models}), encoding="utf-8")
            words = ("--config", guard, "--limit", 64, "--distributions", "reference")
            ran, document = _compare("base", "candidate", folder, options.device, CHOICES, *words)
            found[name, engine] = ran.wall, _mean_kl(document)
        if name == "small":
            yield at_most(
                found[name, "vllm"][1],
                1e-4,
                " nats",
                benchmark="exact mean KL of vLLM against Hugging Face, the same weights",
                how=f"float32, {_documents_of(document)} documents; whole command "
                f"{found[name, 'vllm'][0]:.1f} s",
            )
    theirs, ours = found["moved", "vllm"], found["moved", "hf"]
    yield Row(
        benchmark="exact mean KL of moved weights by vLLM, beside Hugging Face's own",
        measured=f"{theirs[1]:.6g} and {ours[1]:.6g} nats",
        target="within 2%",
        met=abs(theirs[1] - ours[1]) <= 0.02 * ours[1],
        sides=f"vLLM {theirs[0]:.1f}, Hugging Face {ours[0]:.1f}",
        how=f"float32, {_documents_of(document)} documents, whole commands",
    )


def compare_quantised(folder: Path, options: argparse.Namespace) -> Iterator[Row]:
    """A checkpoint beside its int8 weights by torchao: KL on the device and on a CPU."""
    from evalguard.recipes.torchao import quantise

    quantise(folder / "int8", str(folder / "small"))
    dtype = ("--base-model-args", "dtype=float32", "--cand-model-args", "dtype=float32")
    found = [
        _compare(folder / "small", folder / "int8", folder, device, CHOICES, *dtype,
                 "--distributions", "reference", "--limit", 16)[1]
        for device in (options.device, "cpu")
    ]  # fmt: skip
    here, there = map(_mean_kl, found)
    yield Row(
        benchmark="torchao int8 weights, mean KL on the device beside that on a CPU",
        measured=f"{here:.6g} and {there:.6g} nats",
        target="within 1%",
        met=abs(here - there) <= 0.01 * there,
        how=f"a tiny model, {_documents_of(found[0])} documents, float32 arithmetic, int8 weights "
        "of every linear layer",
    )


def compare_whole(folder: Path, options: argparse.Namespace) -> Iterator[Row]:
    """Whole commands in wall-clock seconds: two of ``lm_eval``, and one ``evalguard compare``."""
    models = folder / "base", folder / "candidate"
    known = folder / "best-batch-size"
    batch_size = int(known.read_text()) if known.exists() else 64
    dtype = ("--base-model-args", "dtype=bfloat16", "--cand-model-args", "dtype=bfloat16")
    plain = (*dtype, "--track", "none")
    _compare(*models, folder, options.device, LAST_WORDS, *plain, "--limit", 2)
    theirs, ours = [], []
    for _ in range(max(options.repeats // 2, 1)):
        theirs.append(sum(_harness(one, folder, batch_size, options).wall for one in models))
        ours.append(_compare(*models, folder, options.device, LAST_WORDS, *plain)[0].wall)
    spent = statistics.median(theirs), statistics.median(ours)
    yield Row(
        benchmark="whole compare against two lm_eval runs, last words after about 200 tokens",
        measured=f"{spent[0] / spent[1]:.2f}x",
        sides=f"lm_eval twice {spent[0]:.1f}, evalguard {spent[1]:.1f}",
        how=f"{options.documents} documents, commands with imports and loading, lm_eval at batch "
        f"size {batch_size}; medians of {len(ours)}",
    )


def agree_with_fla(folder: Path, options: argparse.Namespace) -> Iterator[Row]:
    """Compare our stand-ins of fla's kernels with fla's own, compiled for the device."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(ROOT / "tests" / "systems" / "fla_agreement.py"),
         "cuda" if str(options.device).startswith("cuda") else "cpu"],
        stdout=subprocess.PIPE, text=True, env={**os.environ, **working_environment(folder)},
        check=True,
    )  # fmt: skip
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
    yield Row(
        benchmark="RWKV-7 kernels beside flash-linear-attention's own",
        measured=f"{units[worst]:.2g} units of rounding at most",
        target="< 8",
        met=units[worst] < 8.0 and chunks < 0.3 * cost,
        how=f"{len(units)} kernels and precisions, the worst: {worst}; chunks in float32 differ by "
        f"{chunks:.2g} (rms), fla's chunks from its recurrence by {cost:.2g}",
    )


def _harness(model: Path, folder: Path, batch_size: int, options: argparse.Namespace) -> Ran:
    tasks = folder / "tasks"
    words = [
        "-m", "lm_eval", "run", "--model", "hf", "--device", options.device, "--log_samples",
        "--model_args", f"pretrained={model},dtype=bfloat16", "--batch_size", batch_size,
        "--tasks", LAST_WORDS, "--include_path", tasks, "--output_path", folder / "lm_eval",
    ]  # fmt: skip
    return run([sys.executable, *words], working_environment(folder))


def _compare(
    base: Path | str, candidate: Path | str, folder: Path, device: str, task: str, *more: object
) -> tuple[Ran, dict[str, Any]]:
    words = [
        "-m", "evalguard", "compare", "--base", base, "--cand", candidate, "--tasks", task,
        "--include_path", folder / "tasks", "--output-path", folder / "reports", "--cache-dir",
        folder / "compare-cache", "--no-cache", "--device", device, "--quiet", "--json", *more,
    ]  # fmt: skip
    ran = run([sys.executable, *words], working_environment(folder), codes=(0, 1))
    return ran, json.loads(ran.out)


def _mean_kl(document: dict[str, Any]) -> float:
    (found,) = document["distributions"]
    if found["kl"]["value"] is None:
        raise SystemExit(f"no KL: {found['failure']}")
    return float(found["kl"]["value"])


def _documents_of(document: dict[str, Any]) -> int:
    (found,) = document["distributions"]
    return int(found["n"])
