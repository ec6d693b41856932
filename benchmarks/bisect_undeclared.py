"""Faults that nobody declared, and what `evalguard bisect` makes of them from the files alone.

    python -m benchmarks.bisect_undeclared --output benchmarks/results/bisect_undeclared.md

Small trained models of several architectures (benchmarks/trained_models.py); a port of each with
one fault (benchmarks/undeclared_faults.py), every second one beside weights that are all rounded to
bfloat16; then healthy ports, of which nobody may be named. No settings are declared.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from benchmarks.output import deliver
from benchmarks.trained_models import STORIES, TASK, Trained, kinds, read_training, trained
from benchmarks.undeclared_faults import FAULTS, Fault, plant

DOCUMENTS = 320
_SLACK = 1.5  # times what was announced
_HUGE = 1e5  # sigma


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One fault, and what was found.

    ``verdict``: named, innocent (somebody who is not guilty was named), missed, no drift (the gate
    passes); of a healthy port nobody, or innocent. ``left``: how many of the guilty weights are in
    nothing that was named, because the gate passes without those that are.
    """

    fault: Fault
    rounded: bool
    verdict: str
    left: int
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


def searched(fault: Fault, place: Trained, folder: Path, *, rounded: bool) -> Row:
    """Plant a fault, and let evalguard compare and bisect the two folders."""
    import evalguard

    port = folder / f"port-{FAULTS.index(fault)}"
    guilty = plant(fault, place.model, port, rounded=rounded)
    start = time.perf_counter()
    result = evalguard.bisect_settings(
        place.model, port, tasks=[TASK], include_path=place.tasks, device="cpu", threads=1,
        cache_dir=folder / "cache", write=False, quiet=True, allow_differing=fault.declared,
        **({"trust_remote_code": True} if fault.code else {}),
    )  # fmt: skip
    seconds = time.perf_counter() - start
    report = result.report.bisect
    named = () if report is None else tuple(one.setting for one in report.culprits)
    targets = () if report is None else tuple(one.target for one in report.culprits)
    verdict, left = "no drift", 0
    if fault.kind == "healthy":
        verdict = "innocent" if named else "nobody"
    elif result.report.gate.state == "regressed":
        verdict, left = _judge(fault, guilty, named, targets, (place.model, port))
    search = None if report is None else report.searches[0]
    return Row(
        fault=fault,
        rounded=rounded,
        verdict=verdict,
        left=left,
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
    models: tuple[Path, Path],
) -> tuple[str, int]:
    """The verdict, and how many guilty weights are in nothing that was named."""
    if not named:
        return "missed", 0
    if fault.setting:
        return ("named" if all(one.startswith(fault.setting) for one in named) else "innocent"), 0
    if not all(target.startswith("weights:") for target in targets):
        return "innocent", 0
    blamed = {
        tensor for target in targets for tensor in _tensors(target.removeprefix("weights:"), models)
    }
    return ("named" if blamed & guilty and blamed <= guilty else "innocent"), len(guilty - blamed)


def _tensors(glob: str, models: tuple[Path, Path]) -> list[str]:
    """The stored weights in what a pattern names."""
    from safetensors import safe_open

    from evalguard.conversion.name_patterns import compile_glob

    tensors: dict[str, None] = {}
    for model in models:
        with safe_open(str(model / "model.safetensors"), framework="pt") as file:
            tensors |= dict.fromkeys(file.keys())
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


def rows(documents: int, only: Collection[int]) -> Iterator[tuple[int, Row]]:
    """Plant and search, one fault after the other."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        models: dict[str, Trained] = {}
        for number in only:
            fault = FAULTS[number]
            if fault.model not in models:
                models[fault.model] = trained(fault.model, folder, documents=documents)
            rounded = number % 2 == 1 and fault.kind != "healthy"
            yield number, searched(fault, models[fault.model], folder, rounded=rounded)


def main() -> None:
    """Plant, search, and print the table or write it to a file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, help="write the table there")
    parser.add_argument("--documents", type=int, default=DOCUMENTS)
    parser.add_argument("--models", nargs="+", default=[*kinds()], choices=kinds())
    parser.add_argument("--only", type=int, nargs="+", help="numbers of faults")
    parser.add_argument("--rows", type=Path, help="keep rows there; those that are, are not asked")
    options = parser.parse_args()
    wanted = [n for n, fault in enumerate(FAULTS) if fault.model in options.models]
    wanted = [n for n in wanted if options.only is None or n in options.only]
    found = _read_rows(options.rows)
    for number, row in rows(options.documents, [n for n in wanted if n not in found]):
        print(_line(number, row), flush=True)
        found[number] = row
        if options.rows is not None:
            with options.rows.open("a", encoding="utf-8") as file:
                file.write(json.dumps({**_plain(row), "fault": _key(row.fault)}) + "\n")
    shown = {number: found[number] for number in wanted}
    deliver(report(shown, options.documents), options.output)


