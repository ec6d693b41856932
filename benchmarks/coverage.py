"""How often a 95% interval of evalguard holds the true drift: simulations of hard cases.

    python benchmarks/coverage.py --output benchmarks/results/coverage.md

Every case has a known truth. Per case and number of documents: the share of runs whose interval
holds it (95% promised), the shares in which the whole interval lies below or above it (2.5% each
promised), and in how many runs evalguard's own caveat about skewed differences or unequal texts
stands beside the number. A second table holds the false-alarm probability that evalguard prints
against how often unchanged candidates cross the margin. A minute or two on one core; the seed is
fixed.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from evalguard.pairing import PairedScores
from evalguard.scores import Aggregation, ScoreTable
from evalguard.stats import Drift, Estimate, estimate_drift, flip_estimate
from evalguard.stats.tails import skewness, unequal_weights
from evalguard.verdict import Verdict, decide

SEED = 20261120
RUNS = 2000
SIZES = (10, 50, 200, 2000)
CONFIDENCE = 0.95
LOWEST, HIGHEST = 0.935, 0.965

Array = NDArray[np.float64]
Draw = Callable[[np.random.Generator, int], Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What became of the runs of one case at one number of documents; shares of all runs."""

    holds: float
    below: float
    above: float
    flagged: float | None


def main() -> None:
    """Print the table, or write it to a file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, help="write the table there")
    parser.add_argument("--runs", type=int, default=RUNS, help="simulated runs of each row")
    options = parser.parse_args()
    text = "\n".join(report(options.runs)) + "\n"
    if options.output:
        options.output.write_text(text, encoding="utf-8")
    else:
        print(text, end="")


def report(runs: int) -> Iterator[str]:
    """Yield the lines of the report in Markdown."""
    error = 100.0 * math.sqrt(CONFIDENCE * (1.0 - CONFIDENCE) / runs)
    yield "# Coverage of 95% intervals\n"
    yield "`python benchmarks/coverage.py --output benchmarks/results/coverage.md`\n"
    yield f"{runs:,} runs a row, seed {SEED}; Monte Carlo error of a coverage of 95%: {error:.1f}."
    yield f"All numbers in percent; **bold**: outside {100 * LOWEST:g} to {100 * HIGHEST:g}.\n"
    yield "| case | documents | holds the truth | lies below it | lies above it | caveat |"
    yield "|---|---|---|---|---|---|"
    for number, (name, simulate) in enumerate(CASES.items()):
        for n in SIZES:
            rng = np.random.default_rng([SEED, number, n])
            yield _row(name, n, simulate(rng, n, runs))
    yield "\n# False alarms at a margin of 1\n"
    yield "An unchanged candidate with scatter; the mean of what is printed, and what happens.\n"
    yield "| case | documents | printed | crosses the margin |"
    yield "|---|---|---|---|"
    for number, (name, n, pair) in enumerate(UNCHANGED):
        rng = np.random.default_rng([SEED, len(CASES) + number, n])
        drifts = [pair(rng, n) for _ in range(runs)]
        printed = np.mean([drift.false_alarm_probability(1.0) for drift in drifts])
        crossed = np.mean([decide(d.sigma, -math.inf, math.inf, 1.0) == OVER for d in drifts])
        yield f"| {name} | {n:,} | {100 * printed:.1f} | {100 * crossed:.1f} |"


def _row(name: str, n: int, tally: Tally) -> str:
    holds = f"{100 * tally.holds:.1f}"
    if not LOWEST <= tally.holds <= HIGHEST:
        holds = f"**{holds}**"
    flagged = "" if tally.flagged is None else f"{100 * tally.flagged:.0f}"
    tails = f"{100 * tally.below:.1f} | {100 * tally.above:.1f}"
    return f"| {name} | {n:,} | {holds} | {tails} | {flagged} |"


def _tally(intervals: list[tuple[float, float]], truth: float, flagged: int | None) -> Tally:
    low, high = np.array(intervals).T
    runs = len(intervals)
    return Tally(
        holds=float(np.mean((low <= truth) & (truth <= high))),
        below=float(np.mean(high < truth)),
        above=float(np.mean(low > truth)),
        flagged=None if flagged is None else flagged / runs,
    )


def _drift(
    base: Array, candidate: Array, aggregation: Aggregation, weights: Array | None = None
) -> tuple[Drift, bool]:
    """The drift of two runs, and whether evalguard calls its interval approximate."""
    ids = np.arange(base.shape[0])
    tables = [
        ScoreTable(
            task="", filter="", metric="", aggregation=aggregation, doc_ids=ids, values=values,
            higher_is_better=aggregation == "mean", weights=weights, doc_hashes=(),
            prompt_hashes=(), target_hashes=(),
        )
        for values in (base, candidate)
    ]  # fmt: skip
    paired = PairedScores(base=tables[0], candidate=tables[1])
    n = base.shape[0]
    needed = skewness(paired.d, weights).needed
    if weights is not None:
        needed = max(needed, unequal_weights(weights).needed)
    flagged = needed > n
    return estimate_drift(paired, confidence=CONFIDENCE), flagged


Simulate = Callable[[np.random.Generator, int, int], Tally]


def likelihoods(draw: Draw, truth: float) -> Simulate:
    """Perplexity: ``draw`` makes the documents' differences in nats, with mean ``truth``."""

    def simulate(rng: np.random.Generator, n: int, runs: int) -> Tally:
        intervals, flagged = [], 0
        for _ in range(runs):
            base = -rng.gamma(1.4, 1.0, n)
            drift, caveat = _drift(base, base - draw(rng, n), "perplexity")
            intervals.append((drift.estimate.low, drift.estimate.high))
            flagged += caveat
        return _tally(intervals, truth, flagged)

    return simulate


