"""From a finding to a comparison: the numbers, the verdict and the promise."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from paired_tables import paired

from evalguard.core.gate import Gate
from evalguard.core.pairing import PairedScores, pick_rows
from evalguard.core.verdict import Margin
from evalguard.stats.compare_scores import compare_scores
from evalguard.stats.sequential_looks import (
    LookResult,
    StoppingRule,
    cannot_stop,
    document_order,
    find,
)
from evalguard.stats.stopped import carriers_missed, carry_over, complete, stopped_comparison

SIZE = 2000
RULE = StoppingRule(margin=1.0, alpha=0.05, gated=4, seed=9)
LOOKS = (200, 500, SIZE)


def part_of(
    base: np.ndarray, candidate: np.ndarray, aggregation: str, n: int
) -> tuple[PairedScores, PairedScores, list[int]]:
    whole = paired(base, candidate, aggregation)  # type: ignore[arg-type]
    whole = replace(whole, base=replace(whole.base, metric="acc"))
    order = list(document_order(whole.base.doc_ids.tolist(), task="t", seed=9))[:n]
    rows = np.sort(np.array(order))
    part = PairedScores(
        base=pick_rows(whole.base, rows), candidate=pick_rows(whole.candidate, rows)
    )
    return whole, part, order


@pytest.fixture
def lost() -> tuple[PairedScores, PairedScores, list[int]]:
    rng = np.random.default_rng(0)
    base = (rng.random(SIZE) < 0.7).astype(np.float64)
    candidate = np.where(rng.random(SIZE) < 0.2, 0.0, base)
    return part_of(base, candidate, "mean", 200)


def test_a_comparison_that_stopped_speaks_of_all_documents(
    lost: tuple[PairedScores, PairedScores, list[int]],
) -> None:
    whole, part, order = lost
    found = find(part, order, SIZE, RULE)
    assert found is not None
    assert found.side == "above"
    early, full = stopped_comparison(part, found, RULE, looks=LOOKS), compare_scores(whole)
    assert (early.n, early.n_used, early.outcome) == (SIZE, 200, "regressed")
    assert early.certain
    assert early.base_stderr == pytest.approx(full.base_stderr, rel=0.1)
    assert early.paired_stderr == pytest.approx(full.paired_stderr, rel=0.3)
    assert early.sigma_interval is not None
    assert early.sigma_interval[0] > 1.0
    assert early.sigma_interval[0] <= full.sigma <= early.sigma_interval[1]  # type: ignore[operator]
    assert early.p_value is not None
    assert early.p_value < 0.05
    assert early.companions == ()
    assert early.mid_p_value is None
    stopping = early.stopping
    assert stopping is not None
    assert (stopping.look, stopping.looks, stopping.seed) == (1, LOOKS, 9)
    assert (stopping.alpha, stopping.alpha_below, stopping.alpha_above) == (0.05, 0.05, 0.0125)
    assert 0.0 < stopping.error_chance <= 0.0125
    assert stopping.guarantee == (
        "the verdict is that of all 2,000 documents, wrong in at most 1.25% of document orders; "
        "exact"
    )
    assert Gate().judge([early]).state == "regressed"


def test_scores_that_are_only_so_far_zero_or_one_are_an_assumption(
    lost: tuple[PairedScores, PairedScores, list[int]],
) -> None:
    _, part, order = lost
    part = replace(part, base=replace(part.base, metric="judged_by_the_task"))
    found = find(part, order, SIZE, RULE)
    assert found is not None
    stopping = stopped_comparison(part, found, RULE, looks=LOOKS).stopping
    assert stopping is not None
    assert stopping.assumption == "all scores are 0 or 1 like those seen"
    assert stopping.guarantee.endswith("; exact, if all scores are 0 or 1 like those seen")


def test_a_perplexity_names_the_loss_that_it_assumes_away() -> None:
    rng = np.random.default_rng(1)
    base = -rng.gamma(1.5, 1.0, SIZE)
    _, part, order = part_of(base, base - rng.normal(0.0, 0.01, SIZE), "perplexity", 500)
    found = find(part, order, SIZE, RULE)
    assert found is not None
    early = stopped_comparison(part, found, RULE, looks=LOOKS)
    assert early.outcome == "unchanged"
    assert not early.bit_identical
    assert early.stopping is not None
    assert early.stopping.assumed_worst == pytest.approx(2.0 * float(np.std(part.base.values)), 0.1)
    assert "asymptotic, if no other document loses more than" in early.stopping.guarantee
    assert "nats (the most so far: 0.0" in early.stopping.guarantee
    assert any(
        "what 10 documents or fewer carry alone is missed by such a part in more than about 5%"
        in caveat
        for caveat in early.caveats
    )


def test_an_ungated_metric_that_only_looks_regressed_promises_nothing() -> None:
    rng = np.random.default_rng(1)
    base = -rng.gamma(1.5, 1.0, SIZE)
    _, part, order = part_of(base, base - 0.4, "perplexity", 500)
    found = find(part, order, SIZE, RULE)
    assert found is not None
    assert found.to_confirm
    early = stopped_comparison(part, found, RULE, looks=LOOKS).stopping
    assert early is not None
    assert early.error_chance == 1.0
    assert early.guarantee == "not gated, and no verdict of all 2,000 documents is shown"


@pytest.mark.parametrize(("n", "size"), [(500, 5000), (200, 2000), (64, 300)])
def test_the_group_that_a_part_may_miss_is_the_largest_above_alpha(n: int, size: int) -> None:
    missed = carriers_missed(n, size, 0.05)
    assert (1.0 - n / size) ** missed > 0.05 >= (1.0 - n / size) ** (missed + 1)


def test_with_all_documents_the_numbers_are_the_ordinary_ones(
    lost: tuple[PairedScores, PairedScores, list[int]],
) -> None:
    ordinary = compare_scores(lost[0])
    late = complete(ordinary, RULE, looks=LOOKS)
    assert replace(late, stopping=None) == ordinary
    assert late.stopping is not None
    assert not late.stopping.early
    assert late.stopping.error_chance == 0.0


def test_a_verdict_once_shown_stays_unless_the_estimate_moves_across() -> None:
    shown = LookResult(
        side="below", low=-1.0, high=0.9, error_chance=0.04, p_value=1.0, sigma=0.1, unit=1.0,
        method="flips-exact",
    )  # fmt: skip
    open_ = replace(shown, side=None, low=-math.inf, high=math.inf, error_chance=1.0, sigma=0.5)
    kept = carry_over(shown, open_, margin=1.0)
    assert kept is not None
    assert (kept.side, kept.low, kept.high, kept.error_chance) == ("below", -1.0, 0.9, 0.04)
    assert kept.sigma == 0.5
    across = replace(open_, sigma=1.2)
    assert carry_over(shown, across, margin=1.0) is across
    assert carry_over(None, open_, margin=1.0) is open_
    assert carry_over(shown, None, margin=1.0) is None


def test_what_is_no_sum_over_single_documents_cannot_stop() -> None:
    table = paired([0.0, 1.0], [0.0, 1.0]).base
    assert cannot_stop(table) == ""
    assert "cluster" in cannot_stop(replace(table, clusters=("a", "a"), cluster_field="passage"))


def test_the_order_is_the_seed_s_and_the_task_s_own() -> None:
    ids = list(range(0, 300, 3))
    order = document_order(ids, task="a", seed=1)
    assert sorted(order) == ids
    assert order == document_order(ids, task="a", seed=1)
    assert order != document_order(ids, task="b", seed=1)
    assert order != document_order(ids, task="a", seed=2)


def test_only_the_way_to_fail_is_split_over_the_metrics() -> None:
    assert RULE.alpha_below == 0.05
    assert RULE.alpha_above == 0.0125
    assert 1.0 - RULE.interval_confidence == pytest.approx(0.05 + 0.0125 + 2 * 0.005)
    with pytest.raises(ValueError, match="chance of error"):
        StoppingRule(margin=1.0, alpha=0.5, gated=1, seed=0)
    with pytest.raises(ValueError, match="gated"):
        StoppingRule(margin=1.0, alpha=0.05, gated=0, seed=0)


def test_a_drift_that_all_documents_may_show_by_chance_is_no_early_regression() -> None:
    rng = np.random.default_rng(3)
    base = (rng.random(SIZE) < 0.7).astype(np.float64)
    lost, won = (np.flatnonzero(base == value) for value in (1.0, 0.0))
    candidate = base.copy()
    candidate[rng.choice(lost, 330, replace=False)] = 0.0
    candidate[rng.choice(won, 300, replace=False)] = 1.0
    whole, part, order = part_of(base, candidate, "mean", SIZE - 5)
    full = compare_scores(whole, margin=0.5)
    assert full.outcome == "regressed"  # of all documents, by the literal rule
    assert full.p_value is not None
    assert full.p_value > 0.05  # and chance
    literal = find(part, order, SIZE, replace(RULE, margin=0.5, gated=1))
    assert literal is not None
    assert literal.side == "above"
    real = find(part, order, SIZE, replace(RULE, margin=0.5, gated=1, real=True))
    assert real is not None
    assert (real.side, real.error_chance) == (None, 1.0)


def test_a_real_regression_is_told_early_under_the_default_rule_too(
    lost: tuple[PairedScores, PairedScores, list[int]],
) -> None:
    _, part, order = lost
    found = find(part, order, SIZE, replace(RULE, real=True))
    assert found is not None
    assert found.side == "above"


def near_the_margin(kind: str, margin: Margin, factor: float) -> PairedScores:
    """Documents whose drift is that many times the margin, in the margin's own unit."""
    rng = np.random.default_rng(5)
    size = 600
    if kind == "0/1":
        base = (np.arange(size) < 0.6 * size).astype(np.float64)
        amount = margin.value * (float(np.mean(base)) if margin.unit == "relative" else 1.0)
        lost, won = round(factor * amount * size) + 6, 6
        candidate = base.copy()
        candidate[:lost], candidate[size - won :] = 0.0, 1.0
        return paired(base, candidate)
    if kind == "perplexity":
        base = -rng.gamma(1.5, 1.0, size)
        noise = rng.normal(0.0, 0.3, size)
        wanted = math.log1p(factor * margin.value)
        return paired(base, base - noise + float(np.mean(noise)) - wanted, "perplexity")
    base = rng.beta(2.0, 3.0, size)
    noise = base * rng.normal(0.0, 0.2, size)
    wanted = factor * margin.value * (float(np.mean(base)) if margin.unit == "relative" else 1.0)
    return paired(base, base - noise + float(np.mean(noise)) - wanted)


