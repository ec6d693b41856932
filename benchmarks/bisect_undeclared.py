"""Faults that nobody declared, and what `evalguard bisect` makes of them from the files alone.

    python -m benchmarks.bisect_undeclared --output benchmarks/results/bisect_undeclared.md

Small trained models of several architectures (benchmarks/trained_models.py); a port of each with
one fault (benchmarks/undeclared_faults.py), every second one beside weights that are all rounded to
bfloat16; then healthy ports, of which nobody may be named. No settings are declared.

    python -m benchmarks.bisect_undeclared --unseen --output benchmarks/results/unseen_faults.md

does so for faults and ports of other kinds, in more architectures (benchmarks/unseen_faults.py),
and asks `evalguard trace` and `evalguard tensors` as well. ``--rows FILE`` goes on where it ended.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from benchmarks import sampled_models, unseen_faults
from benchmarks.output import deliver
from benchmarks.sampled_models import Sampled, sampled
from benchmarks.trained_models import STEPS, STORIES, TASK, Trained, kinds, read_training, trained
from benchmarks.undeclared_faults import FAULTS, Fault, plant

DOCUMENTS = 320
_RANDOM = "random "  # begins the name of a model of ``sampled_models``
_SEED = 20261130
_UNSEEN = (*unseen_faults.FAULTS, *unseen_faults.HEALTHY)
_TRACED = 2  # documents
_SLACK = 1.5  # times what was announced
_HUGE = 1e5  # sigma


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One fault, and what was found.

    ``verdict``: named, innocent (somebody who is not guilty was named), missed, no drift (the gate
    passes), refused (an error); of a healthy port nobody, or innocent. ``left``: how many of the
    guilty weights are in nothing that was named, because the gate passes without those that are.
    ``trace``, ``tensors``: their verdicts, with what they named; "" where they were not asked.
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
    trace: str = ""
    traced: tuple[str, ...] = ()
    tensors: str = ""
    read: tuple[str, ...] = ()

    @property
    def within(self) -> bool:
        """Whether it took what was announced."""
        return self.evaluations <= _SLACK * self.announced


def searched(
    fault: Fault, place: Trained | Sampled, folder: Path, *, rounded: bool, all_three: bool
) -> Row:
    """Plant a fault, and let evalguard compare and bisect the two folders."""
    import evalguard

    port = Path(tempfile.mkdtemp(dir=folder)) / "port"
    task = TASK if isinstance(place, Trained) else sampled_models.TASK
    guilty = plant(fault, place.model, port, rounded=rounded)
    start = time.perf_counter()
    try:
        result = evalguard.bisect_settings(
            place.model, port, tasks=[task], include_path=place.tasks, device="cpu", threads=1,
            cache_dir=folder / "cache", write=False, quiet=True, allow_differing=fault.declared,
            **({"trust_remote_code": True} if fault.code else {}),
        )  # fmt: skip
    except Exception as error:  # noqa: BLE001 - a row of the table says what ended it
        result, ended = None, f"{type(error).__name__}: {error}"[:160]
    seconds = time.perf_counter() - start
    report = None if result is None else result.report.bisect
    named = () if report is None else tuple(one.setting for one in report.culprits)
    targets = () if report is None else tuple(one.target for one in report.culprits)
    verdict, left = "no drift", 0
    if result is None:
        verdict, named = "refused", (ended,)
    elif fault.kind == "healthy":
        verdict = "innocent" if named else "nobody"
    elif result.report.gate.state == "regressed":
        verdict, left = _judge(fault, guilty, named, targets, (place.model, port))
    search = None if report is None else report.searches[0]
    row = Row(
        fault=fault,
        rounded=rounded,
        verdict=verdict,
        left=left,
        named=named or (() if report or not result else (result.report.bisect_reason[:120],)),
        status="" if report is None else report.status,
        drift=0.0 if search is None else search.drift_sigma or 0.0,
        announced=0.0 if report is None else report.announced_evaluations or 0.0,
        evaluations=0.0 if report is None else report.evaluations,
        probes=0 if report is None else report.probes,
        seconds=seconds,
    )
    if not all_three:
        return row
    trace, traced = _traced(fault, guilty, place, port, task, folder)
    tensors, read = _read(fault, guilty, place.model, port)
    return replace(row, trace=trace, traced=traced, tensors=tensors, read=read)


def _traced(
    fault: Fault, guilty: frozenset[str], place: Trained | Sampled, port: Path, task: str,
    folder: Path,
) -> tuple[str, tuple[str, ...]]:  # fmt: skip
    """The verdict on what ``trace`` says, and the modules that it names."""
    import evalguard

    try:
        result = evalguard.trace(
            place.model, port, tasks=[task], include_path=place.tasks, device="cpu", threads=1,
            cache_dir=folder / "cache", write=False, quiet=True, limit=_TRACED, swap=0,
            allow_differing=fault.declared,
            **({"trust_remote_code": True} if fault.code else {}),
        )  # fmt: skip
    except evalguard.errors.EvalguardError as error:
        return ("no module" if fault.kind == "tokenizer" else "refused"), (str(error)[:120],)
    first = result.first
    named = [one.module for one in result.suspects]
    told = tuple(
        f"{one.module} ({one.difference or one.operation})"
        for one in sorted(result.suspects, key=lambda one: one is not first)
    )
    if fault.kind == "healthy":
        rounded = all("looks rounded" in one.operation for one in result.suspects)
        if named and rounded and "8 bits" in fault.name:
            return "as rounded", told  # which it is, and nothing declares
        return ("innocent" if result.exit_code == 1 else "nobody"), told
    if fault.kind == "tokenizer":
        return ("innocent" if named else "no module"), told
    places = {_module(name) for name in guilty}
    if _is_tied(place.model) and places & _ENDS:
        places |= _ENDS
    if not named:
        return "missed", told
    if fault.places:
        right = [any(part in one for part in fault.places) for one in named]
        return ("rightly" if all(right) else "innocent"), told
    around = [any(one.startswith(f"{module}.") for one in places) for module in named]
    exact = [module in places for module in named]
    if not all(one or other for one, other in zip(around, exact, strict=True)):
        return "innocent", told
    return ("rightly" if all(exact) else "partly"), told


_ENDS = {"model.embed_tokens", "transformer.wte", "lm_head"}


def _is_tied(model: Path) -> bool:
    return bool(json.loads((model / "config.json").read_text()).get("tie_word_embeddings"))


def _module(tensor: str) -> str:
    """The module whose own weight a stored tensor is, experts as they are loaded: all in one."""
    name = tensor.replace("block_sparse_moe", "mlp")
    if ".experts." in name:
        return name.partition(".experts.")[0] + ".experts"
    return name.rpartition(".")[0]


def _read(
    fault: Fault, guilty: frozenset[str], base: Path, port: Path
) -> tuple[str, tuple[str, ...]]:
    """The verdict on what ``tensors`` says, and what it calls the differences.

    Of a healthy port: whether it says that something is damaged, which no layout explains.
    """
    from evalguard.errors import EvalguardError
    from evalguard.tensors.compare_tensors import TensorOptions, compare_tensors

    try:
        report = compare_tensors(str(base), str(port), TensorOptions())
    except EvalguardError as error:
        return "refused", (str(error)[:120],)
    beyond = {one.name: one for one in report.deltas if not one.passed or one.damage}
    missing = {*report.base_only, *report.candidate_only} - report.tied.keys()
    words: dict[str, int] = {}
    for one in beyond.values():
        kind = one.likeness.name if one.likeness else one.state
        words[kind] = words.get(kind, 0) + 1
    differing = [one.name for one in report.configuration if one.verdict == "differs"]
    told = (
        *(f"{kind} x{count}" for kind, count in words.items()),
        *([f"{len(missing)} without a partner"] if missing else []),
        *(f"config: {one}" for one in differing),
    )
    if fault.kind == "healthy":
        damaged = any("damaged" in kind or "not finite" in kind for kind in words)
        return ("damaged" if damaged else f"exit {report.exit_code}"), told
    flagged = set(beyond) | missing
    if not guilty:
        if flagged:
            return "innocent", told
        return ("rightly" if differing else "no weight"), told
    if not flagged:
        return "missed", told
    if not flagged <= guilty:
        return "innocent", told
    return ("rightly" if flagged == guilty else "partly"), told


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
    changed = {_parameter(one) for one in guilty}
    right = {_parameter(one) for one in blamed} <= changed and bool(blamed & guilty)
    return ("named" if right else "innocent"), len(guilty - blamed)


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
            pattern.fullmatch(name.rsplit(".", depth)[0])
            for pattern in patterns
            for name in (tensor, _parameter(tensor))
            for depth in range(name.count(".") + 1)
        )
    ]


def _parameter(tensor: str) -> str:
    """The parameter that a stored tensor is loaded into: experts are one."""
    if ".experts." not in tensor:
        return tensor
    part = "down_proj" if ".w2." in tensor or "down_proj" in tensor else "gate_up_proj"
    return f"{_module(tensor)}.{part}"


def rows(
    faults: Sequence[Fault], documents: int, only: Collection[int]
) -> Iterator[tuple[int, Row]]:
    """Plant and search, one fault after the other."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        models: dict[str, Trained | Sampled] = {}
        for number in only:
            fault = faults[number]
            if fault.model not in models:
                models[fault.model] = _made(fault.model, folder, documents)
            unseen = faults is _UNSEEN
            rounded = number % (4 if unseen else 2) == 1 and fault.kind != "healthy"
            if unseen and rounded:  # stored so: a port says in which dtype it is
                fault = replace(fault, dtype="bfloat16")
            row = searched(
                fault, models[fault.model], folder, rounded=rounded and not unseen, all_three=unseen
            )
            yield number, replace(row, fault=faults[number], rounded=rounded)


