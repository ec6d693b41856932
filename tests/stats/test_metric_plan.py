"""From a pilot's scores, or a stored comparison, to the plan of a metric."""

from __future__ import annotations

import math

import numpy as np
import pytest
from paired_tables import paired, score_table
from scipy import stats as scipy_stats
from scipy.stats import beta

from evalguard.core.pairing import pair
from evalguard.core.verdict import Margin
from evalguard.planning.metric_plan import plan_metric
from evalguard.planning.pilot import pilot_of_comparison, pilot_of_scores
from evalguard.stats.compare_scores import compare_scores

AIM = {"margin": 1.0, "alpha": 0.025, "power": 0.8}
rng = np.random.default_rng(8)
BASE = rng.normal(-4.0, 2.0, size=200)
CANDIDATE = BASE + rng.normal(0.0, 0.1, size=200)


def pilots(scores):
    comparison = compare_scores(scores)
    return (
        pilot_of_scores(scores, comparison, confidence=0.95),
        pilot_of_comparison(comparison, confidence=0.95),
    )


def flips(lost: int, won: int, n: int, right: int):
    base = np.zeros(n)
    base[:right] = 1.0
    candidate = base.copy()
    candidate[:lost] = 0.0
    candidate[n - won :] = 1.0
    return paired(base, candidate)


@pytest.mark.parametrize("aggregation", ["mean", "perplexity"])
def test_scores_and_their_stored_comparison_give_the_same_plan(aggregation):
    of_scores, stored = pilots(paired(BASE, CANDIDATE, aggregation))
    assert stored.ratio == pytest.approx(of_scores.ratio, rel=1e-12)
    assert of_scores.ratio == pytest.approx(
        (BASE - CANDIDATE).std(ddof=1) / BASE.std(ddof=1), rel=1e-12
    )
    one, other = (plan_metric(pilot, n=5000, **AIM) for pilot in (of_scores, stored))
    assert one.needed_to_detect == other.needed_to_detect
    assert one.detectable_change == pytest.approx(other.detectable_change, rel=1e-12)


@pytest.mark.parametrize("aggregation", ["weighted_perplexity", "bits_per_byte"])
def test_ratio_estimators_are_planned_alike(aggregation):
    weights = rng.integers(5, 40, size=200)
    of_scores, stored = pilots(
        paired(BASE * weights, CANDIDATE * weights, aggregation, weights=weights)
    )
    assert stored.ratio == pytest.approx(of_scores.ratio, rel=1e-9)


def test_flips_of_scores_and_their_stored_comparison_give_the_same_plan():
    of_scores, stored = pilots(flips(6, 3, 100, 60))
    assert of_scores.flip_rate == stored.flip_rate == 0.09
    plans = [plan_metric(pilot, n=2000, **AIM) for pilot in (of_scores, stored)]
    assert plans[0].needed_to_detect == plans[1].needed_to_detect
    assert plans[0].method == "mcnemar-mid-p"


def test_a_sigma_is_that_of_the_planned_run():
    pilot, _ = pilots(paired(BASE, CANDIDATE))
    small, large = (plan_metric(pilot, n=n, **AIM) for n in (500, 50_000))
    assert small.detectable_sigma == pytest.approx(large.detectable_sigma, rel=0.01)
    assert small.detectable_change == pytest.approx(10 * large.detectable_change, rel=0.01)
    assert small.base_stderr == pytest.approx(BASE.std(ddof=1) / math.sqrt(500), rel=1e-12)


def test_the_margin_is_detected_by_all_documents_only_if_they_are_enough():
    for scatter in (0.1, 1.0, 4.0):
        pilot, _ = pilots(paired(BASE, BASE + scatter * rng.normal(size=200)))
        plan = plan_metric(pilot, n=1000, **AIM)
        assert (plan.needed_to_detect <= 1000) == (plan.detectable_sigma <= 1.0)


