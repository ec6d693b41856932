"""Several metrics of one run: Holm, and the false alarms of the margin rule."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from benchmarks.answers import Answers
from benchmarks.differences import SEEN, Rng
from benchmarks.outcomes import CONFIDENCE, MARGIN, Cell, Outcome
from benchmarks.tables import scored
from evalguard.core.comparison import Comparison
from evalguard.core.gate import Gate
from evalguard.stats.compare_scores import compare_scores

_METRICS = 6


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
