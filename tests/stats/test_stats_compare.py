from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from paired_tables import METRICS, WEIGHTED, paired, score_table
from scipy import integrate
from scipy import stats as scipy_stats

from evalguard.core.pairing import pair
from evalguard.core.verdict import Margin
from evalguard.stats.binary import mcnemar_exact, mcnemar_mid_p
from evalguard.stats.compare_scores import compare_documents, compare_scores, failed_comparison

RNG = np.random.default_rng(7)
N = 400
BASE = -RNG.gamma(1.4, 1.0, N)
NOISE = RNG.normal(0.0, 1.0, N)
NOISE -= NOISE.mean()
WEIGHTS = RNG.integers(4, 60, N).astype(float)
STDERR = float(np.std(BASE, ddof=1) / math.sqrt(N))


def shifted(sigma: float, scatter: float) -> np.ndarray:
    """A candidate that is worse by ``sigma`` on average, with paired scatter in base stderrs."""
    unit_noise = NOISE / (np.std(NOISE, ddof=1) / math.sqrt(N))
    return BASE - STDERR * (sigma + scatter * unit_noise)


def compared(cand, aggregation="mean", base=BASE, **options):
    weights = WEIGHTS[: len(base)] if aggregation in WEIGHTED else None
    return compare_scores(paired(base, cand, aggregation, weights=weights), **options)


@pytest.mark.parametrize(
    ("sigma", "scatter", "outcome", "significant", "certain"),
    [
        (1.5, 0.1, "regressed", True, True),
        (1.5, 0.5, "regressed", True, False),
        (1.5, 1.5, "regressed", False, False),
        (0.5, 0.1, "degraded", True, False),
        (-0.5, 0.1, "improved", False, False),
        (0.1, 0.2, "unchanged", False, False),
        (0.5, 0.5, "undecided", False, False),
    ],
)
def test_every_outcome_comes_from_documents(sigma, scatter, outcome, significant, certain):
    got = compared(shifted(sigma, scatter))
    assert got.sigma == pytest.approx(sigma)
    assert (got.outcome, got.significant, got.certain) == (outcome, significant, certain)
    assert "paired t" in got.reason
    assert "n = 400" in got.reason


def test_the_numbers_of_a_comparison_belong_together():
    got = compared(shifted(0.5, 0.1), "perplexity", margin=0.4, confidence=0.9)
    assert (got.task, got.filter, got.metric) == ("passages", "none", "perplexity")
    assert (got.n, got.n_used, got.confidence) == (N, N, 0.9)
    assert got.sigma == pytest.approx((got.candidate - got.base) / got.base_stderr)
    assert got.sigma_interval[0] < got.sigma < got.sigma_interval[1]
    assert got.outcome == "regressed"
    assert got.false_alarm_probability == pytest.approx(3.2e-5, rel=0.2)  # 1 - Phi(4)


@pytest.mark.parametrize("aggregation", METRICS)
def test_a_model_against_itself_is_bit_identical_and_unchanged(aggregation):
    got = compared(BASE.copy(), aggregation)
    assert (got.outcome, got.bit_identical, got.p_value) == ("unchanged", True, 1.0)
    assert (got.sigma, got.sigma_interval) == (0.0, (0.0, 0.0))
    assert (got.paired_stderr, got.false_alarm_probability) == (0.0, 0.0)
    assert "bit-identical" in got.reason


def test_identical_answers_are_unchanged_even_under_a_margin_of_zero():
    right = (NOISE > 0).astype(float)
    got = compared(right, base=right, margin=0.0)
    assert (got.outcome, got.bit_identical, got.flips) == ("unchanged", True, (0, 0))
    assert (got.p_value, got.sigma_interval, got.paired_stderr) == (1.0, (0.0, 0.0), 0.0)


any_scores = arrays(float, st.integers(2, 30), elements=st.floats(-1e6, 1e6))


@given(any_scores, st.sampled_from(["mean", "perplexity"]), st.floats(0.0, 3.0))
def test_a_model_against_itself_never_regresses(values, aggregation, margin):
    got = compared(values.copy(), aggregation, base=values, margin=margin)
    assert (got.outcome, got.sigma) == ("unchanged", 0.0)


