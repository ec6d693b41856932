"""How often an unchanged candidate is called really worse or better from 2 to 30 documents.

    python -m benchmarks.few_documents --output benchmarks/results/few_documents.md

Differences are symmetric about 0: an unchanged candidate wins a document by as much as it loses
one. Each sample is compared through evalguard's own path; beside it stands what Student's t alone
would have said. Promised are at most 5% "real" of either side together, at 95% confidence.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.differences import Array, Rng
from benchmarks.outcomes import CONFIDENCE
from benchmarks.output import deliver
from benchmarks.tables import scored
from benchmarks.tally import SEED, Share, seed_of
from evalguard.core.moments import moments
from evalguard.core.pairing import PairedScores
from evalguard.stats.clusters import Stratum, stratify_documents
from evalguard.stats.drift import contributions, estimate_drift
from evalguard.stats.estimate import Estimate, t_upper_tail
from evalguard.stats.group import limited_to_documents

SIZES = (2, 3, 4, 5, 6, 7, 8, 11, 15, 21, 30)
_LEVEL = (1.0 - CONFIDENCE) / 2.0


def _two(rng: Rng, n: int) -> Array:
    return rng.choice([-1.0, 1.0], n)


def _three(rng: Rng, n: int) -> Array:
    return rng.choice([-1.0, 0.0, 1.0], n)


def _nearly_two(rng: Rng, n: int) -> Array:
    return rng.choice([-1.0, 1.0], n) * rng.uniform(0.98, 1.02, n)


def _fifth(rng: Rng, n: int) -> Array:
    return rng.choice([-1.0, 1.0], n) * (rng.random(n) < 0.2)


def _quarters(rng: Rng, n: int) -> Array:
    return rng.integers(-4, 5, n) / 4.0


NULLS: dict[str, Callable[[Rng, int], Array]] = {
    "-1 or 1": _two,
    "nearly -1 or 1": _nearly_two,
    "-1, 0 or 1": _three,
    "-1 or 1 in a fifth of the documents": _fifth,
    "quarters from -1 to 1": _quarters,
    "uniform": lambda rng, n: rng.uniform(-1.0, 1.0, n),
    "normal": lambda rng, n: rng.normal(size=n),
    "t, 3 df": lambda rng, n: rng.standard_t(3, n),
    "Cauchy": lambda rng, n: rng.standard_cauchy(n),
}


Found = tuple[Estimate, float]


def _mean(rng: Rng, d: Array) -> Found:
    base = rng.integers(0, 9, d.shape[0]) / 8.0
    return _compared(scored(base, base - d, "mean")), _plain(d, None)


def _texts(rng: Rng, d: Array) -> Found:
    """Texts of unequal length: a document's difference grows with it."""
    words = np.ceil(rng.lognormal(3.0, 0.7, d.shape[0]))
    base = -2.0 * words
    paired = scored(base, base - d * words / 100.0, "weighted_perplexity", weights=words)
    return _compared(paired), _plain(d * words, words)


def _passages(rng: Rng, d: Array) -> Found:
    """As many passages of 1 to 5 documents, whose documents all move alike."""
    sizes = rng.integers(1, 6, d.shape[0])
    members = np.repeat(np.arange(d.shape[0]), sizes)
    base = rng.integers(0, 9, members.shape[0]) / 8.0
    paired = scored(base, base - d[members], "mean", clusters=members)
    return _compared(paired), _plain(d * sizes, sizes.astype(float))


def _group(rng: Rng, d: Array) -> Found:
    """Two tasks of about half of the documents each, as a group's aggregate takes them."""
    halves = np.array_split(d, 2)
    weights = [half.shape[0] / d.shape[0] for half in halves]
    strata, parts = [], []
    for name, weight, half in zip(("one", "other"), weights, halves, strict=True):
        base = rng.integers(0, 9, half.shape[0]) / 8.0
        paired = scored(base, base - half, "mean", task=name)
        drift = estimate_drift(paired, confidence=CONFIDENCE)
        found = contributions(paired, drift)
        assert found is not None
        (part,) = found.parts
        hashes = tuple(name + digest for digest in part.doc_hashes)
        parts.append(replace(part, values=part.values * weight, doc_hashes=hashes))
        stderr = weight * drift.estimate.stderr
        strata.append(Stratum(point=part.total * weight, stderr=stderr, df=half.shape[0] - 1.0))
    plain = stratify_documents(strata, confidence=CONFIDENCE).estimate
    alone = min(plain.p_value, 1.0 - plain.p_value)
    return limited_to_documents(plain, (), weights, parts), alone


VARIANTS: dict[str, Callable[[Rng, Array], Found]] = {
    "documents of a mean": _mean,
    "texts of unequal length (word perplexity)": _texts,
    "passages of unequal size": _passages,
    "a group of two tasks": _group,
}


def _compared(paired: PairedScores) -> Estimate:
    return estimate_drift(paired, confidence=CONFIDENCE).estimate


def _plain(values: Array, weights: Array | None) -> float:
    """P-value of Student's t, of the side that the drift is on."""
    found = moments(values, weights)
    if found.stderr <= 1e-12 * abs(found.point):
        return 1.0 if found.point == 0.0 else 0.0
    return t_upper_tail(abs(found.point) / found.stderr, values.shape[0] - 1)


def main() -> None:
    """Simulate, and print the tables or write them to a file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, help="write the tables there")
    parser.add_argument("--repetitions", type=int, default=1_000, help="of each cell")
    options = parser.parse_args()
    deliver(_report(options.repetitions), options.output)


def _report(repetitions: int) -> list[str]:
    lines = [
        "# False alarms from few documents\n",
        "`python -m benchmarks.few_documents --output benchmarks/results/few_documents.md`\n",
        f"{repetitions:,} repetitions a cell, seed {SEED}. Percent of unchanged candidates that "
        "are called really worse or better, at 95%: 5 is promised, with a Monte Carlo error of "
        f"{100 * Share(value=0.05, of=repetitions).error:.1f}. In brackets: Student's t alone. "
        "**Bold**: above 5 by more than 2.6 Monte Carlo errors.",
    ]
    for variant, compare in VARIANTS.items():
        counted = "documents" if variant != "passages of unequal size" else "passages"
        sizes = [n for n in SIZES if compare is not _group or n >= 4]
        lines += [
            f"\n## {variant.capitalize()}\n",
            f"| differences \\ {counted} | {' | '.join(map(str, sizes))} |",
            "|---" * (len(sizes) + 1) + "|",
        ]
        for null, draw in NULLS.items():
            cells = [_cell(variant, compare, null, draw, n, repetitions) for n in sizes]
            lines.append(f"| {null} | {' | '.join(cells)} |")
    return lines


def _cell(
    variant: str,
    compare: Callable[[Rng, Array], Found],
    null: str,
    draw: Callable[[Rng, int], Array],
    n: int,
    repetitions: int,
) -> str:
    rng = np.random.default_rng([SEED, seed_of(variant + null), n])
    real = alone = 0
    for _ in range(repetitions):
        d = draw(rng, n)
        if not d.any():
            continue
        found, plain = compare(rng, d)
        real += found.low > 0.0 or found.high < 0.0
        alone += plain <= _LEVEL
    ours = Share(value=real / repetitions, of=repetitions)
    limit = 2.0 * _LEVEL
    large = ours.value > limit + 2.6 * (limit * (1.0 - limit) / repetitions) ** 0.5
    text = f"{100 * ours.value:.1f}"
    return f"{f'**{text}**' if large else text} ({100 * alone / repetitions:.1f})"


if __name__ == "__main__":
    main()
