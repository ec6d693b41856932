"""Which interval of a mean KL ends too low, how often, and how wide it is.

    python -m benchmarks.kl_interval --output benchmarks/results/kl_interval.md

A document's KL is drawn with a known mean; its interval at 95% should end below that mean in 2.5%
of samples, and begin above it in 2.5%. Beside evalguard's own stand those of textbooks, and how
often a caveat says that few documents carry it.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
from scipy import stats

from benchmarks.differences import Array, Rng
from benchmarks.outcomes import CONFIDENCE
from benchmarks.output import deliver
from benchmarks.tally import SEED, Share, seed_of
from evalguard.core.moments import ratio_moments
from evalguard.distributions.kl import is_carried_by_few, kl_upper_end, ratio_estimate
from evalguard.stats.skewness import skewness

SIZES = (50, 200, 1_319)
_LEVEL = (1.0 - CONFIDENCE) / 2.0
_TOKENS = 20  # of a document
_QUIET, _LOUD = 0.002, 1.0  # nats: of a token, and of a broken one

Ends = tuple[float, float]
Method = Callable[[Array, Array], Ends]  # of sums and weights of the documents


def _lognormal(spread: float) -> Callable[[Rng, int], Array]:
    return lambda rng, n: rng.lognormal(-spread * spread / 2.0, spread, n)


def _broken_tokens(share: float) -> Callable[[Rng, int], Array]:
    """Broken tokens spread over all documents."""
    return lambda rng, n: _QUIET + _LOUD * rng.binomial(_TOKENS, share, n) / _TOKENS


def _broken_documents(share: float) -> Callable[[Rng, int], Array]:
    """A twentieth of the tokens of a share of the documents is broken."""

    def draw(rng: Rng, n: int) -> Array:
        quiet = _QUIET * rng.gamma(2.0, 0.5, n)
        return quiet + np.where(rng.random(n) < share, _LOUD / _TOKENS, 0.0)

    return draw


# What documents do, and their true mean.
KINDS: dict[str, tuple[Callable[[Rng, int], Array], float]] = {
    **{f"lognormal, spread {s}": (_lognormal(s), 1.0) for s in (0.5, 1.0, 1.5, 2.0, 2.5)},
    "gamma, shape 0.3": (lambda rng, n: rng.gamma(0.3, 1.0 / 0.3, n), 1.0),
    "1% of the tokens broken": (_broken_tokens(0.01), _QUIET + 0.01 * _LOUD),
    "0.3% of the tokens broken": (_broken_tokens(0.003), _QUIET + 0.003 * _LOUD),
    "1% of the documents broken": (_broken_documents(0.01), _QUIET + 0.01 * _LOUD / _TOKENS),
    "0.3% of the documents broken": (_broken_documents(0.003), _QUIET + 0.003 * _LOUD / _TOKENS),
    "2% of the documents broken": (_broken_documents(0.02), _QUIET + 0.02 * _LOUD / _TOKENS),
    "lognormal, spread 1.0, texts of 5 to 119 words": (_lognormal(1.0), 1.0),
    "lognormal, spread 2.0, texts of 5 to 119 words": (_lognormal(2.0), 1.0),
}


def _ours(sums: Array, weights: Array) -> Ends:
    low = ratio_estimate(sums, weights, confidence=CONFIDENCE).low
    return max(low, 0.0), kl_upper_end(sums, weights, confidence=CONFIDENCE)


def _t(sums: Array, weights: Array) -> tuple[float, float, float]:
    """Mean, standard error and half the width of the t interval."""
    found = ratio_moments(sums, weights)
    critical = float(stats.t.ppf(1.0 - _LEVEL, sums.size - 1))
    return found.point, found.stderr, critical * found.stderr


def _student(sums: Array, weights: Array) -> Ends:
    mean, _, half = _t(sums, weights)
    return mean - half, mean + half


def _chen(sums: Array, weights: Array) -> Ends:
    """Johnson's (1978) modified t, in Chen's form: the mean moved by the third moment."""
    mean, stderr, half = _t(sums, weights)
    shift = skewness(sums, weights).value * stderr / (6.0 * math.sqrt(sums.size))
    shift *= 1.0 + 2.0 * 1.96**2
    return mean - half + shift, mean + half + shift


def _log_scale(sums: Array, weights: Array) -> Ends:
    """t on the log scale (delta method)."""
    mean, _, half = _t(sums, weights)
    exponent = half / mean
    return mean * math.exp(-exponent), mean * math.exp(min(exponent, 700.0))


METHODS: dict[str, Method] = {
    "evalguard": _ours,
    "Student's t": _student,
    "Johnson and Chen": _chen,
    "t, log scale": _log_scale,
}


def main() -> None:
    """Simulate, and print the tables or write them to a file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, help="write the tables there")
    parser.add_argument("--repetitions", type=int, default=1_000, help="of each cell")
    options = parser.parse_args()
    deliver(_report(options.repetitions), options.output)


def _report(repetitions: int) -> list[str]:
    error = 100.0 * Share(value=_LEVEL, of=repetitions).error
    lines = [
        "# Intervals of a mean KL\n",
        "`python -m benchmarks.kl_interval --output benchmarks/results/kl_interval.md`\n",
        f"{repetitions:,} repetitions a cell, seed {SEED}. "
        "Percent of 95% intervals that end below the true mean / begin above it (2.5 each is "
        f"promised; Monte Carlo error of that {error:.1f}), and the median of their upper end over "
        "the true mean. *Said*: of all samples, and of those whose interval ends below the true "
        "mean, those that are said to be carried by few documents. A document has 20 tokens of "
        "0.002 nats; a broken token 1 more. Where broken documents are rarer than 3 in n, many "
        "samples hold none, and neither interval nor caveat can know.",
    ]
    for n in SIZES:
        lines += [
            f"\n## {n} documents\n",
            f"| KL of a document | {' | '.join(METHODS)} | said |",
            "|---" * (len(METHODS) + 2) + "|",
        ]
        for name, (draw, truth) in KINDS.items():
            lines.append(f"| {name} | {' | '.join(_cells(name, draw, truth, n, repetitions))} |")
    return lines


def _cells(
    name: str, draw: Callable[[Rng, int], Array], truth: float, n: int, repetitions: int
) -> list[str]:
    rng = np.random.default_rng([SEED, seed_of(name), n])
    found: dict[str, list[Ends]] = {name: [] for name in METHODS}
    said = []
    for _ in range(repetitions):
        kl, weights = draw(rng, n), np.ones(n)
        if "words" in name:
            weights = rng.integers(5, 120, n).astype(np.float64)
        sums = kl * weights
        for method, ends in METHODS.items():
            found[method].append(ends(sums, weights) if np.ptp(kl) else (kl[0], kl[0]))
        said.append(is_carried_by_few(sums, weights))
    low, high = ([np.array(ends)[:, side] for ends in found.values()] for side in (0, 1))
    below = [100.0 * np.mean(ends < truth) for ends in high]
    above = [100.0 * np.mean(ends > truth) for ends in low]
    width = [np.median(ends) / truth for ends in high]
    missed = np.array(said)[high[0] < truth]
    of_missed = f"{100.0 * np.mean(missed):.0f}" if missed.size else "-"
    cells = [f"{b:.1f} / {a:.1f}, {_ratio(w)}" for b, a, w in zip(below, above, width, strict=True)]
    return [*cells, f"{100.0 * np.mean(said):.0f} / {of_missed}"]


def _ratio(width: float) -> str:
    return f"{width:.2f}" if width < 1e3 else "> 1000"


if __name__ == "__main__":
    main()
