"""How often each policy of docs/gate.md fails an unchanged candidate, on the demo's documents.

    python -m benchmarks.gate_policies --output benchmarks/results/gate_policies.md

Scores the demo's model and its port once. An unchanged candidate that scatters as the port does is
made of their scores by tossing a coin for each document: heads, and the two models exchange their
answers to it, of all metrics of the task. Every gate on the page then judges it.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.output import deliver
from evalguard.comparison.compare import resolve_request
from evalguard.comparison.listing import find_demo_guard
from evalguard.config.guard_search import load_guards
from evalguard.config.options import CompareOptions
from evalguard.core.gate import Gate
from evalguard.core.pairing import PairedScores, pair
from evalguard.engine.score_models import score_sides
from evalguard.stats.compare_scores import compare_scores

SEED = 20261123
PAGE = Path(__file__).parent.parent / "docs" / "gate.md"
_BLOCK = re.compile(r"```yaml\n# (?P<name>[^\n]*)\n(?P<text>gate:.*?)```", re.DOTALL)
_MODELS = """\
models:
  orig: {model: hf, model_args: {pretrained: ./original}}
  port: {extends: orig, model_args: {pretrained: ./port}}
"""


def policies(page: Path = PAGE) -> dict[str, str]:
    """Return the page's gates by the name in their first line."""
    text = page.read_text("utf-8")
    return {found["name"]: found["text"] for found in _BLOCK.finditer(text)}


def gate_of(text: str) -> Gate:
    """The gate of a guard file that holds ``text`` beside two models."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "evalguard.yaml"
        file.write_text(_MODELS + text, encoding="utf-8")
        found = load_guards(file, cwd=Path(folder), allow_code=False)
    (guard,) = found.guards
    base, candidate = list(guard.variants)[:2]
    options = guard.gate_of(base, candidate)
    return Gate(**{f.name: getattr(options, f.name) for f in dataclasses.fields(options)})


def demo_scores() -> list[PairedScores]:
    """Both models' scores of the demo, by metric."""
    options = CompareOptions(config=find_demo_guard(), quiet=True, distributions="off")
    sources, choices = resolve_request("orig", "fla-port", options)
    base, candidate = score_sides(sources, choices, options)
    others = {table.key: table for table in candidate.tables}
    return [pair(table, others[table.key]) for table in base.tables]


def exchanged(metrics: list[PairedScores], rng: np.random.Generator) -> list[PairedScores]:
    """Toss a coin for each document of each task; heads exchanges the two models' scores of it."""
    coins: dict[str, NDArray[np.bool_]] = {}
    found = []
    for paired in metrics:
        base, candidate = paired.base, paired.candidate
        heads = coins.setdefault(base.task, rng.random(base.n) < 0.5)
        sides = [
            dataclasses.replace(one, values=np.where(heads, other.values, one.values))
            for one, other in ((base, candidate), (candidate, base))
        ]
        found.append(dataclasses.replace(paired, base=sides[0], candidate=sides[1]))
    return found


def state(gate: Gate, metrics: list[PairedScores]) -> str:
    """What a gate says of these metrics."""
    return gate.judge(
        compare_scores(
            paired,
            margin=gate.margin_of(paired.base.task, paired.base.metric),
            confidence=gate.confidence,
        )
        for paired in metrics
        if gate.covers(*paired.base.key)
    ).state


def report(repetitions: int) -> Iterator[str]:
    """Yield one row per policy, in Markdown."""
    gates = {name: gate_of(text) for name, text in policies().items()}
    metrics = demo_scores()
    failed = dict.fromkeys(gates, 0)
    undecided = dict.fromkeys(gates, 0)
    rng = np.random.default_rng(SEED)
    for _ in range(repetitions):
        unchanged = exchanged(metrics, rng)
        for name, gate in gates.items():
            said = state(gate, unchanged)
            failed[name] += said == "regressed"
            undecided[name] += said == "undecided"
    yield "# The policies of other tools\n"
    yield "`python -m benchmarks.gate_policies --output benchmarks/results/gate_policies.md`\n"
    yield (
        f"{repetitions:,} unchanged candidates, seed {SEED}: the demo's documents, with the scores "
        "of its model and of its port exchanged in half of them, drawn anew for each. *Gated*: "
        "metrics. *The port*: what the gate says of it.\n"
    )
    yield "| policy | gated | fails unchanged | undecided | the port |\n|---|---|---|---|---|"
    for name, gate in gates.items():
        gated = sum(gate.covers(*paired.base.key) for paired in metrics)
        shares = (_percent(counts[name], repetitions) for counts in (failed, undecided))
        yield f"| {name} | {gated} | {' | '.join(shares)} | {state(gate, metrics)} |"


def _percent(count: int, of: int) -> str:
    share = count / of
    return f"{100 * share:.1f}% ± {100 * math.sqrt(share * (1.0 - share) / of):.1f}"


def main() -> None:
    """Judge, and print the table or write it to a file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, help="write the table there")
    parser.add_argument("--repetitions", type=int, default=1_000)
    options = parser.parse_args()
    deliver(report(options.repetitions), options.output)


if __name__ == "__main__":
    main()