@pytest.mark.parametrize("factor", [0.97, 1.03])
@pytest.mark.parametrize(
    ("kind", "margin"),
    [
        ("0/1", Margin(0.06, "points")),
        ("0/1", Margin(0.1, "relative")),
        ("mean", Margin(0.03, "points")),
        ("mean", Margin(0.1, "relative")),
        ("perplexity", Margin(0.05, "relative")),
    ],
)
def test_margins_in_points_and_shares_are_contradicted_in_at_most_alpha_of_the_orders(
    kind: str, margin: Margin, factor: float
) -> None:
    """The verdict is that of all documents in the margin's own unit, next to the margin."""
    whole = near_the_margin(kind, margin, factor)
    full, size, orders = compare_scores(whole, margin=margin), whole.base.n, 60
    assert (full.outcome == "regressed") is (factor > 1.0)
    rule, wrong = replace(RULE, margin=margin, gated=1), 0
    for seed in range(orders):
        order = np.random.default_rng([11, seed]).permutation(size)
        for look in (60, 120, 240, 400, 540, 590):
            rows = np.sort(order[:look])
            part = PairedScores(
                base=pick_rows(whole.base, rows), candidate=pick_rows(whole.candidate, rows)
            )
            found = find(part, order[:look].tolist(), size, rule)
            if found is not None and found.side is not None:
                wrong += (found.side == "above") is not (full.outcome == "regressed")
                break
    assert wrong / orders <= 0.05 + 3.0 * math.sqrt(0.05 * 0.95 / orders)


