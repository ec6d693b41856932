"""What Ray costs and gains: ``python -m benchmarks.cluster``.

Every row is one ``evalguard compare`` beside another one on the same machine, minutes apart: only
ratios of wall-clock time are told. What is lost midway is killed (SIGKILL) as soon as half of the
base's blocks are in the cache.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.output import deliver
from benchmarks.speed.process import OFFLINE, ONE_THREAD
from benchmarks.speed.workplace import Workplace

VOLATILE = {"created", "run_folder", "command", "resources", "checksum"}
FIVE_MINUTES = 300.0
_LAYERS = 4
_GUILTY = 1.6


@dataclass(frozen=True, slots=True)
class Ran:
    """One command: its seconds, and what it found."""

    wall: float
    document: Mapping[str, Any]

    @property
    def verdict(self) -> dict[str, Any]:
        """The document, but for what differs between any two runs."""
        return {
            key: value for key, value in self.document.items() if key not in {*VOLATILE, "bisect"}
        }

    @property
    def culprits(self) -> list[str]:
        """What a bisection found."""
        return [one["setting"] for one in self.document["bisect"]["culprits"]]


class ClusterBench:
    """A workplace with a model, a candidate of 16 settings, and a task of ``n`` documents."""

    def __init__(self, folder: Path, n: int) -> None:
        self.folder, place = folder, Workplace(folder)
        self.task = place.lastword("32k", n)
        self.n = n
        self._number = 0
        self._guard = folder / "guard.yaml"
        self._guard.write_text(json.dumps(_guard(place.model("32k"), place.tasks)))

    def cache(self, of: Path | None = None) -> Path:
        """A cache folder of its own, empty or a copy."""
        self._number += 1
        path = self.folder / f"cache{self._number}"
        if of is not None:
            shutil.copytree(of, path)
        return path

    def compare(
        self,
        execution: str,
        cache: Path,
        *,
        bisect: str = "never",
        midway: Callable[[int], None] | None = None,
        **environment: str,
    ) -> Ran:
        """Run a comparison; ``midway`` is called with its process id."""
        words = [
            "-m", "evalguard", "compare", "--config", self._guard, "--base", "base", "--cand",
            "port", "--tasks", self.task, "--threads", 1, "--cache-dir", cache, "--output-path",
            self.folder / "out", "--history", "none", "--track", "none",
            "--distributions", "off", "--bisect", bisect, "--json", "--quiet",
        ]  # fmt: skip
        place = ["--execution", execution] if execution else []
        began = time.monotonic()
        with (self.folder / "json").open("w+b") as said, (self.folder / "log").open("wb") as log:
            run = subprocess.Popen(
                [sys.executable, *map(str, [*words, *place])],
                stdout=said,
                stderr=log,
                env={**os.environ, **environment},
            )
            if midway is not None:
                self._wait_for_half(run, cache)
                midway(run.pid)
            code = run.wait()
            wall = time.monotonic() - began
            if code not in (0, 1):
                raise RuntimeError((self.folder / "log").read_text())
            said.seek(0)
            return Ran(wall, json.loads(said.read()))

    def _wait_for_half(self, run: subprocess.Popen[bytes], cache: Path) -> None:
        blocks = self.n / 128
        while len(list(cache.rglob("*.parquet"))) < blocks / 2:
            if run.poll() is not None:
                raise RuntimeError("it was done before half of it was")
            time.sleep(0.05)


def _guard(model: Path, tasks: Path) -> dict[str, Any]:
    """A guard file: one setting does harm, fifteen do none to speak of."""
    norms = [
        f"model.layers.{layer}.{name}"
        for layer in range(_LAYERS)
        for name in ("input_layernorm", "post_attention_layernorm")
    ]
    settings: dict[str, Any] = {
        f"norm{number}": {
            "reference": 1.0,
            "candidate": _GUILTY if number == 5 else 1.0 + 2.0**-10,
            "target": f"attr:{name}.weight",
        }
        for number, name in enumerate(norms)
    }
    for layer in range(_LAYERS):
        for part in ("q_proj", "o_proj"):
            settings[f"{part}{layer}"] = {
                "reference": "float32",
                "candidate": "bfloat16",
                "target": f"dtype:model.layers.{layer}.self_attn.{part}",
            }
    base = {"model_args": {"pretrained": str(model), "dtype": "float32"}}
    return {
        "models": {"base": base, "port": {"extends": "base", "settings": settings}},
        "include_path": [str(tasks)],
        "run": {"token_budget": 512, "worker": "always"},
    }


def kill_actor(pid: int) -> None:
    """Kill one actor that a command, or this process, has started."""
    for child in psutil.Process(pid).children(recursive=True):
        words = child.cmdline()
        if words and words[0].startswith("ray::ActorWorker"):
            child.kill()
            return
    raise RuntimeError("there is no actor")


def rows(bench: ClusterBench, chosen: list[str]) -> Iterator[str]:
    """Measure, and yield the rows of the table."""
    alone_cache = bench.cache()
    bench.compare("", bench.cache())  # what a machine reads first is read slowly
    alone = bench.compare("", alone_cache)
    if "local" in chosen:
        one = bench.compare("ray?actors=1", bench.cache())
        two = bench.compare("ray?actors=2", bench.cache())
        killed = bench.compare("ray?actors=2", bench.cache(), midway=kill_actor)
        cost = (one.wall - alone.wall) / FIVE_MINUTES
        yield _row("one local actor against one worker process", one, alone)
        yield (
            f"| what Ray costs once, of a run of five minutes | {100 * cost:.0f}% | "
            "starting Ray, and what one actor took longer |"
        )
        yield _row("two local actors against one worker process", two, alone)
        yield _row("two local actors, one killed midway, against both alive", killed, two)
    if "nodes" in chosen:
        yield from _on_nodes(bench, alone)
    if "bisection" in chosen:
        one, four = (
            bench.compare(f"ray?actors={jobs}", bench.cache(alone_cache), bisect="always")
            for jobs in (1, 4)
        )
        found = f"culprits {', '.join(four.culprits)}" + (
            "" if four.culprits == one.culprits else f" and {', '.join(one.culprits)}"
        )
        yield (
            f"| bisection of 16 settings, four local actors against one | "
            f"{four.wall / one.wall:.2f}x | {found} |"
        )


def _on_nodes(bench: ClusterBench, alone: Ran) -> Iterator[str]:
    from ray.cluster_utils import Cluster

    small: dict[str, Any] = {"object_store_memory": 80 * 2**20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **small})
    try:
        nodes = [cluster.add_node(num_cpus=1, **small) for _ in range(2)]
        cluster.wait_for_nodes()
        place = {"RAY_ADDRESS": cluster.address}
        both = bench.compare("ray://auto?actors=2", bench.cache(), **place)
        yield _row("two simulated nodes against one worker process", both, alone)
        left = bench.compare(
            "ray://auto?actors=2",
            bench.cache(),
            midway=lambda _pid: cluster.remove_node(nodes[1], allow_graceful=False),
            **place,
        )
        yield _row("two simulated nodes, one killed midway, against both alive", left, both)
    finally:
        cluster.shutdown()


def _row(what: str, ran: Ran, beside: Ran) -> str:
    same = "the same report" if ran.verdict == beside.verdict else "ANOTHER REPORT"
    return f"| {what} | {ran.wall / beside.wall:.2f}x | {same} |"


def main() -> None:
    """Measure, and print the table or write it to a file, anew after every row."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--documents", type=int, default=4096, help="of the task")
    parser.add_argument("--rows", nargs="*", default=["local", "nodes", "bisection"])
    parser.add_argument("--output", type=Path, help="write the table there")
    options = parser.parse_args()
    os.environ.update({**ONE_THREAD, **OFFLINE})
    done: list[str] = []
    with tempfile.TemporaryDirectory(prefix="evalguard-cluster-") as made:
        for row in rows(ClusterBench(Path(made), options.documents), options.rows):
            done.append(row)
            deliver(page(done, options.documents), options.output)


def page(done: list[str], documents: int) -> Iterator[str]:
    """Yield the table with its conditions."""
    import ray

    yield "# More than one machine\n"
    yield f"`python -m benchmarks.cluster --documents {documents} --output ...`\n"
    yield (
        f"Ratios of wall-clock time of whole commands, one run each, Ray {ray.__version__}, "
        f"{os.cpu_count()} cores, one thread a model, {documents:,} documents of a last-word task, "
        "a random Llama with 4 layers. Load of the machine when this was written (1, 5, 15 "
        f"minutes): {', '.join(f'{one:.1f}' for one in os.getloadavg())}; with as many actors as "
        "cores or more, and other work beside them, no gain can be expected here.\n"
    )
    yield "| | measured | |\n|---|---|---|"
    yield from done
    yield (
        "\nRead these as what they are: each figure is one run on a loaded machine with two cores, "
        "on which every further actor costs seconds of imports (a killed one that comes out "
        "faster than both alive is that noise). That the reports and culprits are the same is "
        "exact. Speed-ups on several machines or GPUs were not measured, for want of them."
    )


if __name__ == "__main__":
    main()
