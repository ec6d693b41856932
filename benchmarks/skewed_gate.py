"""How often skewed documents make an unchanged candidate fail, and what it costs to mend that.

    python -m benchmarks.skewed_gate --output benchmarks/results/skewed_gate.md

Differences are simulated whose mean is 0 (an unchanged candidate) or a drift, and compared through
evalguard's own path, by Student's t and by what decides: the more careful of t and of the test
corrected for skewed documents, at one-sided 2.5%, Holm over the metrics. The margin is 0, so that
every degradation that is real fails: a gate's margin makes all figures smaller.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.differences import Array, Rng
from benchmarks.output import deliver
from benchmarks.tables import scored
from benchmarks.tally import SEED, Share, seed_of
from evalguard.core.moments import moments
from evalguard.core.pairing import PairedScores
from evalguard.stats.clusters import FEWEST_FOR_T, cluster_count, compared_units
from evalguard.stats.compare_scores import compare_documents
from evalguard.stats.drift import estimate_drift
from evalguard.stats.estimate import t_upper_tail
from evalguard.stats.few_documents import rests_on
from evalguard.stats.skewness import skewness

CONFIDENCE = 0.95
SIZES = (10, 30, 50, 200, 1_319, 5_153)
FAMILIES = (1, 7, 20)
LEVEL = (1.0 - CONFIDENCE) / 2.0
# z_0.975 + z_0.9: a drift of so many standard errors is seen by t in 90% of large samples.
SEEN = 3.242
Draw = Callable[[Rng, int], Array]


def _lognormal(spread: float) -> Draw:
    """Gains, of mean 0 and variance 1."""
    centre = math.exp(spread * spread / 2.0)
    deviation = centre * math.sqrt(math.expm1(spread * spread))
    return lambda rng, n: (centre - rng.lognormal(0.0, spread, n)) / deviation


def _pareto(index: float) -> Draw:
    deviation = math.sqrt(index / (index - 2.0)) / (index - 1.0)
    return lambda rng, n: (1.0 / (index - 1.0) - rng.pareto(index, n)) / deviation


def _few_gain(share: float) -> Draw:
    """A share of the documents gains, the others lose a little, with light noise."""
    loss = share / (1.0 - share)
    deviation = math.sqrt(2.0 * share + loss * loss)

    def draw(rng: Rng, n: int) -> Array:
        gains = rng.random(n) < share
        d = np.where(gains, -rng.exponential(1.0, n), rng.normal(loss, 0.02, n))
        return d / deviation

    return draw


def _noise_and_gains(share: float, size: float) -> Draw:
    """Normal documents, a share of which gains so many of their standard deviations more."""
    deviation = math.sqrt(1.0 + share * (1.0 - share) * size * size)
    return lambda rng, n: (
        (rng.normal(size=n) - size * ((rng.random(n) < share) - share)) / deviation
    )


def _rare(draw: Draw, share: float) -> Draw:
    """Only a share of the documents differs."""
    return lambda rng, n: np.where(rng.random(n) < share, draw(rng, n), 0.0) / math.sqrt(share)


def _losses(draw: Draw) -> Draw:
    return lambda rng, n: -draw(rng, n)


def _student(rng: Rng, n: int) -> Array:
    return rng.standard_t(3, n) / math.sqrt(3.0)


def _laplace(rng: Rng, n: int) -> Array:
    return rng.laplace(size=n) / math.sqrt(2.0)


SYMMETRIC: dict[str, Draw] = {
    "normal": lambda rng, n: rng.normal(size=n),
    "t, 3 df": _student,
    "Laplace": _laplace,
}
SKEWED: dict[str, Draw] = {
    "gamma(4) gains": lambda rng, n: (4.0 - rng.gamma(4.0, 1.0, n)) / 2.0,
    "exponential gains": lambda rng, n: 1.0 - rng.exponential(1.0, n),
    "lognormal(1) gains": _lognormal(1.0),
    "lognormal(1.5) gains": _lognormal(1.5),
    "lognormal(2) gains": _lognormal(2.0),
    "Pareto(3) gains": _pareto(3.0),
    "Pareto(2.2) gains": _pareto(2.2),
    "5% of the documents gain": _few_gain(0.05),
    "1% of the documents gain": _few_gain(0.01),
    "noise, 5% gain 4 sd": _noise_and_gains(0.05, 4.0),
    "noise, 2% gain 5 sd": _noise_and_gains(0.02, 5.0),
    "noise, 0.5% gain 15 sd": _noise_and_gains(0.005, 15.0),
    "95% identical, lognormal(1) gains": _rare(_lognormal(1.0), 0.05),
    "80% identical, lognormal(2) gains": _rare(_lognormal(2.0), 0.2),
    "lognormal(2) losses": _losses(_lognormal(2.0)),
}


def _documents(rng: Rng, d: Array) -> PairedScores:
    base = -rng.gamma(1.4, 1.0, d.shape[0])
    return scored(base, base - d, "perplexity")


def _texts(rng: Rng, d: Array) -> PairedScores:
    """Texts of 5 to 120 words; the difference of a word is the text's."""
    return _of_words(rng.integers(5, 120, d.shape[0]).astype(float), d)


