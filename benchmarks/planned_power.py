"""Whether what a plan and an undecided comparison promise is reached: 80% of runs.

    python -m benchmarks.planned_power --output benchmarks/results/planned_power.md

Pilots are drawn from populations whose scatter is known; what each of them says is held against
runs of the same population: documents that decide, the drift that is seen, and the drift that
"such a run fails in 80% of cases". A run is decided where the gate would call it regressed or
would pass it, among K metrics of which this one has to be real at alpha / K (Holm's first step).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

import numpy as np

import evalguard
from benchmarks.differences import Array, Rng
from benchmarks.output import deliver
from benchmarks.tables import scored
from evalguard.core.pairing import PairedScores
from evalguard.core.verdict import Margin, decide
from evalguard.planning.metric_plan import MetricPlan, plan_metric
from evalguard.planning.pilot import pilot_of_comparison, pilot_of_scores
from evalguard.stats.binary import flip_estimate
from evalguard.stats.compare_scores import compare_documents
from evalguard.stats.drift import estimate_drift
from evalguard.stats.judgement import explain_undecided

SEED = 20261130
CONFIDENCE, ALPHA, POWER = 0.95, 0.025, 0.8
_RIGHT = 0.6  # of the base's answers

Answers = tuple[int, float]  # documents of a pilot, share of answers that flip
ANSWERS: tuple[Answers, ...] = (
    (64, 0.001), (64, 0.01), (64, 0.047), (64, 0.15),
    (300, 0.0005), (300, 0.0033), (300, 0.01), (300, 0.047), (300, 0.15),
    (1_319, 0.0005), (1_319, 0.0023), (1_319, 0.01), (1_319, 0.047), (1_319, 0.15),
)  # fmt: skip
# Pilots of the issue: documents, flips seen, true share.
SEEN: tuple[tuple[int, int, float], ...] = (
    (64, 0, 0.01), (64, 0, 0.047), (300, 1, 0.0033), (300, 1, 0.01), (1_319, 2, 0.0015),
    (1_319, 3, 0.0023),
)  # fmt: skip
_TOGETHER = 10  # documents of a cluster
DRIFTS = (0.0, 0.5, 1.0, 1.5, 2.0)  # in margins


def main() -> None:
    """Simulate; print the tables or write them to a file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, help="write the tables there")
    parser.add_argument(
        "--runs", type=int, default=2_000, help="runs of a pilot, at most 1,000,000"
    )
    parser.add_argument("--pilots", type=int, default=100, help="pilots of a row")
    options = parser.parse_args()
    deliver(report(options.runs, options.pilots), options.output)


