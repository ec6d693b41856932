"""Which interval of a mean KL ends too low, how often, and how wide it is.

    python -m benchmarks.kl_interval --output benchmarks/results/kl_interval.md

A document's KL is drawn with a known mean; its interval at 95% should end below that mean in 2.5%
of samples, and begin above it in 2.5%. Beside evalguard's own stand those of textbooks.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
from scipy import stats

from benchmarks.calibration import versions
from benchmarks.differences import Array, Rng
from benchmarks.outcomes import CONFIDENCE
from benchmarks.output import deliver
from benchmarks.tally import SEED, Share, seed_of
from evalguard.stats.mean_kl import kl_upper_end
from evalguard.stats.positions import ratio_estimate

SIZES = (30, 100, 300)
_LEVEL = (1.0 - CONFIDENCE) / 2.0
_RESAMPLES = 399
_TOKENS = 20  # of a document
_QUIET, _LOUD = 0.002, 1.0  # nats: of a token, and of a broken one

Ends = tuple[float, float]
Method = Callable[[Array, Rng], Ends]


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
}


def _ours(x: Array, _: Rng) -> Ends:
    ones = np.ones_like(x)
    found = ratio_estimate(x, ones, confidence=CONFIDENCE)
    return max(found.low, 0.0), max(found.high, kl_upper_end(x, ones, confidence=CONFIDENCE))


def _student(x: Array, _: Rng) -> Ends:
    half = stats.t.ppf(1.0 - _LEVEL, x.size - 1) * stats.sem(x)
    return x.mean() - half, x.mean() + half


def _chen(x: Array, _: Rng) -> Ends:
    """Johnson's (1978) modified t, in Chen's form: the mean moved by the third moment."""
    shift = stats.skew(x) * x.std(ddof=1) / (6.0 * x.size)
    low, high = _student(x, _)
    return low + shift * (1.0 + 2.0 * 1.96**2), high + shift * (1.0 + 2.0 * 1.96**2)


def _log_scale(x: Array, _: Rng) -> Ends:
    """t on the log scale (delta method)."""
    exponent = stats.t.ppf(1.0 - _LEVEL, x.size - 1) * stats.sem(x) / x.mean()
    return x.mean() * math.exp(-exponent), x.mean() * math.exp(min(exponent, 700.0))


def _cox(x: Array, _: Rng) -> Ends:
    """Cox's interval, exact in the limit if x is lognormal."""
    logs = np.log(x)
    variance = logs.var(ddof=1)
    half = stats.t.ppf(1.0 - _LEVEL, x.size - 1) * math.sqrt(
        variance / x.size + variance**2 / (2.0 * (x.size - 1))
    )
    centre = logs.mean() + variance / 2.0
    return math.exp(centre - half), math.exp(centre + half)


def _resampled(x: Array, rng: Rng) -> tuple[Array, Array]:
    drawn = x[rng.integers(0, x.size, (_RESAMPLES, x.size))]
    spread = np.maximum(drawn.std(axis=1, ddof=1), 1e-300)
    return drawn.mean(axis=1), spread / math.sqrt(x.size)


def _bootstrap_t(x: Array, rng: Rng) -> Ends:
    means, errors = _resampled(x, rng)
    low, high = np.quantile((means - x.mean()) / errors, [_LEVEL, 1.0 - _LEVEL])
    return x.mean() - high * stats.sem(x), x.mean() - low * stats.sem(x)


def _bootstrap_t_log(x: Array, rng: Rng) -> Ends:
    means, errors = _resampled(x, rng)
    scaled = np.log(means / x.mean()) / (errors / means)
    low, high = np.quantile(scaled, [_LEVEL, 1.0 - _LEVEL]) * stats.sem(x) / x.mean()
    return x.mean() * math.exp(-high), x.mean() * math.exp(min(-low, 700.0))


def _bca(x: Array, rng: Rng) -> Ends:
    means, _ = _resampled(x, rng)
    bias = stats.norm.ppf(np.clip(np.mean(means < x.mean()), 1e-3, 1.0 - 1e-3))
    bend = stats.skew(x) / (6.0 * math.sqrt(x.size))
    shifted = bias + stats.norm.ppf([_LEVEL, 1.0 - _LEVEL])
    low, high = np.quantile(means, stats.norm.cdf(bias + shifted / (1.0 - bend * shifted)))
    return low, high


METHODS: dict[str, Method] = {
    "evalguard": _ours,
    "Student's t": _student,
    "Johnson and Chen": _chen,
    "t, log scale": _log_scale,
    "bootstrap-t": _bootstrap_t,
    "bootstrap-t, log scale": _bootstrap_t_log,
    "BCa": _bca,
    "Cox (lognormal)": _cox,
}


_RESAMPLING = ("bootstrap-t", "bootstrap-t, log scale", "BCa")
_FEWER = 5  # times fewer repetitions of what resamples


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
        f"{repetitions:,} repetitions a cell, seed {SEED}; of the bootstraps a fifth of them, "
        f"with {_RESAMPLES} resamples. "
        "Percent of 95% intervals that end below the true mean / begin above it (2.5 each is "
        f"promised; Monte Carlo error of that {error:.1f}), and the median of their upper end over "
        "the true mean. A document has 20 tokens of 0.002 nats; a broken token 1 more. Where "
        "broken documents are rarer than 1 in n, most samples hold none, and no method can know.",
    ]
    for n in SIZES:
        lines += [
            f"\n## {n} documents\n",
            f"| KL of a document | {' | '.join(METHODS)} |",
            "|---" * (len(METHODS) + 1) + "|",
        ]
        for name, (draw, truth) in KINDS.items():
            lines.append(f"| {name} | {' | '.join(_cells(name, draw, truth, n, repetitions))} |")
    return [*lines, f"\n{versions()}."]


def _cells(
    name: str, draw: Callable[[Rng, int], Array], truth: float, n: int, repetitions: int
) -> list[str]:
    rng = np.random.default_rng([SEED, seed_of(name), n])
    found: dict[str, list[Ends]] = {name: [] for name in METHODS}
    with np.errstate(all="ignore"):
        for repetition in range(repetitions):
            x = draw(rng, n)
            for method, ends in METHODS.items():
                if method not in _RESAMPLING or repetition % _FEWER == 0:
                    found[method].append(ends(x, rng) if np.ptp(x) else (x[0], x[0]))
    low, high = ([np.array(ends)[:, side] for ends in found.values()] for side in (0, 1))
    below = [100.0 * np.mean(ends < truth) for ends in high]
    above = [100.0 * np.mean(ends > truth) for ends in low]
    width = [np.median(ends) / truth for ends in high]
    return [f"{b:.1f} / {a:.1f}, {_ratio(w)}" for b, a, w in zip(below, above, width, strict=True)]


def _ratio(width: float) -> str:
    return f"{width:.2f}" if width < 1e3 else "> 1000"


if __name__ == "__main__":
    main()