def _unequal_texts(rng: Rng, d: Array) -> PairedScores:
    """Texts of very unequal length (lognormal, 1)."""
    return _of_words(np.ceil(rng.lognormal(4.5, 1.0, d.shape[0])), d)


def _of_words(words: Array, d: Array) -> PairedScores:
    base = -2.0 * words
    return scored(base, base - d * words, "weighted_perplexity", weights=words)


def _passages(rng: Rng, d: Array) -> PairedScores:
    """Passages of 3 documents that all differ alike."""
    members = np.repeat(np.arange(d.shape[0]), 3)
    base = -rng.gamma(1.4, 1.0, members.shape[0])
    return scored(base, base - d[members], "perplexity", clusters=members)


SHAPES: dict[str, Callable[[Rng, Array], PairedScores]] = {
    "texts (word perplexity)": _texts,
    "texts of very unequal length": _unequal_texts,
    "passages": _passages,
}


# As skewed as the gate's promise reaches, and so many times the repetitions of the others.
NEAREST = ("gamma(4) gains", "exponential gains", "lognormal(1) gains")
_CLOSER = 20

SAID = (
    "normal", "t, 3 df", "lognormal(1) gains", "lognormal(2) gains", "5% of the documents gain",
    "1% of the documents gain", "noise, 2% gain 5 sd", "noise, 0.5% gain 15 sd",
    "95% identical, lognormal(1) gains",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample's p-values: of t, and of the test that decides."""

    plain: float
    careful: float


def sample(paired: PairedScores) -> Sample:
    """Compare one metric.

    What t does not call worse by far nothing does, for all that decides is more careful than t:
    there the rest is not computed. Signs stand in place of t where there are few clusters.
    """
    if (cluster_count(paired) or FEWEST_FOR_T) >= FEWEST_FOR_T:
        by_t = plain_p(paired)
        if by_t > 2.0 * LEVEL:
            return Sample(by_t, by_t)
    drift = estimate_drift(paired, confidence=CONFIDENCE)
    return Sample((drift.plain or drift.estimate).p_value, drift.estimate.p_value)


def plain_p(paired: PairedScores) -> float:
    """The p-value of Student's t alone."""
    values, weights = compared_units(paired)
    found = moments(values, weights)
    if found.stderr == 0.0:
        return 0.0 if found.point > 0.0 else 1.0
    return t_upper_tail(found.point / found.stderr, values.shape[0] - 1)


def failing(p_values: Array, metrics: int) -> Share:
    """The share of families of independent metrics of which one fails: Holm's first step."""
    alone = float(np.mean(p_values <= LEVEL / metrics))
    return Share(value=1.0 - (1.0 - alone) ** metrics, of=p_values.shape[0])


def columns(samples: list[Sample]) -> tuple[Array, Array]:
    """The p-values of t, and of what decides."""
    return np.array([one.plain for one in samples]), np.array([one.careful for one in samples])


def simulated(
    name: str,
    draw: Draw,
    n: int,
    repetitions: int,
    *,
    drift: float = 0.0,
    shape: Callable[[Rng, Array], PairedScores] = _documents,
) -> list[Sample]:
    """Samples of one metric; the drift in true standard errors, of documents that differ at all."""
    rng = np.random.default_rng([SEED, seed_of(name), n, round(1000 * drift)])
    found = []
    for _ in range(repetitions):
        d = draw(rng, n)
        found.append(sample(shape(rng, np.where(d == 0.0, d, d + drift / math.sqrt(n)))))
    return found


def said(
    name: str, draw: Draw, n: int, repetitions: int, *, drift: float
) -> tuple[Share, Share, Share]:
    """Of runs that fail, and of those that do not, those that are said to rest on few documents.

    Gains and losses are twice as large as the scores scatter, with the margin of 1 sigma.

    Returns:
        Also, of the runs that fail, those that hold a long tail of gains by Cochran's rule.
    """
    rng = np.random.default_rng([SEED, seed_of(name), n, 9, round(1000 * drift)])
    told: dict[bool, list[bool]] = {True: [], False: []}
    seen = []
    for _ in range(repetitions):
        base = -rng.gamma(1.4, 1.0, n)
        d = 2.0 * (draw(rng, n) + drift / math.sqrt(n))
        compared = compare_documents(scored(base, base - d, "perplexity"), confidence=CONFIDENCE)
        c = compared.comparison
        assert compared.contributions is not None
        assert c.sigma is not None
        assert c.p_value is not None
        fails = c.sigma > 1.0 and c.p_value <= (1.0 - CONFIDENCE) / 2.0
        few = rests_on(
            c, compared.contributions, fails=fails, fail_on="real", holm_p_value=c.p_value
        )
        told[fails].append(few is not None)
        if fails:
            tail = skewness(d, None)
            seen.append(tail.value < 0.0 and tail.needed > n)
    return _share(told[True]), _share(told[False]), _share(seen)


def _share(hits: list[bool]) -> Share:
    return Share(value=float(np.mean(hits)) if hits else 0.0, of=max(1, len(hits)))


# Clusters so few that whole ones change sign; each has 3 documents.
FEW_CLUSTERS = (8, 12, 16)


def few_clusters(repetitions: int) -> Iterator[str]:
    """Yield the rows of fewer than 20 clusters, unchanged and with a drift."""
    yield "| differences | clusters | sign flips | now | seen by sign flips | seen now |"
    yield "|---|---|---|---|---|---|"
    for name in ("normal", "t, 3 df", "exponential gains", "lognormal(1) gains", "lognormal(2) gains"):  # fmt: skip # noqa: E501
        draw = {**SYMMETRIC, **SKEWED}[name]
        for count in FEW_CLUSTERS:
            shares = [
                f"{100.0 * np.mean(p_values <= LEVEL):.1f}"
                for drift in (0.0, SEEN)
                for p_values in columns(
                    simulated(name, draw, count, repetitions, drift=drift, shape=_passages)
                )
            ]
            yield f"| {name} | {count} | {' | '.join(shares)} |"


def report(repetitions: int) -> Iterator[str]:
    """Yield the tables in Markdown."""
    yield "# Skewed documents and the gate\n"
    yield "`python -m benchmarks.skewed_gate --output benchmarks/results/skewed_gate.md`\n"
    yield (
        f"{repetitions:,} repetitions a row, twice as many of 1,319 documents and a quarter of "
        f"5,153; seed {SEED}. In percent. *t*: Student's t at one-sided 2.5%. *Now*: the more "
        "careful of t and of the test corrected for skewed documents. Any degradation that is real "
        "fails (a margin of 0). Of 1 / 7 / 20 independent metrics, Holm over them. Monte Carlo "
        f"error of 2.5%: {' / '.join(_error(metrics, repetitions) for metrics in FAMILIES)}.\n"
    )
    yield "## An unchanged candidate fails\n"
    yield "| differences | n | t | now |\n|---|---|---|---|"
    for name, draw in {**SYMMETRIC, **SKEWED}.items():
        for n in SIZES:
            yield _row(f"{name} | {n:,}", simulated(name, draw, n, _runs(repetitions, n)))
    yield "\n## Nearest to the promise\n"
    yield (
        f"{_CLOSER * repetitions:,} repetitions a row; Monte Carlo error of 2.5%: "
        f"{' / '.join(_error(metrics, _CLOSER * repetitions) for metrics in FAMILIES)}.\n"
    )
    yield "| differences | n | t | now |\n|---|---|---|---|"
    for name in NEAREST:
        for n in (50, 60, 200):
            yield _row(f"{name} | {n}", simulated(name, SKEWED[name], n, _CLOSER * repetitions))
    yield "\n## An unchanged candidate fails: texts and passages\n"
    yield f"{repetitions // 2:,} repetitions a row, of very unequal texts {2 * repetitions:,}.\n"
    yield "| differences | of | n | t | now |\n|---|---|---|---|---|"
    for label, shape in SHAPES.items():
        runs = 2 * repetitions if shape is _unequal_texts else repetitions // 2
        for name in ("lognormal(1) gains", "lognormal(2) gains"):
            for n in (50, 200):
                found = simulated(label + name, SKEWED[name], n, runs, shape=shape)
                yield _row(f"{name} | {label} | {n}", found)
    yield "\n## Fewer than 20 clusters\n"
    yield (
        f"{repetitions // 4:,} repetitions a row, one metric. *Sign flips* of whole clusters "
        "alone, and the more careful of them and of the test corrected for skewed clusters.\n"
    )
    yield from few_clusters(repetitions // 4)
    yield "\n## A drift is seen\n"
    yield (
        f"A true drift of {SEEN:g} standard errors, of which t sees 90% in large samples; one "
        "metric. *Oracle*: t with the critical value that an unchanged candidate of these very "
        "differences exceeds in 2.5%.\n"
    )
    yield "| differences | n | t | now | oracle |\n|---|---|---|---|---|"
    for name, draw in {**SYMMETRIC, **SKEWED}.items():
        for n in (50, 200):
            if "identical" in name:  # few differ at all
                continue
            unchanged, _ = columns(simulated(name, draw, n, repetitions))
            plain, careful = columns(simulated(name, draw, n, repetitions, drift=SEEN))
            shares = plain <= LEVEL, careful <= LEVEL, plain <= np.quantile(unchanged, LEVEL)
            yield f"| {name} | {n} | {' | '.join(f'{100 * np.mean(one):.0f}' for one in shares)} |"
    yield "\n## What is said to rest on few documents\n"
    yield (
        f"{repetitions // 8:,} repetitions a row. Of runs that fail, and of those that do not, "
        "with the margin of 1 sigma and documents that differ by twice what their scores scatter; "
        f"with how many runs these are. A drift of 0 or {SEEN:g} standard errors. *A tail shows*: "
        "the failing runs whose documents hold a long tail of gains (Cochran's rule). Nothing is "
        "said where none does: those documents are like normal ones that lost.\n"
    )
    yield "| differences | n | drift | said of failing | a tail shows | said of others |"
    yield "|---|---|---|---|---|---|"
    for name in SAID:
        draw = {**SYMMETRIC, **SKEWED}[name]
        for n in (50, 200):
            for drift in (0.0, SEEN):
                failed, others, seen = said(name, draw, n, max(10, repetitions // 8), drift=drift)
                cells = (f"{100 * one.value:.0f} of {one.of:,}" for one in (failed, seen, others))
                yield f"| {name} | {n} | {'yes' if drift else 'none'} | {' | '.join(cells)} |"


def _error(metrics: int, repetitions: int) -> str:
    alone = Share(value=LEVEL / metrics, of=repetitions)
    return f"{100 * metrics * alone.error:.1f}"


def _runs(repetitions: int, n: int) -> int:
    """Of 1,319 documents twice as many: 20 metrics are tested at 0.1%, one run of a thousand."""
    return max(10, 2 * repetitions if n == 1_319 else repetitions // (1 if n <= 200 else 4))


def _row(head: str, samples: list[Sample]) -> str:
    cells = (
        " / ".join(f"{100 * failing(p_values, metrics).value:.1f}" for metrics in FAMILIES)
        for p_values in columns(samples)
    )
    return f"| {head} | {' | '.join(cells)} |"


def main() -> None:
    """Simulate, and print the tables or write them to a file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, help="write the tables there")
    parser.add_argument("--repetitions", type=int, default=2_000, help="of each row")
    options = parser.parse_args()
    deliver(report(options.repetitions), options.output)


if __name__ == "__main__":
    main()