def _plain(row: Row) -> dict[str, Any]:
    return {one.name: getattr(row, one.name) for one in fields(row)}


def _key(fault: Fault) -> list[str]:
    return [fault.model, fault.kind, fault.name]


def _read_rows(file: Path | None) -> dict[int, Row]:
    if file is None or not file.is_file():
        return {}
    numbers = {tuple(_key(fault)): number for number, fault in enumerate(FAULTS)}
    found = {}
    for line in file.read_text().splitlines():
        told = json.loads(line)
        number = numbers[tuple(told["fault"])]
        row = {**told, "fault": FAULTS[number], "named": tuple(told["named"])}
        found[number] = Row(**row)
    return found


def report(found: Mapping[int, Row], documents: int) -> Iterator[str]:
    """Yield the table."""
    import torch
    import transformers

    planted = [row for row in found.values() if row.fault.kind != "healthy"]
    healthy = [row for row in found.values() if row.fault.kind == "healthy"]
    shown = [row for row in planted if row.verdict != "no drift"]
    count = {name: sum(row.verdict == name for row in shown) for name in ("named", "innocent")}
    yield "# Bisection of faults that nobody declared\n"
    yield (f"`python -m benchmarks.bisect_undeclared --documents {documents} --output FILE`\n")
    yield (
        f"{len(planted)} faults in {len({row.fault.model for row in planted})} trained models, on "
        f"{documents} documents of task {TASK}, perplexity gated at 1 sigma. "
        f"{len(planted) - len(shown)} made no drift over the margin: they are no work for a search "
        "and not counted. The guilty were named, as the group that a person would put right and "
        f"nobody else beside it, in **{count['named']} of {len(shown)}**; an innocent one in "
        f"**{count['innocent']}**; evaluations were within {_SLACK} times what was announced in "
        f"**{sum(row.within for row in shown)} of {len(shown)}**. Of {len(healthy)} healthy ports "
        f"somebody was named in **{sum(row.verdict == 'innocent' for row in healthy)}**.\n"
    )
    yield (
        "Perplexity of a token of the answers, and that by how often each comes: "
        + "; ".join(_learned(kind) for kind in dict.fromkeys(row.fault.model for row in planted))
        + ".\n"
    )
    yield (
        "Rounded: all weights are rounded to bfloat16 beside the fault. Said: announced FE. Left: "
        "guilty weights in nothing that was named, because the gate passes without those named.\n"
    )
    yield (
        "| | model | kind | fault | rounded | drift | named | left | status | said | FE | probes "
        "| s |"
    )
    yield "|---" * 13 + "|"
    yield from (_line(number, row) for number, row in found.items())
    cost = [row.evaluations for row in shown] or [0.0]
    yield (
        f"\nMean {sum(cost) / len(cost):.1f} full evaluations, at most {max(cost):.1f}. Python "
        f"{platform.python_version()}, torch {torch.__version__}, transformers "
        f"{transformers.__version__}; seconds on cores that other work shared."
    )


def _learned(kind: str) -> str:
    if kind == STORIES:
        return f"{kind} (trained by others, on stories)"
    told = read_training(kind)
    return f"{kind} {told['perplexity']:.2f} and {told['unigram']:.0f}"


def _line(number: int, row: Row) -> str:
    who = "nobody" if row.verdict == "nobody" else ", ".join(row.named) or "nobody"
    drift = f"{row.drift:.1f}" if row.drift < _HUGE else f"{row.drift:.0e}"
    good = row.verdict in ("named", "nobody")
    cells = [
        number, row.fault.model, row.fault.kind, row.fault.name, "yes" if row.rounded else "",
        drift, who if good else f"**{row.verdict}**: {who}", row.left or "",
        row.status, f"{row.announced:.1f}", f"{row.evaluations:.1f}", row.probes,
        f"{row.seconds:.0f}",
    ]  # fmt: skip
    return "| " + " | ".join(map(str, cells)) + " |"


if __name__ == "__main__":
    main()
