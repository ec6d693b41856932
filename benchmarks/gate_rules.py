"""How often the gate's rules fail an unchanged candidate, and how often one that is worse.

    python -m benchmarks.gate_rules --output benchmarks/results/gate_rules.md

Simulated scores go through evalguard's own path (``pair``, ``compare_scores``, ``Gate.judge``). One
family of metrics is judged by both rules, the default one ("real") and the literal one ("margin").
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.special import ndtr

from benchmarks.differences import Array, Rng
from benchmarks.output import deliver
from benchmarks.tables import scored
from evalguard.core.comparison import Comparison
from evalguard.core.gate import Gate
from evalguard.stats.compare_scores import compare_scores

SEED = 20261123
COUNTS = (1, 7, 20, 50)
CHURNS = (0.0, 0.01, 0.05, 0.10, 0.15)
RATIOS = (1 / 2, 1 / 4, 1 / 10, 1 / 50)
DRIFTS = (0.0, 1.1, 2.0)
ACCURACY = 0.6
DOCUMENTS = 500  # of each task
_OF_ONE_TASK = 4  # metrics that share their documents
_SHARED = 0.5  # of the variance of what decides an answer is the document's own
_SHAPE = 1.4  # of the base's log-likelihoods, a gamma distribution
_RULES = {rule: Gate(fail_on=rule) for rule in ("real", "margin")}


@dataclass(frozen=True, slots=True)
class Share:
    """How many of so many runs failed under each rule, and in how many the two rules differ."""

    of: int
    real: float
    margin: float
    differ: float


def accuracies(rng: Rng, count: int, churn: float, n: int = DOCUMENTS) -> list[Comparison]:
    """Compare ``count`` accuracies of an unchanged candidate, a few on the documents of one task.

    As many documents are lost as won in the long run, and a share ``churn`` is one or the other.
    Which they are, and which the base has right, partly belongs to the document: the metrics of a
    task depend on each other.
    """
    found: list[Comparison] = []
    while len(found) < count:
        kept = min(_OF_ONE_TASK, count - len(found))
        flips, right = _uniforms(rng, kept, n), _uniforms(rng, kept, n)
        for metric in range(kept):
            lost = flips[metric] < churn / 2.0
            won = flips[metric] > 1.0 - churn / 2.0
            stays = right[metric] < (ACCURACY - churn / 2.0) / (1.0 - churn)
            base = np.where(lost, 1.0, np.where(won, 0.0, stays))
            candidate = np.where(lost, 0.0, np.where(won, 1.0, stays))
            task, name = f"task {len(found) // _OF_ONE_TASK}", f"acc {metric}"
            found.append(compare_scores(scored(base, candidate, "mean", task=task, metric=name)))
    return found


def _uniforms(rng: Rng, count: int, n: int) -> Array:
    """Uniform numbers, shape (count, n), that depend on each other along the first axis."""
    own, shared = rng.normal(size=(count, n)), rng.normal(size=n)
    return np.asarray(ndtr(math.sqrt(_SHARED) * shared + math.sqrt(1.0 - _SHARED) * own))


def perplexity(rng: Rng, ratio: float, drift: float, n: int = DOCUMENTS) -> Comparison:
    """Compare a perplexity.

    Args:
        ratio: of the paired standard error to the base's.
        drift: the true one, in true standard errors of the base.
    """
    base = -rng.gamma(_SHAPE, 1.0, n)
    scatter = math.sqrt(_SHAPE)
    candidate = base - drift * scatter / math.sqrt(n) - rng.normal(0.0, ratio * scatter, n)
    return compare_scores(scored(base, candidate, "perplexity", task="lambada", metric="ppl"))


def false_alarms(churn: float, repetitions: int, counts: tuple[int, ...]) -> dict[int, Share]:
    """The share of unchanged candidates that fail, by the number of gated metrics."""
    rng = np.random.default_rng([SEED, round(1000 * churn)])
    verdicts: dict[int, list[dict[str, bool]]] = {count: [] for count in counts}
    for _ in range(repetitions):
        family = accuracies(rng, max(counts), churn)
        for count in counts:
            verdicts[count].append(failed(family[:count]))
    return {count: share(found) for count, found in verdicts.items()}


def power(
    ratio: float, drift: float, beside: int, repetitions: int, *, churn: float = 0.05
) -> Share:
    """The share of runs that fail where a perplexity drifts and ``beside`` accuracies do not."""
    rng = np.random.default_rng([SEED, round(1000 * ratio), round(1000 * drift), beside])
    return share([
        failed([perplexity(rng, ratio, drift), *accuracies(rng, beside, churn)], watched="ppl")
        for _ in range(repetitions)
    ])  # fmt: skip


def failed(family: list[Comparison], watched: str = "") -> dict[str, bool]:
    """Whether each rule fails a family of metrics, or the one metric of it that is watched."""
    regressed = {rule: gate.judge(family).regressed for rule, gate in _RULES.items()}
    return {
        rule: any(not watched or metric == watched for _, _, metric in keys)
        for rule, keys in regressed.items()
    }


def share(verdicts: list[dict[str, bool]]) -> Share:
    """Count what both rules said."""
    of = len(verdicts)
    real, margin = (sum(v[rule] for v in verdicts) / of for rule in ("real", "margin"))
    return Share(of, real, margin, sum(v["real"] != v["margin"] for v in verdicts) / of)


def report(repetitions: int) -> Iterator[str]:
    """Yield the tables in Markdown."""
    yield "# The gate's rules: false alarms and power\n"
    yield "`python -m benchmarks.gate_rules --output benchmarks/results/gate_rules.md`\n"
    yield (
        f"Margin 1 sigma, {DOCUMENTS} documents a task, {_OF_ONE_TASK} metrics on the documents of "
        f"each, seed {SEED}. *real* is the default rule (above the margin, and real: its 95% "
        "interval above 0, Holm-adjusted over all gated metrics), *margin* the literal one. In "
        "percent, ± Monte Carlo error.\n"
    )
    yield "## An unchanged candidate fails\n"
    yield (
        f"Accuracies of {ACCURACY:.0%}; churn: documents of which one model is right and the other "
        f"wrong. {repetitions:,} runs a row; the rows of one churn are parts of the same runs.\n"
    )
    yield "| churn | gated metrics | real | margin |\n|---|---|---|---|"
    for churn in CHURNS:
        for count, found in false_alarms(churn, repetitions, COUNTS).items():
            row = f"{_percent(found.real, found.of)} | {_percent(found.margin, found.of)}"
            yield f"| {churn:.0%} | {count} | {row} |"
    yield "\n## A perplexity that drifts is named\n"
    yield (
        "Log-likelihoods with a gamma distribution (shape 1.4). *Ratio*: paired standard error / "
        "the base's, 1/50 to 1/10 for most conversions. *Beside it*: accuracies that are "
        "gated too and do not drift, 5% churn. *Differ*: runs in which the two rules disagree. "
        f"{repetitions:,} runs a row; with metrics beside it, {_fewer(repetitions):,}.\n"
    )
    yield "| true drift (sigma) | ratio | beside it | real | margin | differ |\n" + "|---" * 6 + "|"
    for drift in DRIFTS:
        for ratio in RATIOS:
            for beside in (0, 49):
                runs = _fewer(repetitions) if beside else repetitions
                found = power(ratio, drift, beside, runs)
                cells = (_percent(of, runs) for of in (found.real, found.margin, found.differ))
                yield f"| {drift:g} | 1/{1 / ratio:.0f} | {beside} | {' | '.join(cells)} |"


def _fewer(repetitions: int) -> int:
    return max(10, repetitions // 5)


def _percent(value: float, of: int) -> str:
    return f"{100 * value:.1f} ± {100 * math.sqrt(value * (1.0 - value) / of):.1f}"


def main() -> None:
    """Simulate, and print the tables or write them to a file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, help="write the tables there")
    parser.add_argument("--repetitions", type=int, default=1_000, help="of each row")
    options = parser.parse_args()
    deliver(report(options.repetitions), options.output)


if __name__ == "__main__":
    main()
