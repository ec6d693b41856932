from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import scipy.stats
from paired_tables import score_table

from evalguard.core.pairing import PairedScores, pair
from evalguard.core.scores import rescoring
from evalguard.errors import MisalignedRunsError
from evalguard.stats.bootstrap import paired_bootstrap
from evalguard.stats.compare_scores import compare_scores
from evalguard.stats.drift import estimate_drift

RNG = np.random.default_rng(31)
N = 120
BASE = RNG.gamma(2.0, 1.0, N)
CANDIDATE = BASE - RNG.gamma(1.0, 0.2, N) + 0.1


def mean_of(values):
    return lambda rows: float(np.mean(values[rows]))


def median(items):
    return sorted(items)[len(items) // 2]


def rescored(items, *, name="median", aggregate=median, source="model orig", **fields):
    template = score_table(np.zeros(len(items)), source=source)
    made = rescoring(items, name, aggregate)
    fields = {"metric": name, "aggregation": "other", "rescoring": made, **fields}
    return replace(template, **fields)


def compared(base, candidate, *, name="median", aggregate=median, margin=1.0, **fields):
    options = {"name": name, "aggregate": aggregate, **fields}
    run = pair(rescored(base, **options), rescored(candidate, source="model port", **options))
    return compare_scores(run, margin=margin)


def test_the_interval_is_scipys_bca():
    theirs = scipy.stats.bootstrap(
        (BASE, CANDIDATE),
        lambda a, b, axis: np.mean(a, axis=axis) - np.mean(b, axis=axis),
        paired=True,
        n_resamples=9_999,
        method="BCa",
        vectorized=True,
        rng=np.random.default_rng(1),
    )
    ours = paired_bootstrap(
        mean_of(BASE), mean_of(CANDIDATE), N, sign=-1, resamples=9_999, confidence=0.95
    ).estimate
    assert ours.point == pytest.approx(float(np.mean(BASE - CANDIDATE)), rel=1e-12)
    spread = theirs.standard_error
    assert ours.stderr == pytest.approx(spread, rel=0.03)
    assert ours.low == pytest.approx(theirs.confidence_interval.low, abs=0.1 * spread)
    assert ours.high == pytest.approx(theirs.confidence_interval.high, abs=0.1 * spread)


def test_of_a_mean_it_says_what_the_paired_t_test_says():
    run = PairedScores(
        base=score_table(BASE), candidate=score_table(CANDIDATE, source="model port")
    )
    by_t = estimate_drift(run, confidence=0.95)
    found = paired_bootstrap(
        mean_of(BASE), mean_of(CANDIDATE), N, sign=-1, resamples=4_000, confidence=0.95
    )
    assert found.estimate.point == pytest.approx(by_t.estimate.point, rel=1e-12)
    assert found.estimate.stderr == pytest.approx(by_t.estimate.stderr, rel=0.05)
    assert found.base.stderr == pytest.approx(by_t.base.stderr, rel=0.05)
    assert found.candidate.stderr == pytest.approx(by_t.candidate.stderr, rel=0.05)


@pytest.mark.parametrize("drift", [-0.1, 0.02, 0.05, 0.08])
def test_the_p_value_is_the_level_at_which_the_lower_limit_reaches_0(drift):
    values = BASE - drift - 0.3 * RNG.normal(0.0, 1.0, N)

    def estimate(confidence):
        return paired_bootstrap(
            mean_of(BASE), mean_of(values), N, sign=-1, resamples=2_000, confidence=confidence
        ).estimate

    p_value = estimate(0.95).p_value
    for level, real in ((1.3 * p_value + 0.002, True), (0.7 * p_value - 0.002, False)):
        if 0.0 < level < 0.5:
            assert (estimate(1.0 - 2.0 * level).low > 0.0) == real


def test_of_a_mean_of_few_documents_it_is_as_wide_as_the_t_interval():
    # the plain percentile interval of 8 documents is only 0.77 times as wide
    widths = []
    for seed in range(20):
        values = np.random.default_rng(seed).normal(0.0, 1.0, 8)
        got = paired_bootstrap(
            mean_of(np.zeros(8)), mean_of(values), 8, resamples=4_000, confidence=0.95
        ).estimate
        by_t = scipy.stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
        widths.append((got.high - got.low) / (by_t.high - by_t.low))
    assert np.median(widths) == pytest.approx(1.0, abs=0.07)


@pytest.mark.parametrize("tail", [1.0, -1.0])
@pytest.mark.parametrize("drift", [5.0, -5.0])
def test_a_drift_beyond_every_resample_has_a_p_value_whatever_the_acceleration(tail, drift):
    skewed = tail * np.random.default_rng(8).lognormal(0.0, 1.0, 60)
    got = paired_bootstrap(
        mean_of(np.zeros(60)), mean_of(drift + 0.5 * skewed), 60, resamples=200, confidence=0.95
    ).estimate
    assert got.p_value == pytest.approx(1.0 if drift < 0.0 else 0.0, abs=0.02)
    assert (got.low > 0.0, got.high < 0.0) == (drift > 0.0, drift < 0.0)


@pytest.mark.parametrize("resamples", [50, 200, 1_000])
def test_interval_and_p_value_never_contradict_each_other(resamples):
    rng = np.random.default_rng(resamples)
    seen = set()
    for seed in range(60):
        base = rng.gamma(2.0, 1.0, 40)
        candidate = base - rng.gamma(2.0, 0.3, 40) + rng.choice([0.4, 0.6, 0.8])
        for sides in ((base, candidate), (candidate, base)):
            got = paired_bootstrap(
                *map(mean_of, sides), 40, sign=-1, resamples=resamples, confidence=0.95, seed=seed
            ).estimate
            assert (got.low > 0.0) == (got.p_value <= 0.025)
            seen.add(got.low > 0.0)
    assert seen == {True, False}


def test_the_same_seed_gives_the_same_numbers():
    runs = [
        paired_bootstrap(mean_of(BASE), mean_of(CANDIDATE), N, resamples=50, confidence=0.9)
        for _ in range(2)
    ]
    assert runs[0] == runs[1]


def test_clusters_are_drawn_whole_and_the_unit_stays_that_of_documents():
    labels = tuple(str(row // 6) for row in range(N))
    shared = np.repeat(RNG.normal(0.0, 1.0, N // 6), 6)
    options = {"resamples": 1_000, "confidence": 0.95}
    alone = paired_bootstrap(mean_of(BASE), mean_of(BASE + shared), N, **options)
    whole = paired_bootstrap(mean_of(BASE), mean_of(BASE + shared), N, clusters=labels, **options)
    assert whole.estimate.stderr == pytest.approx(np.std(shared[::6]) / math.sqrt(20), rel=0.1)
    assert whole.estimate.stderr > 1.8 * alone.estimate.stderr
    assert whole.base.stderr == pytest.approx(alone.base.stderr, rel=0.1)


def test_a_metric_that_is_no_mean_is_compared_and_says_how():
    got = compared(BASE.tolist(), (BASE - 0.5).tolist())
    assert got.method == "paired-bootstrap-bca"
    assert got.sigma == pytest.approx(0.5 / got.base_stderr)
    assert (got.base, got.candidate) == (median(BASE.tolist()), median((BASE - 0.5).tolist()))
    assert got.outcome == "regressed"
    assert "paired BCa bootstrap" in got.reason
    (caveat,) = (text for text in got.caveats if "resamples" in text)
    assert "2,000 resamples" in caveat
    assert "seed" in caveat
    assert got.companions == ()


@pytest.mark.parametrize(("differing", "said"), [(12, True), (40, False)])
def test_few_documents_that_differ_are_a_caveat(differing, said):
    candidate = BASE.copy()
    candidate[:differing] -= 0.5
    got = compared(BASE.tolist(), candidate.tolist())
    (caveat,) = (text for text in got.caveats if "resamples" in text)
    assert ("only 12 documents differ" in caveat) == said


def test_few_resamples_of_a_costly_aggregation_are_a_caveat():
    got = compared(BASE.tolist(), CANDIDATE.tolist(), name="bleu")
    assert any("200 resamples" in text and "rough" in text for text in got.caveats)


def test_equal_items_are_bit_identical_and_others_with_the_same_metric_are_not():
    same = compared(BASE.tolist(), BASE.tolist())
    assert (same.outcome, same.bit_identical, same.p_value) == ("unchanged", True, 1.0)
    assert same.sigma_interval == (0.0, 0.0)
    constant = {"aggregate": lambda items: 1.0, "name": "mine"}
    got = compared(BASE.tolist(), CANDIDATE.tolist(), **constant)
    assert (got.bit_identical, got.sigma) == (False, 0.0)


def test_swapping_the_sides_negates_the_drift():
    forth = compared(BASE.tolist(), CANDIDATE.tolist())
    back = compared(CANDIDATE.tolist(), BASE.tolist())
    assert back.base - back.candidate == forth.candidate - forth.base
    assert back.sigma * back.base_stderr == pytest.approx(-forth.sigma * forth.base_stderr)


def test_the_order_of_a_runs_documents_changes_nothing():
    base, candidate = rescored(BASE.tolist()), rescored(CANDIDATE.tolist())
    order = RNG.permutation(N)
    shuffled = rescored(
        CANDIDATE[order].tolist(),
        doc_ids=order,
        **{
            name: tuple(getattr(candidate, name)[row] for row in order)
            for name in ("doc_hashes", "prompt_hashes", "target_hashes", "token_hashes")
        },
    )
    expected, got = compare_scores(pair(base, candidate)), compare_scores(pair(base, shuffled))
    assert got.sigma_interval == expected.sigma_interval
    assert got.p_value == expected.p_value


def test_an_aggregation_without_a_number_gives_none():
    got = compared(BASE.tolist(), CANDIDATE.tolist(), name="mine", aggregate=lambda items: math.nan)
    assert got.outcome == "failed"
    assert "aggregation gives no number" in got.reason


def test_a_document_without_a_sound_answer_fails_the_metric():
    base = rescored(BASE.tolist())
    values = np.zeros(N)
    values[3] = math.nan
    got = compare_scores(pair(base, rescored(CANDIDATE.tolist(), values=values)))
    assert got.outcome == "failed"
    assert "doc_id 3" in got.reason


def test_different_aggregations_of_one_metric_are_refused():
    with pytest.raises(MisalignedRunsError, match="aggregation is 'median' in"):
        pair(rescored([1.0, 2.0]), rescored([1.0, 2.0], name="mine", metric="median"))


@pytest.mark.parametrize("clusters", [False, True])
def test_95_percent_intervals_of_a_mean_hold_the_truth(clusters):
    runs, truth, held, n = 250, 0.1, 0, 120
    rng = np.random.default_rng(9)
    labels = tuple(str(row // 3) for row in range(n)) if clusters else ()
    for seed in range(runs):
        shared = np.repeat(rng.gamma(2.0, 0.1, n // 3) - 0.2, 3) if clusters else 0.0
        d = truth + shared + rng.normal(0.0, 0.3, n)
        found = paired_bootstrap(
            mean_of(np.zeros(n)), mean_of(d), n,
            resamples=300, confidence=0.95, clusters=labels, seed=seed,
        )  # fmt: skip
        held += found.estimate.low <= truth <= found.estimate.high
    assert 0.905 <= held / runs <= 0.985