@pytest.mark.parametrize(
    ("kind", "margin"),
    [
        ("0/1", Margin(0.1, "points")),
        ("0/1", Margin(0.2, "relative")),
        ("mean", Margin(0.1, "points")),
        ("mean", Margin(0.2, "relative")),
        ("perplexity", Margin(0.2, "relative")),
    ],
)
@pytest.mark.parametrize(("factor", "side"), [(0.0, "below"), (4.0, "above")])
def test_a_margin_in_points_or_a_share_is_told_early_in_its_own_unit(
    kind: str, margin: Margin, factor: float, side: str
) -> None:
    whole = near_the_margin(kind, margin, factor)
    order = list(document_order(whole.base.doc_ids.tolist(), task="t", seed=2))[:240]
    rows = np.sort(np.array(order))
    part = PairedScores(
        base=pick_rows(whole.base, rows), candidate=pick_rows(whole.candidate, rows)
    )
    rule = replace(RULE, margin=margin, gated=1)
    found = find(part, order, whole.base.n, rule)
    assert found is not None
    if side == "above" and kind != "0/1":
        assert (found.side, found.to_confirm) == (None, True)
        return
    assert found.side == side
    early = stopped_comparison(part, found, rule, looks=(240, whole.base.n))
    full = compare_scores(whole, margin=margin)
    assert early.margin == pytest.approx(full.margin, rel=0.15)
    assert early.margin_text == full.margin_text == margin.text
    assert f"the margin of {margin.text} (" in early.reason
    assert early.sigma_interval is not None
    assert (early.sigma_interval[0] > early.margin) is (side == "above")
    assert (early.sigma_interval[1] < early.margin) is (side == "below")
    assert Gate(margin=margin).judge([early]).state == ("regressed" if factor else "passed")


