"""All that evalguard does on a GPU, in one call of nine minutes at most: speed, KL, correctness.

    python -m benchmarks.gpu_speed --output build/gpu.md

Parts in the order of what they are worth, each in a process of its own with a limit. The table and
FILE.json beside it are written anew after every row: whatever ends the call leaves what was
measured. What fails, hangs or lacks a package is said, and the next part goes on. The models are
random: nothing is downloaded. Wall-clock seconds, both sides by turns in one run, medians.

The Python that runs it needs a torch that knows the GPU, and this checkout with its test tools:

    make gpu TORCH=torch        a new environment, from a package index, then this call
    pip install --target DIR lm-eval hypothesis ...; PYTHONPATH=.:DIR python -m benchmarks.gpu_speed
                                beside a torch that is there; --list says what is still missing

torchao and flash-linear-attention are parts of their own where this Python has them. vLLM brings
its own torch: ``--vllm-python`` names an environment's interpreter. To try it without a GPU:
``--small --device cpu --documents 16 --repeats 1``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from benchmarks.output import deliver
from benchmarks.speed.process import OFFLINE, ONE_THREAD
from benchmarks.speed.row import Row, table
from benchmarks.timed_parts import Measured, Part, note_row, run_parts

_TOOLS = ("lm_eval", "transformers", "torch", "datasets", "pytest", "hypothesis", "psutil")
_PACKAGES = ("lm_eval", "torch", "transformers", "numpy", "torchao", "flash-linear-attention")
# Seconds that are left to write the last table.
_SPARE = 5.0
PARTS = (
    Part(name="device", about="models are made on the device", limit=100, basis=True),
    Part(name="tests", about="everything marked gpu", limit=130, needs=("hypothesis",)),
    Part(name="scoring", about="beside lm-eval at its best batch size", limit=130),
    Part(name="distributions", about="what exact KL costs", limit=110),
    Part(name="vllm", about="exact KL inside vLLM", limit=150, least=40, needs=("vllm",)),
    Part(name="whole", about="whole commands beside two of lm_eval", limit=150, least=40),
    Part(name="int8", about="torchao's int8 weights", limit=90, least=30, needs=("torchao",)),
    Part(name="fla", about="flash-linear-attention's kernels", limit=150, needs=("fla",)),
)


def main() -> int:
    """Measure on the device; write the table, and all of it as JSON beside it.

    Returns:
        1 where a part failed or ran out of time, or a target was missed.
    """
    start = time.monotonic()
    options = _read_options()
    os.environ.update({**ONE_THREAD, **OFFLINE})
    if options.part:
        for row in _measurements()[options.part](options.folder, options):
            note_row(row, options.rows)
        return 0
    if options.list:
        print("\n".join(_preparation(options)))
        return 0
    with tempfile.TemporaryDirectory(prefix="evalguard-gpu-") as made:
        found = run_parts(
            _chosen(options),
            lambda name, rows: _command(name, rows, Path(made)),
            until=start + 60.0 * options.minutes - _SPARE,
            folder=Path(made),
            note=lambda parts: _write(parts, options, time.monotonic() - start),
        )
    if not options.output:
        deliver(_page(found, options, time.monotonic() - start), None)
    missed = any(row.met is False for one in found for row in one.rows)
    return int(missed or any(one.state in ("failed", "out of time") for one in found))


def _read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cuda", help="where the models run")
    parser.add_argument("--minutes", type=float, default=9.0, help="what the whole call may take")
    parser.add_argument("--documents", type=int, default=2048, help="last words that are scored")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--small", action="store_true", help="a tiny model: does it run?")
    parser.add_argument("--parts", default="", help="some of them, as A,B")
    parser.add_argument("--vllm-python", default="", help="an interpreter that has vLLM")
    parser.add_argument("--output", type=Path, help="write the table there, and FILE.json")
    parser.add_argument("--list", action="store_true", help="say what would run, and what lacks")
    parser.add_argument("--part", default="", help=argparse.SUPPRESS)
    parser.add_argument("--rows", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    unknown = set(filter(None, options.parts.split(","))) - {part.name for part in PARTS}
    if unknown:
        parser.error(f"no part '{min(unknown)}'; there are {', '.join(p.name for p in PARTS)}")
    return options


def _chosen(options: argparse.Namespace) -> list[Part]:
    asked = set(filter(None, options.parts.split(",")))
    return [
        Part(name=part.name, about=part.about, limit=part.limit, least=part.least)
        if part.name == "vllm" and options.vllm_python
        else part
        for part in PARTS
        if not asked or part.name in asked or part.basis
    ]


def _command(name: str, rows: Path, folder: Path) -> Sequence[str]:
    own = ("--part", name, "--rows", str(rows), "--folder", str(folder))
    return [sys.executable, "-m", "benchmarks.gpu_speed", *sys.argv[1:], *own]


def _measurements() -> dict[str, Callable[[Path, argparse.Namespace], Iterable[Row]]]:
    """What measures each part; imported in the process of one."""
    from benchmarks import gpu_checks, gpu_timing

    return {
        "device": gpu_checks.prepare_device,
        "tests": gpu_checks.run_marked_tests,
        "scoring": gpu_timing.time_scoring,
        "distributions": gpu_timing.time_distributions,
        "vllm": gpu_checks.compare_vllm,
        "whole": gpu_checks.compare_whole,
        "int8": gpu_checks.compare_quantised,
        "fla": gpu_checks.agree_with_fla,
    }


def _preparation(options: argparse.Namespace) -> Iterator[str]:
    """What would run, and what this Python lacks; nothing is computed."""
    missing = [name for name in _TOOLS if find_spec(name) is None]
    yield f"{sys.executable}: {'lacks ' + ', '.join(missing) if missing else 'has what it needs'}"
    for part in _chosen(options):
        lacking = [name for name in part.needs if find_spec(name) is None]
        told = f"lacks {', '.join(lacking)}" if lacking else f"at most {part.limit:.0f} s"
        yield f"{part.name:15}{told:20}{part.about}"


def _write(parts: Sequence[Measured], options: argparse.Namespace, seconds: float) -> None:
    if not options.output:
        return
    deliver(_page(parts, options, seconds), options.output)
    told = {
        "schema": "evalguard.gpu_speed/1",
        "command": _words(),
        "device": options.device,
        "python": platform.python_version(),
        "packages": dict(_versions()),
        "minutes": options.minutes,
        "seconds": round(seconds, 1),
        "parts": [one.as_values() for one in parts],
    }
    deliver([json.dumps(told, indent=1)], options.output.with_suffix(".json"))


def _page(parts: Sequence[Measured], options: argparse.Namespace, seconds: float) -> Iterator[str]:
    size = "a tiny model" if options.small else "1.5 billion parameters in bfloat16"
    yield "# Speed on a GPU\n"
    yield f"`{_words()}`: {size}; {seconds:.0f} of {60 * options.minutes:.0f} seconds.\n"
    yield (
        f"Ratios of wall-clock seconds, both sides by turns in one run, medians of "
        f"{options.repeats}.\n"
    )
    yield from table([row for one in parts for row in one.rows], "wall-clock seconds")
    yield "\n| part | | seconds | of |\n|---|---|---|---|"
    for one in parts:
        said = one.said.strip().splitlines()[-1:] if one.state != "done" else []
        why = f": {said[0][:200].replace('|', '/')}" if said else ""
        what = f"{one.part.name}, {one.part.about}"
        yield f"| {what} | {one.state}{why} | {one.seconds:.0f} | {one.limit:.0f} |"
    packages = ", ".join(f"{name} {found}" for name, found in _versions())
    yield f"\nPython {platform.python_version()}, {packages}."


def _words() -> str:
    return f"python -m benchmarks.gpu_speed {shlex.join(sys.argv[1:])}".strip()


def _versions() -> Iterator[tuple[str, str]]:
    for name in _PACKAGES:
        try:
            yield name, version(name)
        except PackageNotFoundError:
            continue


if __name__ == "__main__":
    raise SystemExit(main())