def report(runs: int, pilots: int) -> Iterator[str]:
    """The page, line by line."""
    yield "# Whether plans keep their word"
    yield ""
    yield "`python -m benchmarks.planned_power --output benchmarks/results/planned_power.md`"
    yield ""
    yield (
        f"evalguard {evalguard.__version__}. {runs:,} runs of each of {pilots} pilots a row "
        f"({runs // 4:,} of other documents), seed {SEED}. 80% is "
        "promised; one-sided level 2.5% over K metrics."
    )
    yield ""
    yield "## Answers: documents that decide"
    yield ""
    yield (
        "The documents that `plan` and an undecided comparison ask for (mean of the pilots), and "
        "the share of runs of so many that are decided, at the least favourable true drift of 0, "
        "0.5, 1, 1.5 and 2 margins (never above the share that flips). *n of N flip*: only pilots "
        "that showed so many."
    )
    yield ""
    yield "| pilot | true share that flips | margin | K | documents | decided |"
    yield "|---|---|---|---|---|---|"
    rng = np.random.default_rng(SEED)
    for margin, metrics in ((0.01, 1), (0.01, 7), (0.03, 1)):
        for n, share in ANSWERS:
            flips = rng.binomial(n, share, pilots).tolist()
            yield _deciding_row(f"{n:,}", n, flips, share, margin, metrics, runs, rng)
        for n, seen, share in SEEN:
            name = f"{seen} of {n:,} flip"
            yield _deciding_row(name, n, [seen], share, margin, metrics, runs, rng)
    yield ""
    yield "## Answers: the drift that is seen, and that fails"
    yield ""
    yield (
        "*Seen*: the smallest drift that 1,319 planned documents show to be real. *Fails*: what an "
        "undecided comparison of the pilot's own documents says that such a run fails in 80% of "
        "cases. Shares of runs with that drift, of the share that flips or, where it is more, of "
        "the drift."
    )
    yield ""
    yield "| pilot | true share that flips | K | seen | fails |"
    yield "|---|---|---|---|---|"
    for metrics in (1, 7):
        for n, share in ANSWERS:
            flips = rng.binomial(n, share, pilots).tolist()
            yield _shown_row(f"{n:,}", n, flips, share, metrics, runs, rng)
        for n, seen, share in SEEN:
            yield _shown_row(f"{seen} of {n:,} flip", n, [seen], share, metrics, runs, rng)
    yield ""
    yield "## Other documents"
    yield ""
    yield (
        "*Seen* as above, from a pilot of 64; *fails* of runs of so many documents as the pilot "
        "has, with a margin of 0.5 sigma. *Not said*: pilots of which nothing is said, because so "
        "few documents carry the scatter (seen) or because it is skewed at all (fails); the shares "
        "are of the others."
    )
    yield ""
    yield "| differences | documents | seen by 1,319 | not said | fails | not said |"
    yield "|---|---|---|---|---|---|"
    for name, documents in POPULATIONS.items():
        for n in (50, 64, 200):
            yield _mean_row(name, documents, n, runs // 4, pilots, rng)
    yield ""
    yield "## Clusters of documents"
    yield ""
    yield (
        f"Clusters of {_TOGETHER} documents that drift alike, but for a little noise; {runs:,} "
        f"runs of each of {4 * pilots} pilots a row. *Fails* and *not said* as above, of runs of "
        "as many clusters; *seen* by four times as many, from a finished comparison (`plan --run`)."
    )
    yield ""
    yield "| differences | clusters | seen by four times as many | not said | fails | not said |"
    yield "|---|---|---|---|---|---|"
    rng = np.random.default_rng([SEED, _TOGETHER])
    for name in ("normal", "exponential gains", "lognormal(1) gains"):
        for count in (8, 12, 20, 30, 60, 130):
            yield _cluster_row(name, count, runs, 4 * pilots, rng)


def _answers(n: int, flips: int) -> PairedScores:
    """A pilot in which as many answers are lost as won."""
    base = (np.arange(n) < round(_RIGHT * n)).astype(np.float64)
    candidate = base.copy()
    candidate[: flips - flips // 2] = 0.0
    candidate[n - flips // 2 :] = 1.0
    return scored(base, candidate, "mean")


@cache
def _plan(n: int, flips: int, margin: float, metrics: int) -> MetricPlan:
    pairs = _answers(n, flips)
    comparison = compare_documents(pairs, confidence=CONFIDENCE).comparison
    return plan_metric(
        pilot_of_scores(pairs, comparison, confidence=CONFIDENCE),
        n=1_319,
        margin=Margin(margin, "points"),
        alpha=ALPHA,
        power=POWER,
        metrics=metrics,
    )


@cache
def _said_to_fail(n: int, flips: int, margin: float, metrics: int) -> float:
    """The drift that such a run is said to fail in 80% of cases."""
    one = compare_documents(_answers(n, flips), margin=Margin(margin, "points"))
    assert one.drift is not None
    assert one.tolerance is not None
    said = explain_undecided(
        one.drift, n=n, n_total=0, tolerance=one.tolerance, metrics=metrics, above=False
    ).detectable_change
    assert said is not None
    return said


@cache
def _judged(lost: int, won: int, n: int, margin: float, metrics: int) -> tuple[bool, bool, bool]:
    """Whether such a run is real, fails, and is decided."""
    found = flip_estimate(lost, won, n, confidence=CONFIDENCE)
    outcome = decide(found.point, found.low, found.high, margin).outcome
    real = found.p_value <= ALPHA / metrics
    decided = (
        outcome in ("improved", "unchanged")
        or real
        or (outcome == "degraded" and found.high < margin)
    )
    return real, real and outcome == "regressed", decided


def _runs(
    n: int, share: float, drift: float, margin: float, metrics: int, runs: int, rng: Rng
) -> Array:
    """Shares of runs that are real, that fail, that are decided; the share flips or the drift."""
    share = max(share, drift)
    lost = rng.binomial(n, (share + drift) / 2.0, runs)
    rest = (share - drift) / 2.0 / (1.0 - (share + drift) / 2.0)
    won = rng.binomial(n - lost, rest)
    pairs = zip(lost.tolist(), won.tolist(), strict=True)
    judged = np.array([_judged(b, c, n, margin, metrics) for b, c in pairs])
    means: Array = judged.mean(axis=0)
    return means


def _deciding_row(
    name: str, n: int, flips: Sequence[int], share: float, margin: float, metrics: int,
    runs: int, rng: Rng,
) -> str:  # fmt: skip
    asked, decided = [], []
    of_flips: dict[int, float] = {}
    for seen in flips:
        needed = _plan(n, seen, margin, metrics).needed_to_decide
        assert needed is not None
        asked.append(needed)
        if seen not in of_flips:
            of_flips[seen] = min(
                _runs(needed, share, min(d * margin, share), margin, metrics, runs, rng)[2]
                for d in DRIFTS
            )
        decided.append(of_flips[seen])
    return (
        f"| {name} | {share:.2%} | {margin:.0%} | {metrics} | {np.mean(asked):,.0f} | "
        f"{np.mean(decided):.0%} |"
    )


def _shown_row(
    name: str, n: int, flips: Sequence[int], share: float, metrics: int, runs: int, rng: Rng
) -> str:
    seen, fails = [], []
    of_flips: dict[int, tuple[float, float]] = {}
    for count in flips:
        if count not in of_flips:
            drift = _plan(n, count, 0.01, metrics).detectable_change
            assert drift is not None
            failing = _said_to_fail(n, count, 0.01, metrics)
            of_flips[count] = (
                float(_runs(1_319, share, drift, 0.01, metrics, runs, rng)[0]),
                float(_runs(n, share, failing, 0.01, metrics, runs, rng)[1]),
            )
        seen.append(of_flips[count][0])
        fails.append(of_flips[count][1])
    return f"| {name} | {share:.2%} | {metrics} | {np.mean(seen):.0%} | {np.mean(fails):.0%} |"


# Differences of documents about a drift of 0, each with one number of documents.
POPULATIONS: dict[str, Callable[[Rng, int], Array]] = {
    "normal": lambda rng, n: rng.normal(0.0, 1.0, n),
    "t3": lambda rng, n: rng.standard_t(3, n),
    "exponential gains": lambda rng, n: 1.0 - rng.exponential(1.0, n),
    "lognormal(1) gains": lambda rng, n: np.exp(0.5) - rng.lognormal(0.0, 1.0, n),
    "lognormal(1) losses": lambda rng, n: rng.lognormal(0.0, 1.0, n) - np.exp(0.5),
    "lognormal(1.5) gains": lambda rng, n: np.exp(1.125) - rng.lognormal(0.0, 1.5, n),
    "noise, 2% gain 5 sd": lambda rng, n: (
        0.1 + rng.normal(0.0, 1.0, n) - 5.0 * (rng.random(n) < 0.02)
    ),
    "95% identical, lognormal(1) gains": lambda rng, n: np.where(
        rng.random(n) < 0.05, np.exp(0.5) - rng.lognormal(0.0, 1.0, n), 0.0
    ),
}  # fmt: skip


def _mean_row(
    name: str, documents: Callable[[Rng, int], Array], n: int, runs: int, pilots: int, rng: Rng
) -> str:
    said_seen, said_failing = [], []
    for _ in range(pilots):
        one = compare_documents(_rewards(documents, n, rng), margin=0.5, confidence=CONFIDENCE)
        if one.drift is None or one.tolerance is None:  # nothing differs
            continue
        lacks = explain_undecided(
            one.drift, n=n, n_total=0, tolerance=one.tolerance, metrics=1, above=False
        )
        said_failing.append(lacks.detectable_change)
        if n == 64:
            pilot = pilot_of_scores(
                _rewards(documents, n, rng), one.comparison, confidence=CONFIDENCE
            )
            plan = plan_metric(pilot, n=1_319, margin=0.5, alpha=ALPHA, power=POWER)
            said_seen.append(plan.detectable_change)
    fails = _power(said_failing, documents, n, 0.5, runs, rng)
    seen = _power(said_seen, documents, 1_319, 0.0, runs, rng) if said_seen else "| "
    return f"| {name} | {n} | {seen} | {fails} |"


def _cluster_row(name: str, count: int, runs: int, pilots: int, rng: Rng) -> str:
    said_seen, said_failing, documents = [], [], POPULATIONS[name]
    for _ in range(pilots):
        pairs = _rewards(documents, count, rng, _TOGETHER)
        one = compare_documents(pairs, margin=0.5, confidence=CONFIDENCE)
        assert one.drift is not None
        assert one.tolerance is not None
        lacks = explain_undecided(
            one.drift, n=pairs.base.n, n_total=0, tolerance=one.tolerance, metrics=1, above=False
        )
        said_failing.append(lacks.detectable_change)
        pilot = pilot_of_comparison(one.comparison, confidence=CONFIDENCE)
        plan = plan_metric(pilot, n=4 * pairs.base.n, margin=0.5, alpha=ALPHA, power=POWER)
        said_seen.append(plan.detectable_change)
    fails = _power(said_failing, documents, count, 0.5, runs, rng, _TOGETHER)
    seen = _power(said_seen, documents, 4 * count, 0.0, runs, rng, _TOGETHER)
    return f"| {name} | {count} | {seen} | {fails} |"


def _power(
    said: Sequence[float | None], documents: Callable[[Rng, int], Array], n: int, margin: float,
    runs: int, rng: Rng, together: int = 1,
) -> str:  # fmt: skip
    """The share of runs with the drift that was said that show it, and of pilots without one."""
    found = [
        estimate_drift(_rewards(documents, n, rng, together), confidence=CONFIDENCE)
        for _ in range(runs)
    ]
    points = np.array([one.estimate.point for one in found])
    lows = np.array([one.estimate.low for one in found])
    tolerated = margin * np.array([one.unit for one in found])
    drifts = [drift for drift in said if drift is not None]
    if not drifts:
        return f"- | {1.0:.0%}"
    shown = [np.mean((lows + drift > 0.0) & (points + drift > tolerated)) for drift in drifts]
    return f"{np.mean(shown):.0%} | {1.0 - len(drifts) / len(said):.0%}"


def _rewards(
    documents: Callable[[Rng, int], Array], n: int, rng: Rng, together: int = 1
) -> PairedScores:
    """Documents, or n clusters of so many that drift alike."""
    base = rng.normal(0.0, 3.0, n * together)
    d = documents(rng, n)
    if together == 1:
        return scored(base, base - d, "mean")
    members = np.repeat(np.arange(n), together)
    d = d[members] + rng.normal(0.0, 0.5, members.size)
    return scored(base, base - d, "mean", clusters=members)


if __name__ == "__main__":
    main()
