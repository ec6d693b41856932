"""Aggregates of groups: strata of every kind, and intervals that hold the truth."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from paired_tables import paired
from scipy import stats

from evalguard.core.scores import TaskGroup
from evalguard.stats.compare_scores import compare_documents
from evalguard.stats.group import Subtask, compare_group
from evalguard.stats.sign_flip import sign_flip

RUNS = 300
MONTE_CARLO = 2.0 * math.sqrt(0.05 * 0.95 / RUNS)


def group_of(*pairs, weight_by_size=True, margin=1.0, **fields):
    """The aggregate over subtasks t0, t1, ... of (base, candidate) scores."""
    names = tuple(f"t{number}" for number in range(len(pairs)))
    hashes = [tuple(f"{name} {i}" for i in range(len(pair[0])))
              for name, pair in zip(names, pairs, strict=True)]  # fmt: skip
    subtasks = [
        Subtask(
            compared=compare_documents(
                paired(*pair, task=name, doc_hashes=own, **fields), margin=margin
            ),
            size=len(pair[0]),
        )
        for name, pair, own in zip(names, pairs, hashes, strict=True)
    ]
    group = TaskGroup(name="group", children=names, tasks=names)
    made = compare_group(
        group, subtasks, weight_by_size=weight_by_size, margin=margin, confidence=0.95
    )
    return made, subtasks


def levels(rng, n, drift, scale):
    base = rng.beta(2.0, 3.0, n)
    return base, base - drift - rng.normal(0.0, scale, n)


def answers(rng, n, lost, won):
    draw = rng.random(n)
    base = np.where(draw < lost, 1.0, np.where(draw < lost + won, 0.0, draw > 0.45))
    return base.astype(float), np.where(draw < lost + won, 1.0 - base, base).astype(float)


def test_two_subtasks_of_equal_weight_are_welch_s_test():
    rng = np.random.default_rng(1)
    one, two = levels(rng, 30, 0.02, 0.1), levels(rng, 50, 0.01, 0.3)
    got, _ = group_of(one, two, weight_by_size=False)
    differences = [base - candidate for base, candidate in (one, two)]
    welch = stats.ttest_ind(differences[0], -differences[1], equal_var=False)
    interval = welch.confidence_interval(0.95)
    c = got.comparison
    ends = [end / 2 / c.base_stderr for end in (interval.low, interval.high)]
    assert c.sigma_interval == pytest.approx(tuple(ends), rel=1e-9)
    assert c.p_value == pytest.approx(welch.pvalue / 2, rel=1e-9)


def test_one_subtask_alone_is_that_subtask():
    rng = np.random.default_rng(2)
    for scores in (levels(rng, 40, 0.02, 0.1), answers(rng, 60, 0.1, 0.05)):
        for by_size in (True, False):
            got, (alone,) = group_of(scores, weight_by_size=by_size)
            own = alone.comparison
            for name in ("base", "base_stderr", "candidate", "sigma", "paired_stderr"):
                assert getattr(got.comparison, name) == pytest.approx(getattr(own, name))


def test_documents_of_all_subtasks_carry_the_drift_together():
    rng = np.random.default_rng(3)
    pairs = [levels(rng, n, 0.02, 0.1) for n in (20, 50)]
    got, _ = group_of(*pairs)
    every = np.concatenate([base - candidate for base, candidate in pairs])
    assert got.contributions.total == pytest.approx(float(every.mean()), rel=1e-12)
    assert got.comparison.sigma == pytest.approx(every.mean() / got.comparison.base_stderr)
    (test,) = got.comparison.companions
    assert test.p_value == sign_flip(every).p_value
    rest = np.sort(np.abs(every))[::-1]
    largest = got.comparison.influence.documents[0]
    assert abs(largest.contribution) == pytest.approx(rest[0] / 70 / got.comparison.base_stderr)


def test_perplexities_add_up_on_their_own_scale():
    rng = np.random.default_rng(4)
    base = [-rng.gamma(2.0, 1.0, n) for n in (30, 60)]
    pairs = [(one, one - rng.normal(0.02, 0.05, one.shape[0])) for one in base]
    got, parts = group_of(*pairs, aggregation="perplexity")
    weights = np.array([30, 60]) / 90
    drift = weights @ [p.comparison.candidate - p.comparison.base for p in parts]
    assert got.comparison.sigma == pytest.approx(drift / got.comparison.base_stderr)
    assert got.contributions.total == pytest.approx(drift, rel=0.05)  # to first order


def test_clusters_of_a_subtask_count_as_they_do_there():
    rng = np.random.default_rng(5)
    pairs = [levels(rng, 60, 0.0, 0.1) for _ in range(2)]
    labels = tuple(str(i // 2) for i in range(60))
    got, parts = group_of(*pairs, clusters=labels)
    errors = [part.comparison.paired_stderr / 2 for part in parts]
    assert got.comparison.paired_stderr == pytest.approx(math.hypot(*errors), rel=1e-12)
    sums = [np.add.reduceat(b - c, range(0, 60, 2)) for b, c in pairs]
    assert got.comparison.companions[0].p_value == sign_flip(np.concatenate(sums)).p_value


def shared_documents(rng, n, scale=0.1):
    """Two subtasks that ask about the same n documents, in two templates."""
    base, own = rng.beta(2.0, 3.0, n), rng.normal(0.0, scale, n)
    return [(base, base - own - rng.normal(0.0, scale / 4, n)) for _ in range(2)]


def of_shared(pairs, hashes):
    subtasks = [
        Subtask(
            compared=compare_documents(paired(*pair, task=name, doc_hashes=hashes)),
            size=len(pair[0]),
        )
        for name, pair in zip("ab", pairs, strict=True)
    ]
    group = TaskGroup(name="group", children=("a", "b"), tasks=("a", "b"))
    return compare_group(
        group, subtasks, weight_by_size=True, margin=1.0, confidence=0.95
    ).comparison


def test_a_document_that_two_subtasks_share_counts_once_in_the_standard_error():
    pairs = shared_documents(np.random.default_rng(7), 40)
    got = of_shared(pairs, tuple(map(str, range(40))))
    of_documents = sum(base - candidate for base, candidate in pairs) / 2.0
    test = stats.ttest_1samp(of_documents, 0.0, alternative="greater")
    assert got.paired_stderr == pytest.approx(stats.sem(of_documents), rel=1e-12)
    assert got.p_value == pytest.approx(test.pvalue, rel=1e-9)
    assert "2 of the subtasks share documents" in " ".join(got.caveats)


@pytest.mark.slow
def test_intervals_over_shared_documents_hold_the_truth():
    rng, hashes = np.random.default_rng(8), tuple(map(str, range(40)))
    inside = [
        low <= 0.0 <= high
        for low, high in (
            of_shared(shared_documents(rng, 40), hashes).sigma_interval for _ in range(RUNS)
        )
    ]
    assert abs(np.mean(inside) - 0.95) <= 1.5 * MONTE_CARLO  # 84% were they taken as independent


def test_a_subtask_that_is_counted_twice_weighs_twice():
    rng = np.random.default_rng(9)
    pairs = [levels(rng, n, 0.02, 0.1) for n in (20, 50)]
    _, subtasks = group_of(*pairs)
    twice = [subtasks[0], replace(subtasks[1], times=2)]
    group = TaskGroup(
        name="g", children=("t0", "h"), tasks=("t0", "t1"), counted=("t0", "t1", "t1")
    )
    for by_size, weights in ((True, (20 / 120, 100 / 120)), (False, (1 / 3, 2 / 3))):
        got = compare_group(group, twice, weight_by_size=by_size, margin=1.0, confidence=0.95)
        parts = [subtask.comparison for subtask in subtasks]
        errors = [w * part.paired_stderr for w, part in zip(weights, parts, strict=True)]
        value = sum(w * part.base for w, part in zip(weights, parts, strict=True))
        assert got.comparison.base == pytest.approx(value, rel=1e-12)
        assert got.comparison.paired_stderr == pytest.approx(math.hypot(*errors), rel=1e-12)
        assert got.contributions.total / got.contributions.unit == pytest.approx(
            got.comparison.sigma, rel=1e-10
        )
        assert "(1 of them more than once)" in got.comparison.caveats[0]


def test_gains_and_losses_that_cancel_leave_no_drift_of_a_rounding_error():
    one, two = np.array([1.0, 0.0, 1.0, 0.0, 1.0]), np.array([1.0] * 9 + [0.0] * 24)
    won, lost = one.copy(), two.copy()
    won[1], lost[0] = 1.0, 0.0
    got, _ = group_of((one, won), (two, lost))
    assert got.comparison.sigma == 0.0


def test_a_base_that_is_always_right_has_no_unit():
    sure = np.ones(10)
    got, _ = group_of((sure, sure), (sure, np.where(np.arange(10) < 2, 0.0, 1.0)))
    assert got.comparison.outcome == "regressed"
    assert math.isinf(got.comparison.sigma)
    assert got.comparison.influence is None


def test_the_sentence_says_how_it_was_made():
    rng = np.random.default_rng(6)
    got, _ = group_of(*(levels(rng, 40, 0.3, 0.1) for _ in range(3)), weight_by_size=False)
    assert "by stratified t over the subtasks" in got.comparison.reason
    assert got.comparison.caveats[0] == (
        "aggregate of 3 subtasks, each counting alike, as lm-eval takes it; standard error of the "
        "drift stratified over subtasks"
    )


def sparse_answers(rng, n, truth):
    return answers(rng, n, 0.05 + truth / 2, 0.05 - truth / 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "by_size"),
    [
        ("answers", False),
        pytest.param("answers", True, marks=pytest.mark.nightly),
        pytest.param("levels", False, marks=pytest.mark.nightly),
        pytest.param("levels", True, marks=pytest.mark.nightly),
    ],
)
def test_intervals_of_aggregates_hold_the_truth_in_95_percent_of_runs(kind, by_size):
    rng = np.random.default_rng([7, by_size])
    sizes, truths = (25, 60, 120, 200), (0.06, -0.02, 0.02, 0.0)
    weights = np.array(sizes) / sum(sizes) if by_size else np.full(4, 0.25)
    truth = float(weights @ truths)
    held = rejected = 0
    for run in range(2 * RUNS):
        null = run >= RUNS
        pairs = [
            sparse_answers(rng, n, 0.0 if null else one)
            if kind == "answers"
            else levels(rng, n, 0.0 if null else one, 0.05 * (1 + n % 3))
            for n, one in zip(sizes, truths, strict=True)
        ]
        c = group_of(*pairs, weight_by_size=by_size)[0].comparison
        if null:
            rejected += c.p_value <= 0.05
        else:
            low, high = (end * c.base_stderr for end in c.sigma_interval)
            held += low <= truth <= high
    assert 0.935 - MONTE_CARLO <= held / RUNS <= 0.965 + MONTE_CARLO
    assert rejected / RUNS <= 0.055 + MONTE_CARLO