@pytest.mark.parametrize("n", [500, 8000])
def test_a_margin_in_points_or_percent_is_planned_as_the_sigma_that_it_comes_to(n):
    rights = [*pilots(flips(6, 3, 100, 60)), *pilots(paired(BASE, CANDIDATE, "perplexity"))]
    for pilot in rights:
        amount = 0.02 * pilot.base
        stderr = pilot.base_stderr * math.sqrt(pilot.n / n)
        margins = [Margin(0.02, "relative")]
        margins += [Margin(amount, "points")] if pilot.is_share else []
        for margin in margins:
            plan = plan_metric(pilot, n=n, **{**AIM, "margin": margin})
            same = plan_metric(pilot, n=n, **{**AIM, "margin": amount / stderr})
            assert plan.margin == pytest.approx(amount / stderr)
            assert plan.needed_to_detect == same.needed_to_detect
            assert plan.needed_to_show_harmless == same.needed_to_show_harmless


def test_the_documents_that_show_one_point_do_not_depend_on_how_many_are_planned():
    pilot, _ = pilots(flips(6, 3, 100, 60))
    plans = [plan_metric(pilot, n=n, **{**AIM, "margin": Margin.parse("1pp")}) for n in (200, 9000)]
    assert plans[0].needed_to_detect == pytest.approx(plans[1].needed_to_detect, abs=1)
    assert plans[0].margin < plans[1].margin


@pytest.mark.parametrize("aggregation", ["perplexity", "bits_per_byte"])
def test_points_of_what_is_no_share_are_not_planned_and_the_reason_is_said(aggregation):
    weights = None if aggregation == "perplexity" else np.full(200, 20.0)
    for pilot in pilots(paired(BASE, CANDIDATE, aggregation, weights=weights)):
        plan = plan_metric(pilot, n=500, **{**AIM, "margin": Margin.parse("1pp")})
        assert "for metrics between 0 and 1" in plan.pilot.problem
        assert (plan.margin, plan.needed_to_detect) == (None, None)


def test_no_plan_rests_a_t_test_on_fewer_than_30_documents():
    pilot, _ = pilots(paired(BASE, BASE + 1e-6 * rng.normal(size=200)))
    plan = plan_metric(pilot, n=1000, **AIM)
    assert plan.needed_to_detect == plan.needed_to_show_harmless == 30
    assert plan.needed_to_detect_range == (30, 30)


@pytest.mark.slow
@pytest.mark.nightly
def test_planned_documents_detect_the_margin_with_the_planned_power():
    """The whole way: a pilot's plan, then runs of that size through the real statistics."""
    pilot, _ = pilots(paired(BASE, CANDIDATE))
    n = 2000
    plan = plan_metric(pilot, n=n, margin=0.1, alpha=0.025, power=0.8)
    needed = plan.needed_to_detect
    drift = 0.1 * pilot.base_scatter / math.sqrt(n)
    scatter = pilot.ratio * pilot.base_scatter
    seen = 0
    for _ in range(400):
        base = rng.normal(-4.0, 2.0, size=needed)
        candidate = base - rng.normal(drift, scatter, size=needed)
        seen += compare_scores(paired(base, candidate)).significant
    assert seen / 400 == pytest.approx(0.8, abs=3 * math.sqrt(0.16 / 400))


def test_documents_in_clusters_are_planned_by_how_many_clusters_there_are():
    members = np.repeat(np.arange(40), 5)
    shared = rng.normal(0.0, 0.1, 40)[members]
    pilot, stored = pilots(
        paired(BASE, BASE + shared, clusters=tuple(map(str, members)), cluster_field="passage")
    )
    alone, _ = pilots(paired(BASE, BASE + shared))
    assert pilot.ratio == pytest.approx(stored.ratio, rel=1e-12)
    assert pilot.ratio == pytest.approx(math.sqrt(5.0) * alone.ratio, rel=0.02)
    quantiles = scipy_stats.t.ppf(0.975, 19) + scipy_stats.t.ppf(0.8, 19)
    for one in (pilot, stored):
        plan = plan_metric(one, n=100, **AIM)  # 20 clusters
        assert plan.detectable_sigma == pytest.approx(quantiles * one.ratio, rel=1e-12)
        assert plan_metric(one, n=100, **{**AIM, "margin": 50.0}).needed_to_detect == 30 * 5
    spread = [math.log(one.ratio_range[1] / one.ratio_range[0]) for one in (stored, alone)]
    assert spread[0] > 1.3 * spread[1]


