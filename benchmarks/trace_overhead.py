"""What a trace costs beside plain forward passes, and how its file keeps memory down.

python -m benchmarks.trace_overhead --output benchmarks/results/trace_overhead.md
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.output import deliver
from benchmarks.trace_faults import port
from evalguard.core.trace_points import ModelInputs, token_inputs
from evalguard.tracing.measure.activation_spool import ActivationSpool
from evalguard.tracing.measure.forced_trace import trace_models
from evalguard.tracing.measure.module_hooks import run_pass
from evalguard.tracing.measure.passes import ComparedPass

_REPEATS = 3
_GENEROUS, _TIGHT = 2**32, 2**20  # bytes of recorded activations that may be held


def measure(hidden: int, layers: int, tokens: int) -> Iterator[str]:
    """Time one size of model: a plain pass, one with every point recorded, one forced, a trace."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=4096, hidden_size=hidden, intermediate_size=3 * hidden,
        num_hidden_layers=layers, num_attention_heads=hidden // 64,
    )  # fmt: skip
    base = LlamaForCausalLM(config).eval()
    inputs = token_inputs(np.random.default_rng(0).integers(0, 4096, tokens).tolist())
    size = sum(parameter.numel() for parameter in base.parameters())
    ids = torch.as_tensor(inputs["input_ids"])

    def run_plain() -> None:
        with torch.no_grad():
            base(ids, use_cache=False)

    plain = _time(run_plain)
    for memory in (_GENEROUS, _TIGHT):
        with ActivationSpool(memory) as spool:
            recorded = _time(lambda: _record(base, inputs, spool), repeats=1)
            forced = _time(
                lambda: run_pass(base, inputs, ComparedPass(reference=spool, forced=spool))
            )
        where = "memory" if memory == _GENEROUS else "a file"
        yield (
            f"| {size / 1e6:.0f} million | {tokens} | {where} | {1000 * plain:.0f} ms "
            f"| {recorded / plain:.1f} | {forced / plain:.1f} "
            f"| {_trace(base, 'float32', inputs, memory) / plain:.0f} "
            f"| {_trace(base, 'bfloat16', inputs, memory) / plain:.0f} |"
        )


def _record(base: torch.nn.Module, inputs: ModelInputs, spool: ActivationSpool) -> None:
    run_pass(base, inputs, ComparedPass(reference=None, spool=spool))


def _trace(base: torch.nn.Module, dtype: str, inputs: ModelInputs, memory: int) -> float:
    candidate = port(base, dtype)
    return _time(lambda: trace_models(base, candidate, [inputs], memory=memory), repeats=1)


def _time(action: Callable[[], object], repeats: int = _REPEATS) -> float:
    """Give the shortest time in seconds."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> None:
    """Measure two sizes and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    lines = [
        "# What a trace costs",
        "",
        "`python -m benchmarks.trace_overhead`: a Llama of random weights, one core, one document.",
        "Times are multiples of one plain forward pass of the base. A trace of a float32 candidate",
        "has 5 passes, two of them with two rows; of a bfloat16 one 10, four of them in bfloat16.",
        "",
        "| parameters | tokens | recorded in | plain pass | recording | forced | trace, float32 "
        "| trace, bfloat16 |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for hidden, layers, tokens in ((256, 4, 128), (512, 6, 256)):
        lines += measure(hidden, layers, tokens)
    deliver(lines, options.output)


if __name__ == "__main__":
    main()
