"""What an undecided verdict lacks: its kind, what it would have shown, what would decide."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from paired_tables import paired
from scipy import stats as scipy_stats

from evalguard.comparison.gate_judgement import judge_comparisons
from evalguard.core.comparison import Comparison
from evalguard.core.gate import Gate
from evalguard.core.pairing import PairedScores
from evalguard.core.verdict import Margin
from evalguard.planning.metric_plan import plan_metric
from evalguard.planning.pilot import pilot_of_comparison, pilot_of_scores
from evalguard.stats.binary import mcnemar_mid_p
from evalguard.stats.compare_scores import compare_documents
from evalguard.stats.power import decidable_ratio, documents_to_decide, failing_chance


def judge(pairs: PairedScores, gate: Gate) -> Comparison:
    margin = gate.margin_of(pairs.base.task, pairs.base.metric)
    compared = compare_documents(pairs, margin=margin, confidence=gate.confidence)
    return judge_comparisons([compared], gate=gate).comparisons[0]


def answers(n: int, *, lost: int, won: int, right: float = 0.6) -> PairedScores:
    base = (np.arange(n) < round(right * n)).astype(float)
    other = base.copy()
    other[np.flatnonzero(base)[:lost]] = 0.0
    other[np.flatnonzero(base == 0.0)[:won]] = 1.0
    return paired(base, other)


def drawn_answers(rng: np.random.Generator, n: int, *, churn: float, drift: float) -> PairedScores:
    """Answers of which a share flips, a drift more of them to the worse."""
    base = (rng.random(n) < 0.6).astype(float)
    flip = rng.random(n)
    lost = (base == 1.0) & (flip < (churn + drift) / 2.0 / 0.6)
    won = (base == 0.0) & (flip < (churn - drift) / 2.0 / 0.4)
    return paired(base, np.where(lost, 0.0, np.where(won, 1.0, base)))


def test_above_the_margin_with_an_interval_that_holds_0_is_chance_not_excluded() -> None:
    found = judge(answers(1319, lost=112, won=86), Gate())
    assert found.outcome == "undecided"
    assert found.undecided is not None
    assert found.undecided.kind == "above_margin"


def test_below_the_margin_with_an_interval_that_reaches_it_is_too_few_documents() -> None:
    found = judge(answers(60, lost=8, won=8), Gate())
    assert found.undecided is not None
    assert found.undecided.kind == "too_few_documents"


@pytest.mark.parametrize("lost", [0, 200])
def test_what_is_decided_lacks_nothing(lost: int) -> None:
    found = judge(answers(1319, lost=lost, won=1), Gate())
    assert found.outcome in ("unchanged", "regressed")
    assert found.undecided is None
    assert found.needed_n is None


def test_the_detectable_drift_fails_four_of_five_runs() -> None:
    rng, gate, n = np.random.default_rng(5), Gate(margin=Margin(0.01, "points")), 1319
    drift = judge(answers(n, lost=100, won=98), gate).undecided
    assert drift is not None
    assert drift.detectable_change is not None
    fails = [
        judge(drawn_answers(rng, n, churn=0.15, drift=drift.detectable_change), gate).outcome
        for _ in range(600)
    ]
    assert np.mean([one == "regressed" for one in fails]) == pytest.approx(0.8, abs=0.06)


@pytest.mark.parametrize(
    "drift",
    [
        0.0,
        0.01,  # the margin
        *(pytest.param(one, marks=pytest.mark.nightly) for one in (0.005, 0.02)),
    ],
)
def test_so_many_documents_as_are_asked_for_decide_four_of_five_runs(drift: float) -> None:
    rng, gate = np.random.default_rng(11), Gate(margin=Margin(0.01, "points"))
    decided = []
    while len(decided) < 150:
        first = judge(drawn_answers(rng, 1319, churn=0.15, drift=drift), gate)
        if first.undecided is None:
            continue
        assert first.needed_n is not None
        again = judge(drawn_answers(rng, first.needed_n, churn=0.15, drift=drift), gate)
        decided.append(again.outcome != "undecided")
    assert np.mean(decided) >= 0.8 - 0.05


@pytest.mark.parametrize("drift", [0.0, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("ratio", [0.5, 2.0, 3.3])
def test_documents_added_to_those_that_left_it_undecided_decide_four_of_five(
    drift: float, ratio: float
) -> None:
    """A normal estimate with a margin of 1 and known standard errors, extended from n to N."""
    rng, n, z = np.random.default_rng(3), 1000, scipy_stats.norm.ppf(0.975)
    needed = documents_to_decide(ratio, known=n, alpha=0.025, fixed=True)
    assert needed is not None
    early = 1.0 / ratio
    late = early * math.sqrt(n / needed)
    fresh = math.sqrt(needed - n)
    first = rng.normal(drift, early, 40_000)
    first = first[(first + z * early >= 1.0) & (first - z * early <= 0.0)]
    if first.size < 200:
        return
    more = rng.normal(drift, early * math.sqrt(n) / fresh, first.size)
    final = (first * n + more * (needed - n)) / needed
    undecided = (final + z * late >= 1.0) & (final - z * late <= 0.0)
    assert np.mean(undecided) <= 0.2 + 3.0 * math.sqrt(0.16 / first.size)


def test_a_margin_in_sigma_shrinks_with_documents_so_that_none_may_decide() -> None:
    found = judge(answers(1319, lost=100, won=98), Gate()).undecided
    assert found is not None
    assert found.needed_n is None
    assert found.fixed_margin.endswith("pp")
    assert found.fixed_margin_n is not None
    assert Margin.parse(found.fixed_margin).value == pytest.approx(0.0135, abs=0.0007)


def test_the_margin_that_is_proposed_decides_with_the_documents_there_are() -> None:
    rng = np.random.default_rng(23)
    first = judge(answers(1319, lost=100, won=98), Gate()).undecided
    assert first is not None
    gate = Gate(margin=Margin.parse(first.decidable_margin))
    outcomes = [
        judge(drawn_answers(rng, 1319, churn=0.15, drift=0.015), gate).outcome for _ in range(300)
    ]
    assert np.mean([one != "undecided" for one in outcomes]) >= 0.8 - 0.06


def test_a_perplexity_is_proposed_a_margin_in_percent() -> None:
    noise = np.where(np.arange(400) % 2, 1.0, -1.0)
    base = -2.0 + np.sin(np.arange(400.0))
    found = compare_documents(paired(base, base + noise, "perplexity")).comparison
    assert found.undecided is not None
    assert found.undecided.fixed_margin.endswith("%")


@pytest.mark.parametrize("ratio", [0.0, -0.0])
def test_no_number_of_documents_decides_at_a_margin_of_0(ratio: float) -> None:
    assert documents_to_decide(ratio, known=100, alpha=0.025, fixed=True) is None


def test_a_sigma_margin_that_is_wide_enough_asks_for_documents() -> None:
    found = documents_to_decide(decidable_ratio(0.025) + 0.25, known=100, alpha=0.025, fixed=False)
    assert found is not None
    assert 100 < found < 200


@pytest.mark.parametrize("known", [2, 100, 5000])
def test_more_than_the_known_documents_are_asked_for(known: int) -> None:
    found = documents_to_decide(3.91, known=known, alpha=0.025, fixed=True)
    assert found is not None
    assert found > known


@pytest.mark.parametrize("margin", ["1pp", "1 sigma", "3%"])
@pytest.mark.parametrize("metrics", [1, 7])
def test_a_plan_asks_for_the_documents_that_the_comparison_asks_for(
    margin: str, metrics: int
) -> None:
    gate = Gate(margin=Margin.parse(margin))
    one = compare_documents(answers(1319, lost=100, won=98), margin=gate.default_margin)
    others = [
        replace(one, comparison=replace(one.comparison, task=f"task{i}"))
        for i in range(metrics - 1)
    ]
    found = judge_comparisons([one, *others], gate=gate).comparisons[0]
    assert found.undecided is not None
    asked = found.needed_n or found.undecided.fixed_margin_n
    pilot = pilot_of_comparison(found, confidence=0.95)
    plan = plan_metric(
        pilot, n=1319, margin=gate.default_margin, alpha=0.025, power=0.8, metrics=metrics
    )
    assert plan.needed_to_decide == asked


def test_what_only_the_adjustment_keeps_from_being_real_shows_the_adjusted_interval() -> None:
    gate = Gate()
    one = compare_documents(answers(1319, lost=115, won=85))
    assert one.comparison.significant
    alone = judge_comparisons([one], gate=gate).comparisons[0]
    assert alone.outcome == "regressed"
    assert alone.adjusted_interval is None
    others = [
        replace(
            one,
            comparison=replace(
                compare_documents(answers(1319, lost=5, won=5)).comparison, task=f"task{i}"
            ),
        )
        for i in range(6)
    ]
    together = judge_comparisons([one, *others], gate=gate)
    first = together.comparisons[0]
    assert first.outcome == "undecided"
    assert first.adjusted_interval is not None
    assert first.adjusted_interval[0] <= 0.0 < first.adjusted_interval[1]
    assert together.gate.state == "undecided"


def enumerated(psi: float, drift: float, n: int, *, margin: float, alpha: float) -> float:
    """The chance that n answers fail, by every pair of counts of lost and won ones."""
    lost, won = np.meshgrid(np.arange(n + 1), np.arange(n + 1), indexing="ij")
    there = lost + won <= n
    b, c = lost[there], won[there]
    shares = (psi + drift) / 2.0, (psi - drift) / 2.0
    chance = scipy_stats.multinomial.pmf(
        np.stack([b, c, n - b - c], axis=1), n, [*shares, 1.0 - psi]
    )
    fails = [
        mcnemar_mid_p(int(x), int(y)) <= alpha and (x - y) / n > margin
        for x, y in zip(b, c, strict=True)
    ]
    return float(np.sum(chance[fails]))


@pytest.mark.parametrize(("psi", "drift"), [(0.1, 0.1), (0.2, 0.12), (0.5, 0.2)])
def test_the_chance_that_answers_fail_is_that_of_all_their_counts(psi: float, drift: float) -> None:
    for n, margin, alpha in ((40, 0.05, 0.025), (40, 0.0, 0.0036)):
        found = failing_chance(psi, drift, n, margin=margin, alpha=alpha)
        assert found == pytest.approx(
            enumerated(psi, drift, n, margin=margin, alpha=alpha), abs=1e-9
        )


@pytest.mark.parametrize("flipped", [1, 2, 3, 10])
def test_the_drift_said_of_few_flips_fails_four_of_five_runs(flipped: int) -> None:
    n, gate = 300, Gate(margin=Margin(0.01, "points"))
    said = judge(answers(n, lost=flipped - flipped // 2, won=flipped // 2), gate).undecided
    assert said is not None
    assert said.detectable_change is not None
    churn = max(flipped / n, said.detectable_change)
    chance = failing_chance(churn, said.detectable_change, n, margin=0.01, alpha=0.025)
    assert chance >= 0.75


@pytest.mark.parametrize(("flipped", "n"), [(0, 64), (0, 300), (1, 300), (2, 1319)])
def test_few_flips_ask_for_the_documents_that_a_likely_share_of_them_takes(
    flipped: int, n: int
) -> None:
    pairs = answers(n, lost=flipped - flipped // 2, won=flipped // 2)
    pilot = pilot_of_comparison(compare_documents(pairs).comparison, confidence=0.95)
    plan = plan_metric(pilot, n=5000, margin=Margin(0.01, "points"), alpha=0.025, power=0.8)
    assert plan.needed_to_decide is not None
    needed, rng = plan.needed_to_decide, np.random.default_rng(4)
    share, gate = max(flipped, 1) / n, Gate(margin=Margin(0.01, "points"))
    for drift in (0.0, min(0.005, share)):
        outcomes = [
            judge(drawn_answers(rng, needed, churn=share, drift=drift), gate).outcome
            for _ in range(40)
        ]
        assert np.mean([one != "undecided" for one in outcomes]) >= 0.75


def skewed(n: int) -> PairedScores:
    rng = np.random.default_rng(3)
    base = rng.normal(0.0, 1.0, n)
    return paired(base, base - (1.0 - rng.exponential(1.0, n)))


def test_a_plan_and_a_comparison_of_skewed_documents_ask_for_the_same() -> None:
    pairs, gate = skewed(200), Gate(margin=Margin(0.06))
    found = judge(pairs, gate)
    assert found.method.endswith("-skew")
    assert found.planned_scatter is not None
    assert found.planned_scatter > 1.0
    assert found.undecided is not None
    assert found.undecided.fixed_margin == "" or found.undecided.fixed_margin_n is not None
    aim = {"n": 200, "margin": gate.default_margin, "alpha": 0.025, "power": 0.8}
    of_scores = pilot_of_scores(pairs, found, confidence=0.95)
    stored = pilot_of_comparison(found, confidence=0.95)
    asked = plan_metric(of_scores, **aim).needed_to_decide
    assert asked == plan_metric(stored, **aim).needed_to_decide
    assert asked == (found.needed_n or found.undecided.fixed_margin_n)


def test_of_skewed_or_few_documents_no_drift_is_said_to_fail() -> None:
    few = np.random.default_rng(1).normal(size=15)
    for pairs in (skewed(200), paired(few, few - np.linspace(-1.0, 1.1, 15))):
        found = judge(pairs, Gate(margin=Margin(0.1))).undecided
        assert found is not None
        assert found.detectable_sigma is None


def in_clusters(rng: np.random.Generator, count: int, *, drift: float = 0.0) -> PairedScores:
    """Clusters of ten documents that drift alike, but for a little noise."""
    members = np.repeat(np.arange(count), 10)
    base = rng.normal(0.0, 3.0, members.size)
    d = rng.normal(0.0, 1.0, count)[members] + rng.normal(drift, 0.5, members.size)
    labels = tuple(members.astype(str).tolist())
    return paired(base, base - d, clusters=labels, cluster_field="passage")


@pytest.mark.parametrize("count", [8, 12, 20, 29])
def test_of_fewer_than_30_clusters_no_drift_is_said_to_fail_however_many_documents(
    count: int,
) -> None:
    rng, gate = np.random.default_rng(count), Gate(margin=Margin(0.5))
    lacking = [judge(in_clusters(rng, count), gate).undecided for _ in range(5)]
    assert any(lacking)
    assert [one for one in lacking if one and one.detectable_sigma is not None] == []


def test_the_drift_said_of_clusters_fails_four_of_five_runs_of_as_many_clusters() -> None:
    rng, gate, fails = np.random.default_rng(12), Gate(margin=Margin(0.5)), []
    while len(fails) < 300:
        said = judge(in_clusters(rng, 40), gate).undecided
        if said is None or said.detectable_change is None:
            continue
        again = judge(in_clusters(rng, 40, drift=said.detectable_change), gate)
        fails.append(again.outcome == "regressed")
    assert 0.8 - 0.06 <= np.mean(fails) <= 0.95


def test_an_adjusted_interval_is_that_of_t_at_the_level_that_holm_asks_for() -> None:
    rng = np.random.default_rng(7)
    base, d = rng.normal(size=40), rng.normal(size=40)
    d += 0.4 - d.mean()
    one = compare_documents(paired(base, base - d))
    assert (one.comparison.significant, one.comparison.method) == (True, "paired-t")
    same = paired(base, base)
    others = [
        replace(one, comparison=replace(compare_documents(same).comparison, task=f"task{i}"))
        for i in range(19)
    ]
    found = judge_comparisons([one, *others], gate=Gate()).comparisons[0]
    assert found.adjusted_interval is not None
    half = scipy_stats.t.isf(0.025 / 20, 39) * scipy_stats.sem(d)
    unit = scipy_stats.sem(base)
    expected = min(0.0, (0.4 - half) / unit), (0.4 + half) / unit
    assert found.adjusted_interval == pytest.approx(expected, rel=1e-9)
