"""Several metrics of one run: Holm, the joint null, and the false alarms of the margin rule."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial

import numpy as np

from benchmarks.answers import Answers
from benchmarks.differences import SEEN, Array, Rng
from benchmarks.outcomes import CONFIDENCE, MARGIN, Cell, Outcome
from benchmarks.tables import scored
from evalguard.core.comparison import Comparison
from evalguard.core.gate import Gate
from evalguard.core.paired_scores import PairedScores
from evalguard.run.gate_judgement import judge_comparisons
from evalguard.stats.compare_scores import compare_documents, compare_scores
from evalguard.stats.contributions import contributions
from evalguard.stats.drift import estimate_drift
from evalguard.stats.joint_null import across_tasks

_METRICS = 6
_TASKS = 3


def holm() -> Iterator[Cell]:
    """Holm's p-values of the gate, over metrics that share their documents.

    A rejection is one of a metric without a drift (null), or of one with it (power).
    """

    def simulate(n: int, drifting: int, null: bool, rng: Rng) -> Outcome:
        comparisons = _family(n, drifting, rng)
        adjusted = Gate(margin=MARGIN, confidence=CONFIDENCE).judge(comparisons).holm_p_values
        watched = adjusted[drifting:] if null else adjusted[:drifting]
        return Outcome(tests={"Holm": min(p for p in watched if p is not None)})

    for n in (50, 200, 2_000):
        for drifting, null in ((0, True), (3, True), (3, False)):
            yield Cell(
                data=f"{_METRICS} metrics, {drifting} of them drift", n=n, null=null,
                simulate=partial(simulate, n, drifting, null), cost=4 if n < 2_000 else 20,
            )  # fmt: skip


def _family(n: int, drifting: int, rng: Rng) -> list[Comparison]:
    """Metrics of which half the scatter is shared; every third is a 0/1 metric."""
    shared, comparisons = rng.normal(0.0, 1.0, n), []
    for number in range(_METRICS):
        drift = number < drifting
        if number % 3 == 2:
            sheet = Answers(accuracy=0.6, flips=0.1)
            base, candidate, _ = sheet.sample(rng, n, drift=drift)
        else:
            base = rng.normal(0.0, 3.0, n)
            d = (shared + rng.normal(0.0, 1.0, n)) / np.sqrt(2.0)
            candidate = base - d - (SEEN / np.sqrt(n) if drift else 0.0)
        paired = scored(base, candidate, "mean", metric=f"metric {number}")
        comparisons.append(compare_scores(paired, margin=MARGIN, confidence=CONFIDENCE))
    return comparisons


def joint_null() -> Iterator[Cell]:
    """Three tasks of two metrics together: one joint sign-flip null, and the pooled drift."""

    def simulate(n: int, drift: bool, rng: Rng) -> Outcome:
        metrics, truth = [], 0.0
        for task in range(_TASKS):
            drifts = drift and task == 0  # only one of the tasks
            for paired, mean in _of_one_task(n, task, drifts, rng):
                found = contributions(paired, estimate_drift(paired, confidence=CONFIDENCE))
                if found is None or found.unit == 0.0:
                    raise RuntimeError("a simulated metric has no standard error")
                metrics.append(found)
                truth += mean / found.unit / (2 * _TASKS)
        found = across_tasks(metrics, confidence=CONFIDENCE)
        tests = {
            "smallest of three": found.p_value, "pooled": found.pooled_p_value,
            "max-z": found.max_z_p_value, "Fisher": found.fisher_p_value,
        }  # fmt: skip
        low, high = found.pooled_interval
        return Outcome(tests=tests, truth=truth, low=low, high=high)

    for n in (50, 200, 2_000):
        for drift in (False, True):
            yield Cell(
                data=f"{_TASKS} tasks" + (", one drifts" if drift else ""), n=n, null=not drift,
                simulate=partial(simulate, n, drift), cost=4 if n < 2_000 else 20,
            )  # fmt: skip


def joint_gains() -> Iterator[Cell]:
    """Six metrics of unchanged candidates in which few documents gain much, as the gate sees them.

    Where a metric has so long a tail that it is left out, and fewer than two are left, p is 1.
    """

    def simulate(n: int, kind: str, rng: Rng) -> Outcome:
        shared, compared = _gains(kind, n, rng), []
        for number in range(_METRICS):
            own = _gains(kind, n, rng)
            d = -(0.7 * shared + 0.3 * own if number % 2 else own)
            base = rng.normal(0.0, 3.0, n)
            paired = scored(base, base - d, "mean", metric=f"metric {number}")
            compared.append(compare_documents(paired, margin=MARGIN, confidence=CONFIDENCE))
        gate = Gate(margin=MARGIN, confidence=CONFIDENCE)
        found = judge_comparisons(compared, gate=gate).across_tasks
        return Outcome(tests={"smallest of three": 1.0 if found is None else found.p_value})

    for n in (200, 2_000, 4_000):
        for kind in ("lognormal", "Pareto"):
            yield Cell(
                data=f"{_METRICS} metrics, {kind} gains", n=n, null=True, exchangeable=False,
                simulate=partial(simulate, n, kind), cost=4 if n < 2_000 else 20,
            )  # fmt: skip


def _gains(kind: str, n: int, rng: Rng) -> Array:
    """Gains of n documents, of mean 0: most lose a little, few gain much."""
    if kind == "lognormal":
        return rng.lognormal(0.0, 1.0, n) - np.exp(0.5)
    return rng.pareto(3.0, n) - 0.5


def _of_one_task(n: int, task: int, drift: bool, rng: Rng) -> Iterator[tuple[PairedScores, float]]:
    """Log-likelihoods, and answers that are right where these are high: the same documents."""
    name = f"task {task}"
    mean = SEEN / np.sqrt(n) if drift else 0.0
    base = rng.normal(-1.0, 3.0, n)
    candidate = base - mean - rng.standard_t(5, n) / np.sqrt(5.0 / 3.0)
    yield scored(base, candidate, "perplexity", task=name), float(mean)
    answers = [(side + rng.normal(0.0, 0.5, n) > -1.0).astype(float) for side in (base, candidate)]
    truth = _lost(float(mean)) if drift else 0.0
    yield scored(answers[0], answers[1], "mean", task=name, metric="acc"), truth


@cache
def _lost(mean: float) -> float:
    """Share of answers lost to a drift of the log-likelihood, by ten million draws."""
    rng = np.random.default_rng(0)
    base = rng.normal(0.0, 3.0, 10_000_000)
    shared = rng.standard_t(5, base.shape[0]) / np.sqrt(5.0 / 3.0)
    noise = rng.normal(0.0, 0.5, base.shape[0])
    return 0.5 - float(np.mean(base - mean - shared + noise > 0.0))


def false_alarms() -> Iterator[tuple[str, int, partial[tuple[float, bool]]]]:
    """Unchanged candidates: the probability printed, and whether the margin was crossed."""
    for accuracy, flips, n in ((0.6, 0.2, 1000), (0.3, 0.05, 2000), (0.9, 0.1, 200), (0.99, 0.01, 500), (0.9, 0.04, 50)):  # fmt: skip # noqa: E501
        answers = Answers(accuracy=accuracy, flips=flips)
        yield f"acc {accuracy:.0%}, {flips:.0%} flips", n, partial(_of_answers, answers, n)
    for scatter, n in ((0.5, 500), (0.5, 100), (0.5, 20), (0.8, 500), (0.3, 20)):
        name = f"perplexity, {scatter:.0%} of the base's scatter"
        yield name, n, partial(_of_likelihoods, scatter, n)


def _of_answers(answers: Answers, n: int, rng: Rng) -> tuple[float, bool]:
    base, candidate, _ = answers.sample(rng, n, drift=False)
    return _alarm(compare_scores(scored(base, candidate, "mean")))


def _of_likelihoods(scatter: float, n: int, rng: Rng) -> tuple[float, bool]:
    base = -rng.gamma(1.4, 1.0, n)
    candidate = base - rng.normal(0.0, scatter * np.sqrt(1.4), n)
    return _alarm(compare_scores(scored(base, candidate, "perplexity")))


def _alarm(comparison: Comparison) -> tuple[float, bool]:
    return comparison.false_alarm_probability or 0.0, comparison.outcome == "regressed"