def test_a_margin_without_a_known_size_is_not_told_early() -> None:
    rng = np.random.default_rng(6)
    likelihoods, signed = -rng.gamma(1.5, 1.0, 900), rng.normal(0.1, 1.0, 900)
    for values, aggregation, margin in (
        (likelihoods, "perplexity", Margin(0.01, "points")),
        (1.0 - likelihoods, "mean", Margin(0.01, "points")),
        (signed, "mean", Margin(0.02, "relative")),
    ):
        of = paired(values, values, aggregation)  # type: ignore[arg-type]
        rule = replace(RULE, margin=margin)
        assert find(of, list(range(900)), 9000, rule) is None
    known = find(paired(signed, signed), list(range(900)), 9000, replace(RULE, margin=margin),
                 base_of_all=paired(signed, signed).base)  # fmt: skip
    assert known is not None


def test_a_verdict_that_stays_counts_its_ends_in_the_present_sigma() -> None:
    shown = LookResult(
        side="below", low=-1.0, high=0.9, error_chance=0.04, p_value=1.0, sigma=0.1, unit=1.0,
        scale=100.0, method="flips-exact",
    )  # fmt: skip
    open_ = replace(shown, side=None, low=-math.inf, high=math.inf, sigma=1.5, scale=200.0)
    kept = carry_over(shown, open_, margin=Margin(0.01, "points"))
    assert kept is not None
    assert (kept.side, kept.low, kept.high) == ("below", -2.0, 1.8)
