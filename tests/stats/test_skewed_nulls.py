"""An unchanged candidate: most documents lose a little, and a few gain what makes up for it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from paired_tables import paired
from scipy import stats as scipy_stats
from skewed_documents import GAINS, corrected, drift

from evalguard.bisect.search.proof import paired_p
from evalguard.core.gate import Gate
from evalguard.core.scores import TaskGroup
from evalguard.stats.compare_scores import compare_documents, compare_scores
from evalguard.stats.group import Subtask, compare_group


def lognormal_gains(rng, spread, shape):
    centre = math.exp(spread * spread / 2.0)
    return centre - rng.lognormal(0.0, spread, shape)


@pytest.mark.parametrize(
    ("spread", "n", "at_most"),
    [(1.0, 50, 0.05), (1.0, 200, 0.04), (1.5, 200, 0.045), (2.0, 200, 0.08), (2.0, 1000, 0.055)],
)
def test_few_documents_that_gain_much_do_not_make_an_unchanged_candidate_worse(spread, n, at_most):
    rng = np.random.default_rng(14)
    runs = [drift(d) for d in lognormal_gains(rng, spread, (400, n))]
    real = np.mean([run.estimate.low > 0.0 for run in runs])
    plain = np.mean([(run.plain or run.estimate).low > 0.0 for run in runs])
    assert real <= at_most
    assert plain >= 1.5 * real


def few_gain(rng, n):
    """5% of the documents gain, and the others lose a little."""
    return np.where(rng.random(n) < 0.05, -rng.exponential(1.0, n), rng.normal(1 / 19, 0.02, n))


SKEWED_NULLS = {
    "exponential gains": lambda rng, n: 1.0 - rng.exponential(1.0, n),
    "Pareto gains": lambda rng, n: 1.0 / 1.2 - rng.pareto(2.2, n),
    "5% gain": few_gain,
    "lognormal gains with noise": lambda rng, n: (
        lognormal_gains(rng, 1.0, n) + 0.6 * rng.normal(size=n)
    ),
}


@pytest.mark.parametrize("shape", ["documents", "texts", "passages"])
@pytest.mark.parametrize("kind", SKEWED_NULLS)
def test_the_kind_of_gains_and_of_unit_does_not_matter(kind, shape):
    rng, n, real = np.random.default_rng(15), 150, []
    for _ in range(250):
        d, how = SKEWED_NULLS[kind](rng, n), {}
        if shape == "texts":
            how["weights"] = rng.integers(5, 40, n).astype(float)
            d = d * how["weights"]
        elif shape == "passages":
            d, how["clusters"] = np.repeat(d, 2), tuple(np.repeat(np.arange(n), 2).astype(str))
        real.append(drift(d, **how).estimate.low > 0.0)
    assert np.mean(real) <= 0.06  # 0.025, and more than three Monte Carlo errors


@pytest.mark.parametrize("draw", ["normal", "standard_t"])
@pytest.mark.parametrize("n", [50, 200])
def test_ordinary_drifts_are_seen_as_often_as_by_t(draw, n):
    rng = np.random.default_rng(13)
    d = rng.normal(size=(500, n)) if draw == "normal" else rng.standard_t(3, (500, n)) / 3.0**0.5
    runs = [drift(one + 2.8 / math.sqrt(n)) for one in d]
    seen = np.mean([run.estimate.low > 0.0 for run in runs])
    by_t = np.mean([(run.plain or run.estimate).low > 0.0 for run in runs])
    assert seen >= by_t - (0.025 if draw == "normal" else 0.06)


def test_the_gate_goes_by_the_careful_p_value():
    rng = np.random.default_rng(3)
    d = next(
        d
        for d in lognormal_gains(rng, 2.0, (200, 50))
        if (run := drift(d)).plain and run.plain.p_value < 0.01 and run.estimate.p_value > 0.06
    )
    base = rng.normal(size=50)
    got = compare_scores(paired(base, base - 10.0 * d))
    result = Gate().judge([got])
    assert result.state == "undecided"
    careless = replace(got, p_value=drift(d).plain.p_value)
    assert Gate().judge([careless]).state == "regressed"


def test_a_bisection_names_a_setting_by_the_same_p_value():
    assert paired_p(GAINS) == pytest.approx(drift(GAINS).estimate.p_value, rel=1e-9)
    d = np.random.default_rng(1).normal(0.1, 1.0, 200)
    expected = scipy_stats.ttest_1samp(d, 0.0, alternative="greater").pvalue
    assert paired_p(d) == pytest.approx(expected, rel=1e-9)


def grouped(parts):
    """The aggregate of a group of these subtasks' differences, each document weighing alike."""
    subtasks = []
    for number, d in enumerate(parts):
        names = tuple(f"{number}-{index}" for index in range(len(d)))
        fields = dict.fromkeys(("doc_hashes", "prompt_hashes", "target_hashes"), names)
        run = paired(
            np.arange(float(len(d))), np.arange(float(len(d))) - d, task=f"part {number}", **fields
        )
        subtasks.append(Subtask(compared=compare_documents(run), size=len(d)))
    names = tuple(f"part {number}" for number in range(len(parts)))
    group = TaskGroup(name="all", children=names, tasks=names)
    return compare_group(group, subtasks, weight_by_size=True, margin=1.0, confidence=0.95)


def test_a_group_of_skewed_subtasks_is_judged_as_carefully_as_its_documents_together():
    parts = [GAINS[:25], GAINS[25:]]
    got, together = grouped(parts).comparison, corrected(GAINS)
    assert got.method == "stratified-t-skew"
    (plain,) = (test for test in got.companions if test.method == "stratified-t")
    assert got.p_value > 1.5 * plain.p_value
    assert got.p_value == pytest.approx(together.p_value, rel=0.25)
    assert (got.sigma_interval[0] > 0.0) == (got.p_value < 0.025)
    assert any("interval and p are corrected for it" in text for text in got.caveats)