def texts(long_drift: float) -> Simulate:
    """Word perplexity of very unequal texts; ``long_drift``: long ones drift more by the word."""

    def simulate(rng: np.random.Generator, n: int, runs: int) -> Tally:
        intervals, flagged = [], 0
        for _ in range(runs):
            words = np.ceil(rng.lognormal(4.5, 1.0, n))
            # mean of log(words) is 4.5, weighted by words 5.5: there the drift is 0.03 a word
            rate = 0.03 + long_drift * (np.log(words) - 5.5) + rng.normal(0.0, 0.1, n)
            base = -words * rng.gamma(4.0, 0.5, n)
            drift, caveat = _drift(base, base - words * rate, "weighted_perplexity", words)
            intervals.append((drift.estimate.low, drift.estimate.high))
            flagged += caveat
        return _tally(intervals, 0.03, flagged)

    return simulate


@cache
def _flips(lost: int, won: int, n: int) -> Estimate:
    return flip_estimate(lost, won, n, confidence=CONFIDENCE)


def answers(lost: float, won: float, *, expected: bool = False) -> Simulate:
    """0/1 answers with these chances of a flip; or with so many expected."""

    def simulate(rng: np.random.Generator, n: int, runs: int) -> Tally:
        p = (lost / n, won / n) if expected else (lost, won)
        counts = rng.multinomial(n, [*p, max(0.0, 1.0 - sum(p))], size=runs)
        estimates = [_flips(int(b), int(c), n) for b, c, _ in counts]
        return _tally([(e.low, e.high) for e in estimates], p[0] - p[1], None)

    return simulate


def true_units(sigma: float) -> Simulate:
    """Sigma itself: the drift in units of the *true* standard error of the base."""

    def simulate(rng: np.random.Generator, n: int, runs: int) -> Tally:
        intervals, flagged = [], 0
        for _ in range(runs):
            base = rng.normal(0.0, 1.0, n)
            worse = base - sigma / math.sqrt(n) - rng.normal(0.0, 0.1, n)
            drift, caveat = _drift(base, worse, "mean")
            intervals.append(drift.sigma_interval)
            flagged += caveat
        return _tally(intervals, sigma, flagged)

    return simulate


