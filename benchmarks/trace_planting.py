"""How often `evalguard trace` names the guilty module first, and a healthy port not at all.

    python -m benchmarks.trace_planting --output benchmarks/results/trace_planting.md

Every planting draws an architecture, its weights and their size, a document, a fault and the
place where it is planted, and the candidate's dtype. A fault that changes no output by a single
bit against the same port without it is inert, and not counted.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.output import deliver
from benchmarks.trace_faults import (
    ARCHITECTURES,
    DECLARED,
    FAULTS,
    HEALTHY,
    TOLD,
    port,
    sample_inputs,
    sample_model,
)
from evalguard.core.trace_points import ModelInputs
from evalguard.core.trace_record import Trace
from evalguard.tracing.measure.forced_trace import trace_models
from evalguard.tracing.measure.module_hooks import run_pass

DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True)
class Planting:
    """One planted fault and what the trace said.

    ``place``: of the guilty module among the suspects, from 1; 0 where it is not among them.
    ``innocent``: how many others were named. ``told``: whether it says what the fault is made of;
    None for a fault of which that is not asked.
    """

    architecture: str
    fault: str
    dtype: str
    seed: int
    inert: bool
    place: int = 0
    innocent: int = 0
    named: str = ""
    guilty: str = ""
    ratio: float = 0.0
    told: bool | None = None


def plant(seed: int, architecture: str = "", fault: str = "", dtype: str = "") -> Planting | None:
    """Plant a fault that is drawn, or given; None where this architecture cannot have it."""
    rng = np.random.default_rng(seed)
    fault = fault or str(rng.choice(list(FAULTS)))
    dtype = dtype or str(rng.choice(DTYPES))
    architecture = architecture or str(rng.choice(list(ARCHITECTURES)))
    base = sample_model(architecture, rng)
    inputs = sample_inputs(architecture, rng)
    candidate = port(base, dtype)
    guilty = FAULTS[fault](candidate, rng)
    if guilty is None:
        return None
    if _outputs_equal(candidate, port(base, dtype), inputs):
        return Planting(architecture, fault, dtype, seed, inert=True)
    trace = trace_models(base, candidate, [inputs])
    named = [suspect.module for suspect in trace.suspects]
    places = [number for number, module in enumerate(named, 1) if module in guilty]
    return Planting(
        architecture,
        fault,
        dtype,
        seed,
        inert=False,
        place=min(places, default=0),
        innocent=sum(module not in guilty for module in named),
        named=_describe(trace),
        guilty=", ".join(sorted(guilty)),
        ratio=trace.suspects[0].local_ratio if trace.suspects else 0.0,
        told=TOLD[fault](trace, base, candidate) if fault in TOLD else None,
    )


def check_healthy(seed: int, architecture: str, kind: str, dtype: str) -> str:
    """Trace a healthy port; what was named, "" if nothing."""
    rng = np.random.default_rng(seed)
    base = sample_model(architecture, rng)
    inputs = sample_inputs(architecture, rng)
    candidate, said = HEALTHY[kind][0](base, dtype), DECLARED.get(kind)
    return _describe(trace_models(base, candidate, [inputs], said=said))


def _describe(trace: Trace) -> str:
    return "; ".join(
        f"{s.module} ({s.operation}, {s.check}, ratio {s.local_ratio:.3g})"
        for s in trace.suspects[:2]
    )


def _outputs_equal(one: Any, other: Any, inputs: ModelInputs) -> bool:
    found: list[dict[str, torch.Tensor]] = []
    for model in (one, other):
        values: dict[str, torch.Tensor] = {}
        run_pass(
            model,
            inputs,
            lambda event, value, to=values: to.__setitem__(event.name, value),  # type: ignore[misc]
            names={"(root)": "(root)"},
        )
        found.append(values)
    return all(torch.equal(value, found[1][name]) for name, value in found[0].items())


def run_plantings(count: int, seed: int) -> Iterator[Planting]:
    """Plant until so many were not inert, every fault as often as the others."""
    counted = 0
    faults = list(FAULTS)
    while counted < count:
        planting = plant(seed, fault=faults[counted % len(faults)])
        seed += 1
        if planting is not None:
            counted += not planting.inert
            yield planting


def run_healthy(repeats: int, seed: int) -> Iterator[tuple[str, str, str, int, str]]:
    for kind, (_, dtypes) in HEALTHY.items():
        for dtype in dtypes:
            for architecture in ARCHITECTURES:
                for repeat in range(repeats):
                    named = check_healthy(seed + repeat, architecture, kind, dtype)
                    yield kind, dtype, architecture, seed + repeat, named


def tabulate(plantings: Sequence[Planting], by: str) -> Iterator[str]:
    yield f"| {by} | planted | inert | guilty first | named at all | others named too | told |"
    yield "|---|---|---|---|---|---|---|"
    for value in dict.fromkeys(getattr(planting, by) for planting in plantings):
        group = [planting for planting in plantings if getattr(planting, by) == value]
        counted = [planting for planting in group if not planting.inert]
        first = sum(planting.place == 1 for planting in counted)
        named = sum(planting.place > 0 for planting in counted)
        others = sum(planting.innocent > 0 for planting in counted)
        inert = len(group) - len(counted)
        asked = [planting.told for planting in counted if planting.told is not None]
        told = f"{sum(asked)} of {len(asked)}" if asked else "-"
        yield f"| {value} | {len(counted)} | {inert} | {first} | {named} | {others} | {told} |"


def main() -> None:
    """Run the study and write its tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plantings", type=int, default=300)
    parser.add_argument("--healthy", type=int, default=4, help="models per architecture and kind")
    parser.add_argument("--seed", type=int, default=1000)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    start = time.monotonic()
    plantings = []
    for planting in run_plantings(options.plantings, options.seed):
        plantings.append(planting)
        if planting.place != 1 and not planting.inert:
            print(planting, flush=True)
    healthy = []
    for found in run_healthy(options.healthy, options.seed):
        healthy.append(found)
        if found[-1]:
            print(found, flush=True)
    deliver(_page(plantings, healthy, options.seed, time.monotonic() - start), options.output)


