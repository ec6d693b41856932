"""What the gate says of candidates whose true drift is known: fails, is undecided, passes.

    python -m benchmarks.gate_table --before benchmarks/results/gate_table_before.jsonl \
        --output benchmarks/results/gate_table.md

Simulated scores go through evalguard's own path (``pair``, ``compare_documents``, the gate). Beside
it stands an oracle that knows the true paired standard error: a normal z test at the same level,
on the same draws. ``--record FILE`` keeps the counts; ``--before FILE`` shows such counts of
another version beside these (the draws are the same). ``--quick`` is for a test.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from scipy.special import ndtr, ndtri

from benchmarks.gate_follow_ups import tabulate_follow_ups
from benchmarks.gate_populations import Cell, list_cells
from benchmarks.output import deliver
from benchmarks.tally import seed_of
from evalguard.core.gate import Gate
from evalguard.core.multiple_tests import holm
from evalguard.core.pairing import PairedScores
from evalguard.core.verdict import decide
from evalguard.stats.compare_scores import compare_documents

SEED = 20261125
RUNS = 1_000
FEWEST = 100
CONFIDENCES = (0.95, 0.90)
LITERAL = "margin"
STATES = ("regressed", "undecided", "passed", "failed")
COLUMNS = ("0.95", "0.9", LITERAL, "oracle 0.95", "oracle 0.9")

# Of one family of one cell: by column, how many runs had which state.
Counts = Mapping[str, Counter[str]]
# (column, state, metrics of the family) of one draw.
Verdicts = list[tuple[str, str, int]]


def simulate(cell: Cell, runs: int) -> dict[int, Counts]:
    """Judge ``runs`` draws of a cell, by the number of metrics of the family."""
    name = f"{cell.table}|{cell.name}|{cell.n}|{cell.drift:g}"
    rng = np.random.default_rng([SEED, seed_of(name)])
    found: dict[int, dict[str, Counter[str]]] = {
        count: {column: Counter() for column in COLUMNS} for count in cell.counts
    }
    known: dict[object, Verdicts] = {}
    for _ in range(runs):
        drawn = [metric.draw(rng, f"metric {k}") for k, metric in enumerate(cell.metrics)]
        counts = _flips(cell, drawn)
        if counts is None or counts not in known:
            known[counts] = [*_judge(cell, drawn), *_ask_oracle(cell, drawn)]
        for column, state, count in known[counts]:
            found[count][column][state] += 1
    return {count: dict(columns) for count, columns in found.items()}


def _flips(cell: Cell, drawn: Sequence[PairedScores]) -> object:
    """All that a verdict on answers depends on; None where it is every score.

    Documents lost and won, and those that the base has right, which make the margin in sigma.
    """
    if any(metric.aggregation != "mean" for metric in cell.metrics):
        return None
    return tuple(
        (
            int(np.sum(p.d > 0.0)),
            int(np.sum(p.d < 0.0)),
            int(np.sum(p.base.values)) * (cell.margin.unit == "sigma"),
        )
        for p in drawn
    )


def _judge(cell: Cell, drawn: Sequence[PairedScores]) -> Iterator[tuple[str, str, int]]:
    """(column, state, metrics) of the gate itself."""
    for confidence in CONFIDENCES:
        compared = [
            compare_documents(paired, margin=cell.margin, confidence=confidence) for paired in drawn
        ]
        gate = Gate(margin=cell.margin, confidence=confidence)
        literal = Gate(margin=cell.margin, confidence=confidence, fail_on="margin")
        for count in cell.counts:
            family = compared[:count]
            judged = gate.judge(one.comparison for one in family)
            yield f"{confidence:g}", judged.state, count
            if confidence == CONFIDENCES[0]:
                yield LITERAL, literal.judge(one.comparison for one in family).state, count


def _ask_oracle(cell: Cell, drawn: Sequence[PairedScores]) -> Iterator[tuple[str, str, int]]:
    """(column, state, metrics) of a z test that knows each metric's true standard error."""
    points = [float(np.mean(paired.d)) for paired in drawn]
    p_values = [1.0 - float(ndtr(p / m.stderr)) for p, m in zip(points, cell.metrics, strict=True)]
    for confidence in CONFIDENCES:
        level = (1.0 - confidence) / 2.0
        z = float(ndtri(1.0 - level))
        for count in cell.counts:
            states = []
            adjusted = holm(p_values[:count])
            for point, metric, p in zip(points, cell.metrics, adjusted, strict=False):
                half = z * metric.stderr
                said = decide(point, point - half, point + half, metric.tolerated).outcome
                chance = said == "regressed" and p > level
                states.append("undecided" if chance else said)
            yield f"oracle {confidence:g}", _together(states), count


def _together(outcomes: Sequence[str]) -> str:
    return next((said for said in STATES[:2] if said in outcomes), "passed")