def _made(kind: str, folder: Path, documents: int) -> Trained | Sampled:
    if kind.startswith(_RANDOM):
        return sampled(kind.removeprefix(_RANDOM), folder, documents=documents, seed=_SEED)
    return trained(kind, folder, documents=documents)


def main() -> None:
    """Plant, search, and print the table or write it to a file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, help="write the table there")
    parser.add_argument("--documents", type=int, default=DOCUMENTS)
    parser.add_argument("--unseen", action="store_true", help="faults of other kinds, and traces")
    parser.add_argument("--models", nargs="+", help="of these models alone")
    parser.add_argument("--only", type=int, nargs="+", help="numbers of faults")
    parser.add_argument("--rows", type=Path, help="keep rows there; those that are, are not asked")
    options = parser.parse_args()
    faults = _UNSEEN if options.unseen else FAULTS
    had = {*kinds(), *(fault.model for fault in faults if fault.model.startswith(_RANDOM))}
    models = had.intersection(options.models or had)
    wanted = [n for n, fault in enumerate(faults) if fault.model in models]
    wanted = [n for n in wanted if options.only is None or n in options.only]
    found = _read_rows(options.rows, faults)
    for number, row in rows(faults, options.documents, [n for n in wanted if n not in found]):
        print(_line(number, row), flush=True)
        found[number] = row
        if options.rows is not None:
            with options.rows.open("a", encoding="utf-8") as file:
                file.write(json.dumps({**_plain(row), "fault": _key(row.fault)}) + "\n")
    shown = {number: found[number] for number in wanted}
    write = report_unseen if options.unseen else report
    deliver(write(shown, options.documents), options.output)


def _plain(row: Row) -> dict[str, Any]:
    return {one.name: getattr(row, one.name) for one in fields(row)}


def _key(fault: Fault) -> list[str]:
    return [fault.model, fault.kind, fault.name]


def _read_rows(file: Path | None, faults: Sequence[Fault]) -> dict[int, Row]:
    if file is None or not file.is_file():
        return {}
    numbers = {tuple(_key(fault)): number for number, fault in enumerate(faults)}
    found = {}
    for line in file.read_text().splitlines():
        told = json.loads(line)
        number = numbers[tuple(told["fault"])]
        lists = {name: tuple(told[name]) for name in ("named", "traced", "read") if name in told}
        found[number] = Row(**{**told, **lists, "fault": faults[number]})
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


def report_unseen(found: Mapping[int, Row], documents: int) -> Iterator[str]:
    """Yield the tables of faults and ports that all three commands were asked about."""
    import torch
    import transformers

    planted = {n: row for n, row in found.items() if row.fault.kind != "healthy"}
    healthy = {n: row for n, row in found.items() if row.fault.kind == "healthy"}
    drifting = [row for row in planted.values() if row.verdict != "no drift"]
    modules = [row for row in planted.values() if row.fault.kind != "tokenizer"]
    stored = [row for row in modules if not row.fault.code]
    right = [row for row in drifting if row.verdict == "named"]
    trained_kinds = {row.fault.model for row in found.values()} - {
        row.fault.model for row in found.values() if row.fault.model.startswith(_RANDOM)
    }
    yield "# Faults and healthy ports of kinds that no other table has\n"
    yield (
        f"`EVALGUARD_TRAINED_STEPS={STEPS} python -m benchmarks.bisect_undeclared --unseen "
        f"--documents {documents} --output FILE`\n"
    )
    yield (
        f"{len(planted)} faults and {len(healthy)} healthy ports in "
        f"{len({row.fault.model for row in found.values()})} models, {len(trained_kinds)} of them "
        f"trained, on {documents} documents, perplexity gated at 1 sigma.\n"
    )
    yield "| | of | rightly | partly | an innocent | nobody | inside the margin |"
    yield "|---|---|---|---|---|---|---|"
    partly = sum(row.left > 0 for row in right)
    yield (
        f"| bisect | {len(planted)} | {len(right) - partly} | {partly} | "
        f"{sum(row.verdict == 'innocent' for row in drifting)} | "
        f"{sum(row.verdict in ('missed', 'refused') for row in drifting)} | "
        f"{len(planted) - len(drifting)} |"
    )
    for name, verdicts in (
        ("trace", [row.trace for row in modules]), ("tensors", [row.tensors for row in stored]),
    ):  # fmt: skip
        count = {one: verdicts.count(one) for one in ("rightly", "partly", "innocent")}
        rest = len(verdicts) - sum(count.values())
        yield f"| {name} | {len(verdicts)} | {' | '.join(map(str, count.values()))} | {rest} | - |"
    yield (
        f"\nOne name for one mistake: {sum(len(row.named) == 1 for row in drifting)} of "
        f"{len(drifting)} that drift. Evaluations within {_SLACK} times what was announced: "
        f"{sum(row.within for row in drifting)} of {len(drifting)}. Healthy: `bisect` names "
        f"somebody in {sum(row.verdict == 'innocent' for row in healthy.values())} of "
        f"{len(healthy)}, `trace` in {sum(row.trace == 'innocent' for row in healthy.values())}; "
        "`tensors` calls something damaged in "
        f"{sum(row.tensors == 'damaged' for row in healthy.values())}.\n"
    )
    yield (
        "Rightly: nobody but the guilty is named, and all of them (bisect: those without which "
        "the gate passes). Partly: bisect leaves guilty weights in nothing that it names; trace "
        "names what holds the guilty module; tensors flags some of the tensors. `trace` is not "
        "judged of tokenizers, `tensors` not of these and of code. A tensor that has changed is "
        "flagged in a healthy port, too, where it is laid out otherwise: with a name.\n"
    )
    for title, shown in (("Faults", planted), ("Healthy ports", healthy)):
        yield f"## {title}\n"
        yield (
            "| | model | kind | planted | bfloat16 | drift | bisect | left | said | FE | trace | "
            "tensors | s |"
        )
        yield "|---" * 13 + "|"
        yield from (_unseen_line(number, row) for number, row in shown.items())
        yield ""
    yield (
        f"Python {platform.python_version()}, torch {torch.__version__}, transformers "
        f"{transformers.__version__}; seconds of compare and bisect on cores that other work "
        "shared."
    )


def _unseen_line(number: int, row: Row) -> str:
    drift = f"{row.drift:.1f}" if abs(row.drift) < _HUGE else f"{row.drift:.0e}"
    cells = [
        number, row.fault.model, row.fault.kind, row.fault.name, "yes" if row.rounded else "",
        drift, _said(row.verdict, row.named), row.left or "", f"{row.announced:.1f}",
        f"{row.evaluations:.1f}", _said(row.trace, row.traced), _said(row.tensors, row.read),
        f"{row.seconds:.0f}",
    ]  # fmt: skip
    return "| " + " | ".join(str(cell).replace("|", "/") for cell in cells) + " |"


def _said(verdict: str, named: tuple[str, ...]) -> str:
    """A verdict, bold where it is a failure, and what was named."""
    bad = verdict in ("innocent", "missed", "refused", "damaged")
    more = f" and {len(named) - _SHOWN} more" if len(named) > _SHOWN else ""
    return (f"**{verdict}**" if bad else verdict) + ": " + "; ".join(named[:_SHOWN]) + more


_SHOWN = 3


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