@given(any_scores, st.randoms(use_true_random=False), st.sampled_from(list(METRICS)))
def test_the_order_of_documents_changes_no_bit_of_the_comparison(values, random, aggregation):
    order = list(range(len(values)))
    random.shuffle(order)
    weights = WEIGHTS[: len(values)] if aggregation in WEIGHTED else None
    cand = values - NOISE[: len(values)]
    tables = [
        score_table(side, aggregation, weights=weights, source=name)
        for side, name in ((values, "a"), (cand, "b"))
    ]
    expected = compare_scores(pair(*tables))
    relabelled = [  # the same documents under other ids, and so in another order
        replace(
            table, values=table.values[order], weights=None if weights is None else weights[order]
        )
        for table in tables
    ]
    got = compare_scores(pair(*relabelled))
    # which documents they are is all that is otherwise
    assert replace(got, influence=None) == replace(expected, influence=None)
    assert unnamed(got.influence) == unnamed(expected.influence)


def unnamed(influence):
    """An influence without the names of its documents."""
    if influence is None:
        return None
    contributions = tuple((one.contribution, one.share) for one in influence.documents)
    return replace(influence, documents=()), contributions


def test_flips_p_and_mid_p_of_a_binary_metric_are_shown_together():
    base = (NOISE > 0).astype(float)
    cand = base.copy()
    cand[np.flatnonzero(base == 1)[:14]] = 0.0
    cand[np.flatnonzero(base == 0)[:5]] = 1.0
    got = compared(cand, base=base)
    assert got.flips == (14, 5)
    assert got.method == "mcnemar-mid-p"
    assert got.p_value == got.mid_p_value == mcnemar_mid_p(14, 5)
    assert got.exact_p_value == mcnemar_exact(14, 5)
    assert "documents lost: 14, won: 5, McNemar's mid-p one-sided p = 0.0207" in got.reason
    assert "exact p = 0.0318" in got.reason
    assert "Tango" in got.reason
    assert compared(shifted(0.5, 0.1)).mid_p_value is None


@pytest.mark.parametrize(
    ("sigma", "scatter", "said"),
    [
        (1.0004, 0.1, "worse by 1.0004 standard errors of the base, above the margin of 1"),
        (0.9996, 0.1, "worse by 0.9996 standard errors of the base: real, but within the margin"),
        (0.9, 0.1, "real, but within the margin of 1, although its interval reaches above"),
        (0.7, 0.1, "real, but within the margin of 1 (95%"),
    ],
)
def test_no_number_of_a_reason_lies_on_the_other_side_of_the_margin(sigma, scatter, said):
    assert said in compared(shifted(sigma, scatter)).reason


def test_the_ends_of_an_interval_stay_on_their_side_of_the_margin_in_words():
    cand = shifted(0.1, 0.2)
    high = compared(cand).sigma_interval[1]
    below, above = compared(cand, margin=high * 1.0002), compared(cand, margin=high * 0.9998)
    assert (below.outcome, above.outcome) == ("unchanged", "undecided")
    for got, margin in ((below, high * 1.0002), (above, high * 0.9998)):
        shown = float(got.reason.split("% interval ")[1].split(" to ")[1].split(" by ")[0])
        assert (shown < margin) == (high < margin)


def test_a_part_of_the_tasks_documents_is_told_and_is_no_caveat():
    table = score_table(BASE, n_total=500)
    cand = score_table(shifted(0.5, 0.5), n_total=500)
    got = compare_scores(pair(table, cand))
    assert got.provenance == ("only 400 of the task's 500 documents were scored",)


def test_a_base_without_scatter_makes_a_loss_infinite_and_regressed():
    base = np.ones(N)
    cand = base.copy()
    cand[:30] = 0.0
    got = compared(cand, base=base)
    assert (got.outcome, got.sigma, got.significant) == ("regressed", math.inf, True)
    assert got.sigma_interval == (math.inf, math.inf)
    assert "the base's standard error is 0" in got.reason
    cand[1:] = 1.0
    single = compared(cand, base=base)
    assert (single.outcome, single.sigma, single.significant) == ("regressed", math.inf, False)
    assert "may still be chance" in single.reason
    # more lost than won, of a mean that one flip leaves open: scipy's gamma(2) and skellam
    assert single.false_alarm_probability == pytest.approx(0.3075, abs=1e-3)


@pytest.mark.parametrize(
    ("gains", "outcome", "high"),
    # five gains are real by the mid-p (1/64); four are not, and one says nothing
    [(5, "improved", -math.inf), (4, "unchanged", 0.0), (1, "undecided", math.inf)],
)
def test_a_base_without_scatter_makes_a_gain_infinite_and_improved_only_if_it_is_real(
    gains, outcome, high
):
    cand = np.zeros(N)
    cand[:gains] = 1.0
    got = compared(cand, base=np.zeros(N))
    assert (got.outcome, got.sigma) == (outcome, -math.inf)
    assert got.sigma_interval == (-math.inf, high)
    assert "the base's standard error is 0" in got.reason