def rare(share: float, draw: Draw) -> Draw:
    """Differences of which only a share is not 0."""
    return lambda rng, n: np.where(rng.random(n) < share, draw(rng, n), 0.0)


def lognormal(spread: float) -> Draw:
    """Losses with a long tail, of mean 1."""
    return lambda rng, n: rng.lognormal(-spread * spread / 2.0, spread, n)


CASES: dict[str, Simulate] = {
    "perplexity, normal differences": likelihoods(lambda rng, n: rng.normal(0.1, 1.0, n), 0.1),
    "perplexity, differences of a millionth": likelihoods(
        lambda rng, n: rng.normal(1e-7, 1e-6, n), 1e-7
    ),
    "perplexity, heavy tails (t with 2.5 df)": likelihoods(
        lambda rng, n: rng.standard_t(2.5, n), 0.0
    ),
    "perplexity, skewed losses (lognormal, 1)": likelihoods(lognormal(1.0), 1.0),
    "perplexity, very skewed losses (lognormal, 1.5)": likelihoods(lognormal(1.5), 1.0),
    "perplexity, 95% identical, the rest normal": likelihoods(
        rare(0.05, lambda rng, n: rng.normal(0.0, 1.0, n)), 0.0
    ),
    "perplexity, 95% identical, the rest losses": likelihoods(
        rare(0.05, lambda rng, n: rng.exponential(1.0, n)), 0.05
    ),
    "word perplexity, very unequal texts": texts(0.0),
    "word perplexity, long texts drift more": texts(0.05),
    "acc, 5% lost and 5% won": answers(0.05, 0.05),
    "acc, 6.5% lost and 3.5% won": answers(0.065, 0.035),
    "acc, 1.5 lost and 1.5 won expected": answers(1.5, 1.5, expected=True),
    "acc, 7 lost and 3 won expected": answers(7.0, 3.0, expected=True),
    "acc, base always right, 2% lost": answers(0.02, 0.0),
    "acc, base always wrong, 2% won": answers(0.0, 0.02),
    "sigma 1 in true base standard errors": true_units(1.0),
    "sigma 5 in true base standard errors": true_units(5.0),
}

Pair = Callable[[np.random.Generator, int], Drift]


def unchanged_answers(accuracy: float, flips: float) -> Pair:
    """0/1 answers of two models alike: this accuracy, this share of documents that flip."""

    def pair(rng: np.random.Generator, n: int) -> Drift:
        right = (accuracy - flips / 2.0) / (1.0 - flips)
        draw, stays = rng.random(n), rng.random(n) < right
        base = np.where(draw < flips / 2.0, 1.0, np.where(draw < flips, 0.0, stays))
        candidate = np.where(draw < flips / 2.0, 0.0, np.where(draw < flips, 1.0, stays))
        return _drift(base, candidate, "mean")[0]

    return pair


def unchanged_likelihoods(scatter: float) -> Pair:
    """Log-likelihoods of two models alike, with this paired scatter in that of the base."""

    def pair(rng: np.random.Generator, n: int) -> Drift:
        base = -rng.gamma(1.4, 1.0, n)
        noise = rng.normal(0.0, scatter * math.sqrt(1.4), n)
        return _drift(base, base - noise, "perplexity")[0]

    return pair


OVER = Verdict(outcome="regressed", significant=False, certain=False)
UNCHANGED: tuple[tuple[str, int, Pair], ...] = (
    ("acc 60%, 20% flips", 1000, unchanged_answers(0.6, 0.2)),
    ("acc 30%, 5% flips", 2000, unchanged_answers(0.3, 0.05)),
    ("acc 90%, 10% flips", 200, unchanged_answers(0.9, 0.1)),
    ("acc 99%, 1% flips", 500, unchanged_answers(0.99, 0.01)),
    ("perplexity, half of the base's scatter", 500, unchanged_likelihoods(0.5)),
    ("perplexity, half of the base's scatter", 100, unchanged_likelihoods(0.5)),
    ("perplexity, 80% of the base's scatter", 500, unchanged_likelihoods(0.8)),
)

if __name__ == "__main__":
    main()
