"""Faults that nobody declared, and what `evalguard bisect` makes of them from the files alone.

    python -m benchmarks.bisect_undeclared --output benchmarks/results/bisect_undeclared.md

Small models of several architectures, whose documents are sampled from themselves
(benchmarks/sampled_models.py); a port of each with one fault (benchmarks/undeclared_faults.py),
every second one beside weights that are all rounded to bfloat16. No settings are declared.
"""

from __future__ import annotations

import argparse
import platform
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.output import deliver
from benchmarks.sampled_models import TASK, Sampled, sampled
from benchmarks.undeclared_faults import FAULTS, Fault, plant

SEED = 20261126
DOCUMENTS = 256
_SLACK = 1.5  # times what was announced


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One fault, and what was found.

    ``verdict``: named, innocent (somebody who is not guilty was named), missed, no drift (the gate
    passes).
    """

    fault: Fault
    rounded: bool
    verdict: str
    named: tuple[str, ...]
    status: str
    drift: float
    announced: float
    evaluations: float
    probes: int
    seconds: float

    @property
    def within(self) -> bool:
        """Whether it took what was announced."""
        return self.evaluations <= _SLACK * self.announced


def searched(fault: Fault, place: Sampled, folder: Path, *, rounded: bool) -> Row:
    """Plant a fault, and let evalguard compare and bisect the two folders."""
    import evalguard

    port = folder / f"port-{FAULTS.index(fault)}"
    guilty = plant(fault, place.model, port, rounded=rounded)
    start = time.perf_counter()
    result = evalguard.bisect_settings(
        place.model, port, tasks=[TASK], include_path=place.tasks, device="cpu", threads=1,
        cache_dir=folder / "cache", write=False, quiet=True,
        **({"trust_remote_code": True} if fault.code else {}),
    )  # fmt: skip
    seconds = time.perf_counter() - start
    report = result.report.bisect
    named = () if report is None else tuple(one.setting for one in report.culprits)
    targets = () if report is None else tuple(one.target for one in report.culprits)
    verdict = "no drift"
    if result.report.gate.state == "regressed":
        verdict = _judge(fault, guilty, named, targets, place)
    search = None if report is None else report.searches[0]
    return Row(
        fault=fault,
        rounded=rounded,
        verdict=verdict,
        named=named or (() if report else (result.report.bisect_reason[:120],)),
        status="" if report is None else report.status,
        drift=0.0 if search is None else search.drift_sigma or 0.0,
        announced=0.0 if report is None else report.announced_evaluations or 0.0,
        evaluations=0.0 if report is None else report.evaluations,
        probes=0 if report is None else report.probes,
        seconds=seconds,
    )


def _judge(
    fault: Fault,
    guilty: frozenset[str],
    named: tuple[str, ...],
    targets: tuple[str, ...],
    place: Sampled,
) -> str:
    if not named:
        return "missed"
    if fault.setting:
        return "named" if all(one.startswith(fault.setting) for one in named) else "innocent"
    if not all(target.startswith("weights:") for target in targets):
        return "innocent"
    blamed = {
        tensor
        for target in targets
        for tensor in _tensors(target.removeprefix("weights:"), place.model)
    }
    return "named" if blamed & guilty and blamed <= guilty else "innocent"


def _tensors(glob: str, model: Path) -> list[str]:
    """The stored weights in what a pattern names."""
    from safetensors import safe_open

    from evalguard.conversion.planning import compile_glob

    with safe_open(str(model / "model.safetensors"), framework="pt") as file:
        tensors = [*file.keys()]
    patterns = [compile_glob(one) for one in glob.split(",")]
    return [
        tensor
        for tensor in tensors
        if any(
            pattern.fullmatch(tensor.rsplit(".", depth)[0])
            for pattern in patterns
            for depth in range(tensor.count(".") + 1)
        )
    ]


def rows(documents: int, seed: int, only: range) -> Iterator[Row]:
    """Plant and search, one fault after the other."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        models: dict[str, Sampled] = {}
        for number in only:
            fault = FAULTS[number]
            if fault.model not in models:
                models[fault.model] = sampled(fault.model, folder, documents=documents, seed=seed)
            yield searched(fault, models[fault.model], folder, rounded=number % 2 == 1)


def main() -> None:
    """Plant, search, and print the table or write it to a file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, help="write the table there")
    parser.add_argument("--documents", type=int, default=DOCUMENTS)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--last", type=int, default=len(FAULTS))
    options = parser.parse_args()
    found = []
    for row in rows(options.documents, options.seed, range(options.first, options.last)):
        print(_line(len(found) + options.first, row), flush=True)
        found.append(row)
    deliver(report(found, options), options.output)


def report(found: list[Row], options: argparse.Namespace) -> Iterator[str]:
    """Yield the table."""
    import torch
    import transformers

    shown = [row for row in found if row.verdict != "no drift"]
    count = {name: sum(row.verdict == name for row in shown) for name in ("named", "innocent")}
    yield "# Bisection of faults that nobody declared\n"
    yield (
        f"`python -m benchmarks.bisect_undeclared --documents {options.documents} "
        f"--seed {options.seed} --output FILE`\n"
    )
    yield (
        f"{len(shown)} faults in {len({row.fault.model for row in shown})} architectures, on "
        f"{options.documents} documents of task {TASK}, perplexity gated at 1 sigma. The guilty "
        "were named, as the group that a person would put right and nobody else beside it, in "
        f"**{count['named']} of {len(shown)}**; an innocent one in **{count['innocent']}**; "
        f"evaluations were within {_SLACK} times what was announced in "
        f"**{sum(row.within for row in shown)} of {len(shown)}**.\n"
    )
    yield "Rounded: all weights are rounded to bfloat16 beside the fault. Said: announced FE.\n"
    yield "| | model | kind | fault | rounded | drift | named | status | said | FE | probes | s |"
    yield "|---" * 12 + "|"
    yield from (_line(number, row) for number, row in enumerate(found, options.first))
    yield (
        f"\nPython {platform.python_version()}, torch {torch.__version__}, transformers "
        f"{transformers.__version__}, seed {options.seed}; seconds on cores that other work shared."
    )


def _line(number: int, row: Row) -> str:
    who = ", ".join(row.named) or "nobody"
    cells = [
        number, row.fault.model, row.fault.kind, row.fault.name, "yes" if row.rounded else "",
        f"{row.drift:.1f}", who if row.verdict == "named" else f"**{row.verdict}**: {who}",
        row.status, f"{row.announced:.1f}", f"{row.evaluations:.1f}", row.probes,
        f"{row.seconds:.0f}",
    ]  # fmt: skip
    return "| " + " | ".join(map(str, cells)) + " |"


if __name__ == "__main__":
    main()
