"""Documents that are not independent: how often an unchanged candidate is called really worse if
they count as independent, how often that is said, and what is left once they are taken together.

    python -m benchmarks.dependence --output benchmarks/results/dependence.md
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from scipy.signal import lfilter

from benchmarks.differences import Array, Rng
from benchmarks.output import deliver, versions
from evalguard.comparison.checks.dependent_documents import account_for_dependence
from evalguard.core.document_columns import DocumentFields, read_fields
from evalguard.core.pairing import PairedScores, pair
from evalguard.core.scores import ScoreTable
from evalguard.engine.cluster_fields import with_clusters
from evalguard.stats.compare_scores import compare_documents
from evalguard.stats.judgement import MetricComparison

SIZES = (200, 1_000)
SEED = 20_261_125
REAL = 0.025


@dataclass(frozen=True, slots=True)
class Draw:
    """Differences without a drift in the mean, and what a field of the documents says, if any."""

    differences: Array
    labels: tuple[str, ...] = ()


def _normal(rng: Rng, n: int) -> Array:
    return rng.normal(size=n)


def _heavy(rng: Rng, n: int) -> Array:
    return rng.standard_t(3, n)


def _flips(rng: Rng, n: int) -> Array:
    return np.where(rng.random(n) < 0.2, rng.choice([-1.0, 1.0], n), 0.0)


def _autoregressive(correlation: float) -> Callable[[Rng, int], Draw]:
    return lambda rng, n: Draw(lfilter([1.0], [1.0, -correlation], rng.normal(size=n + 100))[100:])


def _sharing(length: int, shared: float) -> Callable[[Rng, int], Draw]:
    """Neighbours that share a part of the variance of their differences."""

    def made(rng: Rng, n: int) -> Draw:
        effects = np.repeat(rng.normal(size=-(-n // length)), length)[:n]
        return Draw(np.sqrt(shared) * effects + np.sqrt(1.0 - shared) * rng.normal(size=n))

    return made


def _blocks(length: int, draw: Callable[[Rng, int], Array] = _normal) -> Callable[[Rng, int], Draw]:
    return lambda rng, n: Draw(np.repeat(draw(rng, -(-n // length)), length)[:n])


def _passages(length: int, shared: float) -> Callable[[Rng, int], Draw]:
    def made(rng: Rng, n: int) -> Draw:
        members = rng.permutation(np.arange(n) // length)
        effects = rng.normal(size=-(-n // length))
        own = np.sqrt(1.0 - shared) * rng.normal(size=n)
        return Draw(np.sqrt(shared) * effects[members] + own, tuple(map(str, members)))

    return made


def _alone(draw: Callable[[Rng, int], Array]) -> Callable[[Rng, int], Draw]:
    return lambda rng, n: Draw(draw(rng, n), tuple(map(str, rng.integers(0, n // 5, n))))


ROWS: dict[str, Callable[[Rng, int], Draw]] = {
    "independent, normal": _alone(_normal),
    "independent, t with 3 df": _alone(_heavy),
    "independent, flips of 20%": _alone(_flips),
    "AR(0.6) in document order": _autoregressive(0.6),
    "blocks of 3 share a difference": _blocks(3),
    "blocks of 20": _blocks(20),
    "blocks of 20, flips": _blocks(20, _flips),
    "blocks of 100": _blocks(100),
    "passages of 10 in any order, 30% shared": _passages(10, 0.3),
    "passages of 5 in any order, all shared": _passages(5, 1.0),
}


# Dependence that is weak, or of few documents: some of it is not seen.
WEAK: dict[str, Callable[[Rng, int], Draw]] = {
    "AR(0.6) in document order": _autoregressive(0.6),
    "AR(0.3) in document order": _autoregressive(0.3),
    "blocks of 3 share 30%": _sharing(3, 0.3),
    "blocks of 10 share 10%": _sharing(10, 0.1),
    "passages of 5 in any order, 10% shared": _passages(5, 0.1),
}
WEAK_SIZES = (24, 50, 200)


def rows(
    repetitions: int,
    kinds: Mapping[str, Callable[[Rng, int], Draw]] = ROWS,
    sizes: Sequence[int] = SIZES,
) -> Iterator[str]:
    """Yield the table."""
    yield "| documents | n | as independent | dependence said | of these | as shown | declared |"
    yield "|---|---|---|---|---|---|---|"
    for name, make in kinds.items():
        for n in sizes:
            rng = np.random.default_rng([SEED, n])
            real, said, both, shown, clustered = [], [], 0, [], []
            for _ in range(repetitions):
                drawn = make(rng, n)
                paired, fields = _pair(drawn, rng)
                compared = compare_documents(paired)
                (accounted,), found = account_for_dependence(
                    [compared], fields, partial(_compare_again, paired)
                )
                real.append(_is_real(compared))
                said.append(bool(found))
                both += real[-1] and said[-1]
                shown.append(_is_real(accounted))
                if drawn.labels:
                    declared = dict(enumerate(drawn.labels))
                    clustered.append(_is_real(_clustered(paired, declared)))
            of_these = f"{both / sum(real):.0%}" if sum(real) else "-"
            after = f"{np.mean(clustered):.1%}" if clustered else "-"
            yield (
                f"| {name} | {n:,} | {np.mean(real):.1%} | {np.mean(said):.1%} | {of_these} | "
                f"{np.mean(shown):.1%} | {after} |"
            )


def _is_real(compared: MetricComparison) -> bool:
    p_value = compared.comparison.p_value
    return p_value is not None and p_value <= REAL


def _compare_again(
    paired: PairedScores, _key: object, labels: Mapping[int, str], *_: str
) -> MetricComparison:
    return _clustered(paired, labels)


def _clustered(paired: PairedScores, labels: Mapping[int, str]) -> MetricComparison:
    sides = (with_clusters(table, labels, "") for table in (paired.base, paired.candidate))
    return compare_documents(pair(*sides))


def _pair(drawn: Draw, rng: Rng) -> tuple[PairedScores, dict[str, DocumentFields]]:
    n = drawn.differences.shape[0]
    hashes = tuple(map(str, range(n)))
    base = rng.normal(-3.0, 1.0, n)
    table = ScoreTable(
        task="task",
        filter="none",
        metric="perplexity",
        aggregation="perplexity",
        higher_is_better=False,
        doc_ids=np.arange(n),
        values=base,
        doc_hashes=hashes,
        prompt_hashes=hashes,
        target_hashes=hashes,
    )
    documents = {i: {"passage": label} for i, label in enumerate(drawn.labels)}
    fields = {"task": read_fields(documents)} if documents else {}
    return pair(table, replace(table, values=base - 0.1 * drawn.differences)), fields


def main() -> None:
    """Simulate, and print the table or write it to a file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--repetitions", type=int, default=400)
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    head = [
        "# Documents that are not independent",
        "",
        f"`python -m benchmarks.dependence`: {given.repetitions} runs a row, one metric, no drift "
        "in the population. Called really worse: p at most 2.5%, one-sided, so 2.5% is due. *As "
        "independent*: if every document counted by itself; *dependence said*: a finding on the "
        "first screen; *of these*: of the runs called really worse as independent; *as shown*: "
        "what is reported, documents that drift alike taken together; *declared*: with the field "
        "declared.",
        "",
    ]
    weak = ["", "## Weak, or few documents", "", *rows(given.repetitions, WEAK, WEAK_SIZES)]
    versions_line = f"\nSeed {SEED}, {versions()}."
    deliver([*head, *rows(given.repetitions), *weak, versions_line], given.output)


if __name__ == "__main__":
    main()