@pytest.mark.parametrize("n", [2, 5, 10, 11, 26, 36, 44, 50, 52, 1319, 5153])
@pytest.mark.parametrize("wrong", [1, -1])
def test_a_drift_of_exactly_the_margin_never_regresses_whatever_the_last_bit_says(n, wrong):
    # with one document unlike the others, SE_base is 1 / n and one lost document is 1 sigma
    base = np.ones(n)
    base[:wrong] = 0.0
    cand = base.copy()
    cand[-1] = 0.0
    got = compared(cand, base=base)
    assert got.sigma == pytest.approx(1.0, rel=1e-14)
    assert got.outcome == "undecided"


@pytest.mark.parametrize(
    ("step", "p_value", "outcome"), [(8, 0.5**N, "degraded"), (-8, 1.0, "improved")]
)
def test_a_constant_difference_has_a_point_for_an_interval(step, p_value, outcome):
    base = np.arange(float(N))
    got = compared(base - step / 8, base=base)
    assert got.paired_stderr == 0.0
    assert got.sigma_interval == (got.sigma, got.sigma)
    assert (got.p_value, got.outcome, got.false_alarm_probability) == (p_value, outcome, 0.0)
    assert not got.bit_identical
    assert "one-sided p " + ("= 3.87e-121" if step > 0 else "= 1") in got.reason


@pytest.mark.parametrize("n", [3, 10])
def test_what_rounding_leaves_of_a_constant_difference_is_no_scatter(n):
    base = np.linspace(0.0, 1.0, n)
    got = compared(base - 0.05, base=base)
    assert any(f"all {n} documents drift alike" in caveat for caveat in got.caveats)
    assert not any("skewed" in caveat for caveat in got.caveats)


@pytest.mark.parametrize("n", [0, 1])
def test_fewer_than_two_documents_fail(n):
    got = compared(np.zeros(n), base=np.ones(n))
    assert got.outcome == "failed"
    assert f"at least 2 documents, and there {'is' if n == 1 else 'are'} {n}" in got.reason
    assert (got.n, got.n_used, got.sigma, got.sigma_interval) == (n, 0, None, None)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e300])
@pytest.mark.parametrize("side", ["model orig", "model port"])
@pytest.mark.parametrize("aggregation", METRICS)
def test_scores_that_are_no_numbers_fail_with_count_and_first_document(bad, side, aggregation):
    values = BASE.copy()
    values[[17, 300]] = bad
    sides = (values, BASE) if side == "model orig" else (BASE, values)
    got = compared(sides[1], aggregation, base=sides[0])
    assert got.outcome == "failed"
    assert (
        f"2 of 400 documents of {side} have NaN or infinite scores (first: doc_id 17" in got.reason
    )
    assert got.p_value is got.base is got.false_alarm_probability is None


def test_both_tables_report_their_own_bad_scores():
    base, cand = BASE.copy(), BASE.copy()
    base[3] = cand[5] = math.nan
    reason = compared(cand, base=base).reason
    assert "model orig have NaN or infinite scores (first: doc_id 3" in reason
    assert "model port have NaN or infinite scores (first: doc_id 5" in reason


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.zeros(N), "weights sum to 0"),
        (np.where(np.arange(N) == 4, -1.0, 5.0), "1 of 400 documents have a weight.*doc_id 4"),
        (np.where(np.arange(N) >= 9, np.nan, 5.0), "391 of 400 documents.*doc_id 9"),
    ],
)
def test_useless_weights_fail(weights, message):
    got = compare_scores(paired(BASE, shifted(1, 1), "weighted_perplexity", weights=weights))
    assert got.outcome == "failed"
    assert_matches(got.reason, message)


def test_a_drift_beyond_double_precision_fails():
    weights = np.full(N, 1e-200)
    got = compare_scores(paired(BASE * 1e148, BASE * 2e148, "bits_per_byte", weights=weights))
    assert got.outcome == "failed"
    assert "overflows" in got.reason


def test_an_infinite_perplexity_is_a_caveat_and_a_certain_regression():
    got = compared(BASE - 1000.0, "perplexity")
    assert (got.outcome, got.certain) == ("regressed", True)
    assert got.candidate == got.sigma == math.inf
    assert "the candidate's perplexity overflows and counts as infinite" in got.caveats


@pytest.mark.parametrize("aggregation", METRICS)
def test_only_metrics_without_a_stderr_in_lm_eval_say_how_it_was_computed(aggregation):
    provenance = compared(shifted(0.5, 0.1), aggregation).provenance
    told = any("lm-eval reports no standard error" in text for text in provenance)
    assert told == (aggregation in WEIGHTED)