def record(cell: Cell, found: Mapping[int, Counts], runs: int) -> Iterator[dict[str, object]]:
    """One plain record for each family of a cell."""
    for count, columns in found.items():
        yield {
            "table": cell.table, "name": cell.name, "n": cell.n, "metrics": count,
            "drift": cell.drift, "runs": runs,
            "states": {
                column: [states[state] for state in STATES] for column, states in columns.items()
            },
        }  # fmt: skip


Row = tuple[str, str, int, int, float]


def row_of(one: Mapping[str, object]) -> Row:
    """Which row of the tables a record is."""
    return (str(one["table"]), str(one["name"]), int(str(one["n"])), int(str(one["metrics"])), float(str(one["drift"])))  # fmt: skip # noqa: E501


def tabulate(
    records: Sequence[Mapping[str, object]], before: Mapping[Row, Mapping[str, object]]
) -> Iterator[str]:
    """Yield the tables in Markdown."""
    gates = [f"gate {c:g}" for c in CONFIDENCES]
    was = [f"before {c:g}" for c in CONFIDENCES] if before else []
    columns = [*was, *gates, "`--fail-on margin`", *[f"oracle {c:g}" for c in CONFIDENCES]]
    for table in dict.fromkeys(str(one["table"]) for one in records):
        yield f"\n## {table[0].upper()}{table[1:]}\n"
        yield f"| documents | n | metrics | drift | {' | '.join(columns)} |"
        yield "|" + "---|" * (4 + len(columns))
        for one in records:
            if one["table"] != table:
                continue
            _, name, n, count, drift = row_of(one)
            old = before.get(row_of(one))
            cells = [_cell(old, f"{c:g}") for c in CONFIDENCES] if before else []
            cells += [_cell(one, column) for column in COLUMNS]
            fewer = f" ({one['runs']} runs)" if one["runs"] != records[0]["runs"] else ""
            yield f"| {name}{fewer} | {n:,} | {count} | {drift:g} | {' | '.join(cells)} |"


def _cell(one: Mapping[str, object] | None, column: str) -> str:
    if one is None:
        return ""
    states = one["states"]
    assert isinstance(states, dict)
    counts = states[column]
    total = sum(counts)
    shares = [f"{100 * count / total:.0f}" for count in counts[:3]]
    lost = f" ({100 * counts[3] / total:.0f} without a number)" if counts[3] else ""
    return " / ".join(shares) + lost


def head(runs: int) -> Iterator[str]:
    """What the page says first."""
    yield "# What the gate says of candidates whose true drift is known\n"
    fewer = "" if runs == RUNS else f"--runs {runs} "
    yield (
        f"`python -m benchmarks.gate_table {fewer}--before "
        "benchmarks/results/gate_table_before.jsonl --output benchmarks/results/gate_table.md`\n"
    )
    error = 100 * math.sqrt(0.25 / runs)
    yield (
        f"Percent of {runs:,} runs that **fail / are undecided / pass**, seed {SEED}; Monte Carlo "
        f"error at most {error:.1f} points (0.5 at 2.5%); of fewer runs it is larger by the root. "
        "*drift*: the true one, in margins. *before*: the same of the gate before one criterion "
        "held (1,000 runs a row). *gate*: the default rule at that `--confidence`. "
        "*oracle*: knows each metric's true paired standard error, a normal z test at the same "
        "level with Holm's correction on the same draws: what any method could reach. Whoever knew "
        "the true drift would pass 0 and 1 and fail the rest."
    )


def main() -> None:
    """Simulate, and print the tables or write them to a file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, help="write the tables there")
    parser.add_argument("--runs", type=int, default=RUNS, help="of each row")
    parser.add_argument("--quick", action="store_true", help="10 runs of a few rows")
    parser.add_argument("--tables", nargs="*", help="only these")
    parser.add_argument("--record", type=Path, help="keep the counts there, a JSON object a line")
    parser.add_argument("--before", type=Path, help="counts of another version, to stand beside")
    options = parser.parse_args()
    cells = [c for c in list_cells() if not options.tables or c.table in options.tables]
    if options.quick:
        cells = cells[::41]
    started = time.process_time()
    records: list[dict[str, object]] = []
    for cell in cells:
        runs = 10 if options.quick else max(FEWEST, options.runs // cell.cost)
        records += record(cell, simulate(cell, runs), runs)
        if options.record:  # so far
            lines = "".join(f"{json.dumps(one)}\n" for one in records)
            options.record.write_text(lines, encoding="utf-8")
    before = {}
    if options.before:
        kept = map(json.loads, options.before.read_text("utf-8").splitlines())
        before = {row_of(one): one for one in kept}
    asked = () if options.tables else tabulate_follow_ups(*([5, 9] if options.quick else []))
    page = [*head(options.runs), *tabulate(records, before), *asked]
    deliver(page, options.output)
    minutes = (time.process_time() - started) / 60.0
    print(f"{len(records)} rows in {minutes:.1f} minutes of processor time")


if __name__ == "__main__":
    main()