def _page(
    plantings: Sequence[Planting],
    healthy: Sequence[tuple[str, str, str, int, str]],
    seed: int,
    seconds: float,
) -> Iterator[str]:
    counted = [planting for planting in plantings if not planting.inert]
    first = sum(planting.place == 1 for planting in counted)
    false = sum(bool(found[-1]) for found in healthy)
    yield "# Faults planted in tiny models, and healthy ports"
    yield ""
    yield f"`python -m benchmarks.trace_planting`, seeds from {seed}; {seconds:.0f} s on one core."
    yield ""
    yield (
        f"Guilty module first: {first} of {len(counted)} ({100 * first / len(counted):.1f}%); "
        f"{len(plantings) - len(counted)} more plantings changed no bit of the output. "
        f"A location named for a healthy port: {false} of {len(healthy)} "
        f"({100 * false / max(len(healthy), 1):.1f}%)."
    )
    yield ""
    yield (
        "Told: that the trace says what the fault is made of, beside the module (a grid, a factor, "
        "rotary positions, a tie, the tensor that holds a nan)."
    )
    for by in ("fault", "architecture", "dtype"):
        yield ""
        yield from tabulate(plantings, by)
    yield ""
    yield "| healthy port | dtype | traced | a location named |"
    yield "|---|---|---|---|"
    for kind, dtype in dict.fromkeys(found[:2] for found in healthy):
        group = [found for found in healthy if found[:2] == (kind, dtype)]
        yield f"| {kind} | {dtype} | {len(group)} | {sum(bool(f[-1]) for f in group)} |"
    missed = [planting for planting in counted if planting.place != 1]
    if missed:
        yield ""
        yield "Not first:"
        yield ""
        for m in missed:
            yield (
                f"- {m.architecture}, {m.fault} in {m.guilty}, {m.dtype} (seed {m.seed}): "
                f"{m.named or 'nothing named'}"
            )


if __name__ == "__main__":
    main()