def test_a_few_documents_that_carry_the_drift_are_flagged():
    cand = BASE - 0.001 * NOISE
    cand[[5, 50, 250]] -= 3.0
    flagged = [c for c in compared(cand, margin=0.1).caveats if "heavy tails" in c]
    assert flagged
    assert_matches(flagged[0], r"the 4 most affected of 400 documents carry \d+% of the total")
    assert not any("heavy" in c for c in compared(shifted(1.5, 0.1)).caveats)


@pytest.mark.parametrize(("sign", "side"), [(1.0, "worse"), (-1.0, "better")])
def test_differences_too_skewed_for_a_t_interval_say_where_the_truth_may_lie(sign, side):
    loss = np.zeros(N)
    loss[::40] = np.arange(1.0, 11.0) / 50.0  # 97.5% of the documents are the same
    got = compared(BASE - sign * loss, "perplexity", margin=9.0)
    skewed = [caveat for caveat in got.caveats if "skewed" in caveat]
    assert len(skewed) == 1
    assert (
        f"a true drift {side} than the whole interval is likelier than its confidence says"
        in skewed[0]
    )
    assert "here 400" in skewed[0]
    for aggregation in METRICS:
        assert not any("skewed" in c for c in compared(shifted(0.5, 0.1), aggregation).caveats)


def test_texts_too_few_or_too_unequal_for_a_ratio_say_so():
    weights = WEIGHTS.copy()
    weights[:2] = 20_000.0  # two books among paragraphs
    pairs = {"few": slice(0, 12), "unequal": slice(0, N), "even": slice(2, N)}
    found = {
        name: compare_scores(
            paired(BASE[rows], shifted(1, 1)[rows], "weighted_perplexity", weights=weights[rows])
        ).caveats
        for name, rows in pairs.items()
    }
    told = {name: [c for c in caveats if "unequal texts" in c] for name, caveats in found.items()}
    assert "12 documents weigh like" in told["few"][0]
    assert "400 documents weigh like 3 of one length" in told["unequal"][0]
    assert told["even"] == []


def test_a_drift_without_scatter_says_so_and_bit_identity_does_not():
    base = np.arange(float(N))
    assert any("drift alike" in c for c in compared(base - 0.125, base=base).caveats)
    assert compared(base.copy(), base=base).caveats == ()


def test_caveats_of_both_tables_are_carried_once():
    base = score_table(BASE, caveats=("few-shot examples differ", "3 documents truncated"))
    cand = score_table(shifted(1, 1), caveats=("3 documents truncated", "mixed precision"))
    expected = ("few-shot examples differ", "3 documents truncated", "mixed precision")
    assert compare_scores(pair(base, cand)).caveats == expected
    broken = replace(cand, values=np.full(N, math.nan))
    assert compare_scores(pair(base, broken)).caveats == expected


def test_a_declared_difference_becomes_a_caveat():
    hashes = tuple(f"other-{i}" for i in range(N))
    cand = score_table(shifted(1, 1), token_hashes=hashes)
    got = compare_scores(pair(score_table(BASE), cand, allow=frozenset({"tokens"})))
    assert "token ids differ in 400 of 400 documents, as declared" in got.caveats