def test_ranges_hold_the_estimate_and_shrink_with_the_pilot():
    pilot, _ = pilots(paired(BASE, CANDIDATE))
    few, _ = pilots(paired(BASE[:20], CANDIDATE[:20]))
    for one in (pilot, few):
        assert one.ratio_range[0] < one.ratio < one.ratio_range[1]
        plan = plan_metric(one, n=1000, **AIM)
        low, high = plan.needed_to_detect_range
        assert low <= plan.needed_to_detect <= high
    spread = [math.log(p.ratio_range[1] / p.ratio_range[0]) for p in (pilot, few)]
    assert spread[0] < spread[1]


def test_a_pilot_without_flips_plans_by_its_upper_end():
    pilot, stored = pilots(flips(0, 0, 64, 40))
    assert stored.caveats == pilot.caveats
    assert (pilot.flip_rate, pilot.ratio_range[0], pilot.problem) == (0.0, 0.0, "")
    # as of one flip of 64: the upper end at 85% of Clopper and Pearson's interval
    assert (pilot.ratio * pilot.base_scatter) ** 2 == pytest.approx(beta.ppf(0.85, 2, 63))
    assert "no document of 64 flipped: planned as if 5.2% of all did" in pilot.caveats[0]
    plan = plan_metric(pilot, n=5000, **AIM)
    assert 0.0 < plan.detectable_sigma < plan.detectable_sigma_range[1]
    assert plan.needed_to_detect < plan.needed_to_detect_range[1]


def test_heavy_tails_widen_the_range_and_are_said():
    heavy = BASE.copy()
    heavy[:2] -= 5.0
    normal, _ = pilots(paired(BASE, CANDIDATE))
    pilot, stored = pilots(paired(BASE, heavy))
    assert "so few of the 200 documents carry the scatter" in pilot.caveats[0]
    assert not normal.caveats
    assert pilot.ratio_range[1] == math.inf
    assert any("tails of its documents are not stored" in caveat for caveat in stored.caveats)
    for one in (pilot, stored):
        plan = plan_metric(one, n=1000, **AIM)
        assert (plan.detectable_sigma, plan.needed_to_detect, plan.needed_to_decide) == (None,) * 3
        assert plan.needed_to_decide_range[1] is None


@pytest.mark.parametrize(
    ("base", "candidate", "said"),
    [
        (BASE, BASE, "differ alike on all of these 200 documents, or not at all"),
        (np.round(BASE), np.round(BASE) - 0.25, "differ alike"),
        (np.ones(30), np.ones(30), "do not scatter"),
        (BASE, np.where(np.arange(200) == 3, np.nan, BASE), "NaN"),
        (BASE[:1], BASE[:1], "at least 2 documents"),
    ],
)
def test_a_pilot_without_scatter_or_scores_says_why_there_is_no_plan(base, candidate, said):
    for pilot in pilots(paired(base, candidate)):
        assert said in pilot.problem
        plan = plan_metric(pilot, n=1000, **AIM)
        assert (plan.detectable_sigma, plan.needed_to_detect, plan.method) == (None, None, "none")


def test_order_of_documents_changes_nothing():
    order = rng.permutation(200)
    shuffled = pair(
        score_table(BASE[order], doc_ids=order), score_table(CANDIDATE[order], doc_ids=order)
    )
    assert pilots(shuffled)[0].ratio == pilots(paired(BASE, CANDIDATE))[0].ratio
