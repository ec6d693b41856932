"""Few differences: real only where their signs grant it, whatever their distribution."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from paired_tables import paired, score_table
from scipy import stats as scipy_stats

from evalguard.core.pairing import pair
from evalguard.core.scores import TaskGroup, rescoring
from evalguard.stats.compare_scores import compare_documents, compare_scores
from evalguard.stats.drift import estimate_drift as estimate
from evalguard.stats.group import Subtask, compare_group
from evalguard.stats.skewness import uncorrected

LEVEL = 0.025
# Values whose sums are exact: no rounding decides between equal sums.
EIGHTHS = st.integers(-16, 16).map(lambda number: number / 8.0)


def drift_of(d, *, base=None, **options):
    """What t and the signs grant; what a long tail takes away: test_stats_corrected_t.py."""
    base = np.arange(len(d)) % 3.0 if base is None else base
    found = estimate(paired(base, base - np.asarray(d, float), **options), confidence=0.95)
    return found.plain or found.estimate


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_fewer_than_six_documents_that_lose_alike_show_nothing(n):
    base = np.linspace(0.0, 1.0, n)
    got = compare_scores(paired(base, base - 5.0))
    assert (got.p_value, got.outcome, got.significant) == (0.5**n, "regressed", False)
    assert got.sigma_interval == (-math.inf, math.inf)
    assert "but its interval holds 0" in got.reason
    assert "joined with sign flips" in got.reason
    crossing = math.floor(n * (0.5 + 0.5 / got.sigma))
    assert got.false_alarm_probability == pytest.approx(scipy_stats.binom.sf(crossing, n, 0.5))
    assert any("any drift is possible" in caveat for caveat in got.caveats)


@pytest.mark.parametrize("gap", [0.0, 1e-16, 1e-9, 0.01])
def test_differences_that_are_nearly_equal_are_no_surer_than_equal_ones(gap):
    d = 1.0 + gap * np.arange(4)
    got = drift_of(d)
    assert (got.p_value, got.low, got.high) == (1 / 16, -math.inf, math.inf)


def test_from_six_documents_on_equal_losses_are_real():
    got = drift_of(np.ones(6))
    assert got.p_value == 1 / 64
    assert (got.low, got.high) == (1.0, 1.0)
    base = np.arange(6.0)
    assert compare_scores(paired(base, base - 0.01)).outcome == "degraded"


def symmetric_nulls(n):
    yield "two points", [-1.0, 1.0], [0.5, 0.5], n
    yield "three points", [-1.0, 0.0, 1.0], [0.4, 0.2, 0.4], n
    yield "five points", [-4.0, -1.0, 0.0, 1.0, 4.0], [0.1, 0.3, 0.2, 0.3, 0.1], n


@pytest.mark.parametrize("case", [*symmetric_nulls(4), *symmetric_nulls(6)], ids=str)
def test_no_symmetric_null_is_called_worse_more_often_than_the_level_says(case):
    """Exactly: over every sample that there can be, with its probability."""
    _, values, chances, n = case
    size = 0.0
    for sample in itertools.combinations_with_replacement(range(len(values)), n):
        d = np.array([values[index] for index in sample])
        counts = [sample.count(index) for index in range(len(values))]
        if d.any() and drift_of(d).p_value <= LEVEL:
            size += scipy_stats.multinomial.pmf(counts, n, chances)
    assert size <= LEVEL + 1e-12


@pytest.mark.parametrize("n", [7, 8, 11, 16])
def test_the_size_is_kept_where_student_s_t_alone_exceeds_it(n):
    signs = [np.repeat([1.0, -1.0], [n - lost, lost]) for lost in range(n + 1)]
    chance = [scipy_stats.binom.pmf(lost, n, 0.5) for lost in range(n + 1)]
    ours = sum(p for d, p in zip(signs, chance, strict=True) if drift_of(d).p_value <= LEVEL)
    assert ours <= LEVEL
    with np.errstate(all="ignore"):
        alone = sum(
            p
            for d, p in zip(signs, chance, strict=True)
            if d.mean() > 0
            and (np.ptp(d) == 0 or scipy_stats.ttest_1samp(d, 0, alternative="greater")[1] <= LEVEL)
        )
    assert alone > LEVEL or n == 16


@given(st.lists(EIGHTHS, min_size=2, max_size=12))
def test_the_p_value_is_the_larger_of_scipy_s_t_and_of_scipy_s_permutations(d):
    d = np.array(d)
    if not d.any():
        return
    assume(not set(d) <= {-1.0, 0.0, 1.0})  # of answers McNemar's mid-p decides
    got = drift_of(d)
    signs = np.array(list(itertools.product([1.0, -1.0], repeat=len(d))))
    by_signs = np.mean(signs @ d >= d.sum())
    if np.ptp(d) == 0.0:
        by_t = 0.0
    else:
        by_t = scipy_stats.ttest_1samp(d, 0.0, alternative="greater").pvalue
    assert got.p_value == pytest.approx(max(by_t, by_signs), rel=1e-12)


@given(
    st.lists(EIGHTHS, min_size=2, max_size=12),
    st.sampled_from([0.8, 0.9, 0.95, 0.99]),
)
def test_interval_and_test_of_both_sides_agree(d, confidence):
    d = np.array(d)
    if not d.any():
        return
    base = np.full(len(d), 0.3)  # no 0/1 metric, whatever d is
    level = (1.0 - confidence) / 2.0
    worse = estimate(paired(base, base - d), confidence=confidence).estimate
    better = estimate(paired(base, base + d), confidence=confidence).estimate
    assert (worse.low > 0.0) == (worse.p_value <= level)
    assert (worse.high < 0.0) == (better.p_value <= level)
    mirrored = (-worse.high, -worse.low)
    assert (better.low, better.high) == pytest.approx(mirrored, rel=1e-9, abs=1e-12)
    assert worse.low <= worse.point + 1e-12
    assert worse.high >= worse.point - 1e-12


def test_the_interval_of_ten_documents_holds_the_drifts_that_no_test_rejects():
    d = np.array([0.1, 0.9, -0.3, 1.4, 2.2, -0.1, 0.7, 5.0, 0.2, 0.4])
    got = drift_of(d)
    signs = np.array(list(itertools.product([1.0, -1.0], repeat=len(d))))

    def rejected(drift, side):
        rest = side * (d - drift)
        return np.mean(signs @ rest >= rest.sum() - 1e-12) <= LEVEL

    t_low, t_high = scipy_stats.ttest_1samp(d, 0.0).confidence_interval(0.95)
    for end, side, by_t in ((got.low, 1.0, t_low), (got.high, -1.0, t_high)):
        if end == pytest.approx(by_t, rel=1e-12):
            assert rejected(end - side * 1e-6, side)  # the signs alone would have been narrower
        else:
            assert rejected(end - side * 1e-6, side)
            assert not rejected(end + side * 1e-6, side)


def test_from_twenty_documents_that_differ_on_student_s_t_stands_alone():
    d = np.random.default_rng(5).normal(0.3, 1.0, 20)
    got = drift_of(d)
    assert got.method == "paired-t"
    expected = scipy_stats.ttest_1samp(d, 0.0, alternative="greater").pvalue
    assert got.p_value == pytest.approx(expected, rel=1e-12)
    assert drift_of(d[:19]).method == "paired-t-sign-flip"


def test_four_documents_of_hundreds_that_lose_alike_are_not_real():
    d = np.zeros(400)
    d[:4] = 1.0
    assert scipy_stats.ttest_1samp(d, 0.0, alternative="greater").pvalue < LEVEL
    got = drift_of(d)
    assert (got.p_value, got.low) == (1 / 16, 0.0)
    assert got.high == pytest.approx(scipy_stats.ttest_1samp(d, 0.0).confidence_interval().high)
    d[:6] = 1.0
    assert drift_of(d).low > 0.0


@pytest.mark.parametrize("others", [1, 5, 30])
def test_one_text_with_all_the_words_shows_nothing(others):
    weights = np.array([50.0, *np.zeros(others)])
    base = np.array([-100.0, *np.zeros(others)])
    for loss in (5.0, -5.0):
        cand = base - np.array([loss, *np.zeros(others)])
        got = compare_scores(
            pair(
                score_table(base, "bits_per_byte", weights=weights),
                score_table(cand, "bits_per_byte", weights=weights, source="model port"),
            )
        )
        assert got.p_value == (0.5 if loss > 0.0 else 1.0)
        assert not got.significant
        assert got.outcome != "improved"


def clustered(d, sizes):
    labels = np.repeat([f"passage {number}" for number in range(len(sizes))], sizes)
    base = np.zeros(len(labels))
    base[0] = 1.0
    tables = [
        score_table(values, clusters=tuple(labels), cluster_field="passage", source=name)
        for values, name in ((base, "a"), (base - np.repeat(d, sizes), "b"))
    ]
    return compare_scores(pair(*tables))


@pytest.mark.parametrize("count", [3, 5])
def test_few_passages_that_lose_alike_show_nothing(count):
    got = clustered(np.ones(count), [4] * count)
    assert (got.p_value, got.sigma_interval) == (0.5**count, (-math.inf, math.inf))


def test_passages_without_words_do_not_make_an_interval():
    weights = np.array([9.0, 9.0, *np.zeros(14)])
    base = np.where(weights > 0.0, -30.0, 0.0)
    cand = base - np.where(weights > 0.0, 3.0, 0.0)
    labels = tuple(str(number // 2) for number in range(16))
    tables = [
        score_table(values, "bits_per_byte", weights=weights, clusters=labels,
                    cluster_field="passage", source=name)
        for values, name in ((base, "a"), (cand, "b"))
    ]  # fmt: skip
    got = compare_scores(pair(*tables))
    assert (got.p_value, got.sigma_interval) == (0.5, (-math.inf, math.inf))


def test_four_passages_of_forty_that_lose_alike_are_not_real():
    d = np.zeros(40)
    d[:4] = 1.0
    got = clustered(d, [5] * 40)
    assert uncorrected(got.method) == "cluster-t-sign-flip"
    assert (got.p_value, got.sigma_interval[0]) == (1 / 16, 0.0)
    assert not got.significant


@pytest.mark.parametrize(("sizes", "real"), [((2, 2), False), ((2, 3), False), ((3, 3), True)])
def test_a_group_of_few_documents_is_no_surer_than_their_signs(sizes, real):
    names = tuple(f"task {number}" for number in range(len(sizes)))
    subtasks = []
    for name, size in zip(names, sizes, strict=True):
        base = np.arange(float(size))
        hashes = tuple(f"{name} {number}" for number in range(size))
        tables = [
            score_table(values, task=name, source=source, doc_hashes=hashes)
            for values, source in ((base, "a"), (base - 9.0, "b"))
        ]
        compared = compare_documents(pair(*tables))
        subtasks.append(Subtask(compared=compared, size=size))
    group = TaskGroup(name="group", children=names, tasks=names)
    got = compare_group(group, subtasks, weight_by_size=True, margin=1.0, confidence=0.95)
    assert got.comparison.p_value == 0.5 ** sum(sizes)
    assert got.comparison.outcome == "regressed"
    assert got.comparison.significant == real
    assert math.isinf(got.comparison.sigma_interval[1]) != real
    assert got.comparison.method == "stratified-t-sign-flip"


@pytest.mark.parametrize(("n", "real"), [(2, False), (3, False), (5, False), (7, True)])
def test_a_metric_that_is_no_mean_is_no_surer_than_swaps_of_its_documents(n, real):
    def table(values, source):
        def median(items):
            return float(np.median(items))

        return score_table(
            np.zeros(n), "other", metric="median", higher_is_better=True, source=source,
            rescoring=rescoring(list(values), "median", median),
        )  # fmt: skip

    base = np.linspace(10.0, 10.5, n)
    got = compare_scores(pair(table(base, "a"), table(base - 4.0, "b")))
    assert got.outcome == "regressed"
    assert got.p_value >= 0.5**n
    assert got.significant == real
    assert math.isinf(got.sigma_interval[1]) != real


def test_as_many_differences_that_agree_have_a_false_alarm_chance_of_their_signs():
    base = np.array([0.0, 0.0, 1.0, 1.0, 2.0, 2.0, 0.0, 2.0, 1.0, 1.0] * 3)
    drift = estimate(paired(base, base - 1.0), confidence=0.95)
    share = 0.5 + 0.5 * drift.unit
    expected = scipy_stats.binom.sf(math.floor(30 * share), 30, 0.5)
    assert drift.false_alarm_probability(1.0) == pytest.approx(expected, rel=1e-9)
    assert drift.false_alarm_probability(100.0) == 0.0


def test_a_text_as_long_as_all_others_together_is_no_surer_than_its_sign():
    """Symmetric differences in proportion to the length: t alone calls most of them real."""
    rng, runs = np.random.default_rng(20261122), 300
    words = np.array([*np.full(39, 10.0), 40_000.0])
    base = -2.0 * words
    ours = alone = 0
    for _ in range(runs):
        d = rng.normal(size=40) * words / 100.0
        got = estimate(
            paired(base, base - d, "weighted_perplexity", weights=words), confidence=0.95
        ).estimate
        ours += got.low > 0.0 or got.high < 0.0
        alone += abs(got.point) > scipy_stats.t.ppf(0.975, 39) * got.stderr
    assert ours / runs <= 0.05 + 2.6 * math.sqrt(0.05 * 0.95 / runs)
    assert alone / runs > 0.5


@pytest.mark.parametrize("aggregation", ["mean", "perplexity"])
def test_gains_and_losses_that_differ_in_their_last_bits_are_no_drift(aggregation):
    base = np.full(40, 0.7)
    base[::2] = 0.3
    cand = base + np.where(np.arange(40) % 2, 0.1, -0.1)
    assert math.fsum(base - cand) != 0.0
    for one, other in ((base, cand), (cand, base)):
        got = compare_scores(paired(one, other, aggregation), margin=0.0)
        assert (got.sigma, got.outcome) == (0.0, "undecided")
    cand[0] -= 1e-12
    assert compare_scores(paired(base, cand), margin=0.0).outcome == "regressed"


def test_a_share_of_a_drift_of_nearly_nothing_is_said_in_few_digits():
    d = np.random.default_rng(1).normal(0.0, 1.0, 60)
    d[0] = 1e6
    d[1] = -math.fsum([*d[:1], *d[2:]]) + 1e-9
    base = np.linspace(0.0, 1.0, 60)
    (told,) = [c for c in compare_scores(paired(base, base - d)).caveats if "heavy tails" in c]
    assert "times the total drift" in told
    assert len(told) < 200