def test_a_failed_comparison_can_be_made_from_a_table_or_a_key():
    of_table = failed_comparison(score_table(BASE, "perplexity"), "the worker died")
    assert (of_table.task, of_table.metric, of_table.n) == ("passages", "perplexity", N)
    assert of_table.higher_is_better is False
    of_key = failed_comparison(("arc", "none", "acc"), "the task crashed", caveats=("late",))
    assert (of_key.task, of_key.filter, of_key.metric) == ("arc", "none", "acc")
    assert of_key.caveats == ("late",)
    for got in (of_table, of_key):
        assert (got.outcome, got.n_used, got.method) == ("failed", 0, "none")
        assert got.base is got.candidate is got.sigma is got.p_value is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"margin": -1.0}, "margin"),
        ({"margin": math.nan}, "margin"),
        ({"confidence": 1.0}, "confidence"),
        ({"confidence": 0.0}, "confidence"),
        ({"confidence": math.nan}, "confidence"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        compared(shifted(1, 1), **options)


def assert_matches(text: str, pattern: str) -> None:
    with pytest.raises(ValueError, match=pattern):
        raise ValueError(text)


def test_a_perplexity_known_to_a_third_says_that_its_error_is_understated():
    wild = BASE + 8.0 * NOISE
    told = [c for c in compared(wild - 0.1, "perplexity", base=wild).caveats if "delta" in c]
    assert told
    assert_matches(told[0], r"the base's perplexity is known to [\d.]+% only")
    assert not any("delta method" in c for c in compared(shifted(0.5, 0.1), "perplexity").caveats)


@pytest.mark.parametrize(("n", "right", "room"), [(50, 35, True), (2000, 1400, False)])
def test_answers_that_did_not_flip_may_be_too_few_to_exclude_a_drift(n, right, room):
    answers = np.zeros(n)
    answers[:right] = 1.0
    got = compare_scores(paired(answers, answers))
    assert (got.outcome, got.bit_identical, got.sigma_interval) == ("unchanged", True, (0.0, 0.0))
    said = [caveat for caveat in got.caveats if "no answer flipped" in caveat]
    assert len(said) == room
    if room:  # 1.96^2 / (50 + 1.96^2)
        assert "up to 7.1 percentage points" in said[0]


def test_a_margin_in_points_or_relative_decides_as_its_amount_in_sigma_does():
    rng = np.random.default_rng(5)
    base = (rng.random(400) < 0.7).astype(float)
    cand = np.where(rng.random(400) < 0.03, 1.0 - base, base)
    plain = compared(cand, base=base)
    stderr, lost = plain.base_stderr, plain.base - plain.candidate
    for text, amount in (("0.5pp", 0.005), ("3pp", 0.03), ("1%", 0.01 * plain.base)):
        found = compared(cand, base=base, margin=Margin.parse(text))
        assert found.margin == pytest.approx(amount / stderr)
        assert found.margin_text == text
        assert found.sigma == plain.sigma
        in_sigma = compared(cand, base=base, margin=found.margin)
        assert found.outcome == in_sigma.outcome
        assert f"the margin of {text} ({found.margin:.3g})" in found.reason
        assert f"the margin of {found.margin:.12g}" in in_sigma.reason
        assert (found.outcome == "regressed") == (lost > amount + 1e-9)


def test_points_of_a_perplexity_are_no_number_and_a_share_of_it_is_one():
    refused = compared(BASE - 0.1, "perplexity", margin=Margin.parse("1pp"))
    assert refused.outcome == "failed"
    assert "in % or sigma" in refused.reason
    share = compared(BASE - 0.1, "perplexity", margin=Margin.parse("5%"))
    assert share.outcome == "regressed"  # by exp(0.1) - 1, which is 10.5%
    assert compared(BASE - 0.1, "perplexity", margin=Margin.parse("11%")).outcome == "degraded"


@pytest.mark.parametrize("scores", [[0.1, 0.2, -0.3], [0.7, -0.7], [1.1, 2.2, -3.3], [1e-9, -1e-9]])
def test_a_base_that_is_0_but_for_rounding_has_no_percents(scores):
    base = np.array(scores * 20)
    one = compare_documents(paired(base, base - 0.1), margin=Margin.parse("2%"))
    assert one.comparison.outcome == "failed"
    assert "the base's value is 0, and 2% of it is nothing" in one.comparison.reason


@pytest.mark.parametrize(
    ("shift", "outcome"), [(0.0, "unchanged"), (0.01, "degraded"), (0.05, "regressed")]
)
def test_percents_of_a_perplexity_do_not_need_a_base_that_scatters(shift, outcome):
    base = np.full(50, -1.5)
    noise = 0.001 * np.where(np.arange(50) % 2, 1.0, -1.0)
    found = compare_documents(
        paired(base, base - shift - noise, "perplexity"), margin=Margin.parse("2%")
    ).comparison
    assert found.outcome == outcome
    assert found.tolerated == pytest.approx(0.02 * math.exp(1.5))
    assert found.drift == pytest.approx(math.exp(1.5 + shift) - math.exp(1.5), abs=1e-12)


def test_the_false_alarm_chance_of_few_flips_counts_that_others_may_flip():
    """Two flips of 50, base 45 right: 3 documents cross 1 sigma; by numerical integration."""
    base = np.array([1.0] * 45 + [0.0] * 5)
    other = base.copy()
    other[[0, 49]] = 1.0 - base[[0, 49]]
    found = compare_documents(paired(base, other)).comparison

    def crossing(mean):
        density = scipy_stats.gamma.pdf(mean, 3.0)
        return density * scipy_stats.skellam.sf(2, mean / 2.0, mean / 2.0)

    expected, _ = integrate.quad(crossing, 0.0, 40.0)
    assert found.false_alarm_probability == pytest.approx(expected, rel=0.03)
