"""Early verdicts of log-likelihoods, ratios and other means: influence, bounds, contradictions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from paired_tables import paired

from evalguard.core.pairing import PairedScores, pick_rows
from evalguard.core.scores import Aggregation
from evalguard.stats.betting import excess, unit_of
from evalguard.stats.drift import estimate_drift
from evalguard.stats.sequential_evidence import BoundedEvidence
from evalguard.stats.sequential_looks import StoppingRule, find, planned_looks

RULE = StoppingRule(margin=1.0, alpha=0.05, gated=1, seed=0)


def population(
    sigma: float, scatter: float, size: int, *, aggregation: Aggregation = "perplexity"
) -> PairedScores:
    """Log-likelihoods with exactly this sigma, and normal differences beside the drift."""
    rng = np.random.default_rng([size, int(100 * scatter)])
    weights = None
    if aggregation in ("weighted_perplexity", "bits_per_byte"):
        weights = np.ceil(rng.lognormal(3.0, 0.7, size))
    scale = np.ones(size) if weights is None else weights
    base = -scale * rng.gamma(1.5, 1.0, size)
    spread = float(np.std(base))
    noise = rng.normal(0.0, scatter * spread, size)
    shift = 0.0
    for _ in range(60):  # the drift that has this sigma
        made = paired(base, base - noise - shift * scale, aggregation, weights=weights)
        shift += (sigma - estimate_drift(made, confidence=0.95).sigma) * unit_of(made.base) * 0.7
    return made


def drawn(of: PairedScores, order: np.ndarray, n: int) -> PairedScores:
    rows = np.sort(order[:n])
    return PairedScores(base=pick_rows(of.base, rows), candidate=pick_rows(of.candidate, rows))


@pytest.mark.parametrize(
    "aggregation", ["mean", "perplexity", "weighted_perplexity", "bits_per_byte"]
)
def test_excess_is_the_influence_of_a_document_on_the_drift_beyond_the_margin(
    aggregation: Aggregation,
) -> None:
    """Against leaving a document out: T without it is T - T_i / n to first order."""
    size, margin = 400, 1.5
    of = population(1.0, 0.3, size, aggregation=aggregation)
    rows = np.arange(size)
    whole = excess(of, rows, size)

    def beyond(part: PairedScores) -> float:
        found = estimate_drift(part, confidence=0.95)
        unit = found.unit * math.sqrt(part.base.n / size)
        shifted = margin * unit
        if found.log_sign:
            shifted = found.log_sign * math.log1p(found.log_sign * shifted)
        return found.estimate.point - shifted

    contributed = whole.beyond(margin)
    assert contributed is not None
    assert float(np.mean(contributed)) == pytest.approx(beyond(of), abs=1e-12)
    for left_out in (0, 17, int(np.argmax(np.abs(contributed)))):
        kept = np.delete(rows, left_out)
        change = beyond(of) - beyond(drawn(of, kept, size - 1))
        expected = (contributed[left_out] - np.mean(contributed)) / size
        assert change == pytest.approx(expected, rel=0.25, abs=2e-5)


def test_the_estimate_so_far_is_the_sigma_of_all_documents() -> None:
    of = population(3.0, 0.2, 900, aggregation="weighted_perplexity")
    assert excess(of, np.arange(900), 900).sigma == pytest.approx(3.0, rel=1e-6)


@pytest.mark.parametrize("aggregation", ["perplexity", "bits_per_byte"])
def test_a_lossless_and_a_bad_candidate_are_seen_in_a_tenth_of_some_thousand_documents(
    aggregation: Aggregation,
) -> None:
    """The lossless one passes there; the bad one is asked of all documents from there on."""
    size = 5000
    for sigma, end in ((0.0, "below"), (5.0, "to confirm")):
        of = population(sigma, 0.02, size, aggregation=aggregation)
        shares = []
        for seed in range(5):
            seen, used = stopped(of, np.random.default_rng(seed).permutation(size))
            assert seen == end
            shares.append(used / size)
        assert np.mean(shares) <= 0.1 + 1e-9


def stopped(of: PairedScores, order: np.ndarray) -> tuple[str | None, int]:
    """What an order shows first, "to confirm" where all documents are asked for it."""
    size = of.base.n
    for look in planned_looks(size)[:-1]:
        found = find(drawn(of, order, look), order[:look].tolist(), size, RULE)
        if found is not None and (found.side is not None or found.to_confirm):
            return found.side or "to confirm", look
    return None, size


@pytest.mark.parametrize("share", [0.02, 0.1])
@pytest.mark.parametrize("sigma", [0.98, 1.02])
def test_zero_inflated_losses_at_the_margin_are_contradicted_in_at_most_alpha_of_the_orders(
    sigma: float, share: float
) -> None:
    size, orders = 1500, 80
    rng = np.random.default_rng(int(1000 * share))
    base = -rng.gamma(1.5, 1.0, size)
    d = np.zeros(size)
    d[: round(share * size)] = 0.5 + rng.exponential(1.0, round(share * size))
    wanted = math.log1p(sigma * float(np.std(base, ddof=1)) / math.sqrt(size))
    of = paired(base, base - d * wanted / float(np.mean(d)), "perplexity")
    assert (estimate_drift(of, confidence=0.95).sigma > 1.0) is (sigma > 1.0)
    wrong = 0
    for seed in range(orders):
        side, _ = stopped(of, np.random.default_rng([7, seed]).permutation(size))
        assert side != "above"
        wrong += side == "below" and sigma > 1.0
    assert wrong / orders <= 0.05 + 3.0 * math.sqrt(0.05 * 0.95 / orders)


def gains(share: float, nats: float, sigma: float, size: int = 1500) -> PairedScores:
    """All documents lose alike, but for a share that gains so many nats; sigma of all is exact."""
    base = -np.random.default_rng(4).gamma(1.5, 1.0, size)
    d = np.zeros(size)
    d[: round(share * size)] = -nats
    wanted = math.log1p(sigma * float(np.std(base, ddof=1)) / math.sqrt(size))
    return paired(base, base - (d - float(np.mean(d)) + wanted), "perplexity")


def far_out(size: int, sigma: float) -> PairedScores:
    """A base whose scatter 1% of the documents carry; the candidate loses the same on each."""
    base = -np.random.default_rng(4).gamma(4.0, 0.25, size)
    base[: size // 100] *= 20.0
    unit = float(np.std(base, ddof=1)) / math.sqrt(size)
    return paired(base, base - math.log1p(sigma * unit), "perplexity")


@pytest.mark.parametrize(
    ("of", "suspected"),
    [
        (gains(0.005, 30.0, 0.5), 0.3),
        (gains(0.01, 12.0, 0.9), 0.1),
        (gains(0.005, 8.0, 0.9), 0.1),
        (far_out(1500, 0.97), 0.1),
    ],
    ids=["half a margin", "rare gains", "smaller gains", "a base that few documents scatter"],
)
def test_what_a_part_takes_for_a_regression_is_asked_of_all_documents(
    of: PairedScores, suspected: float
) -> None:
    """All documents pass, and up to half of the orders were stopped as regressed."""
    orders = 40
    sides = [
        stopped(of, np.random.default_rng([8, seed]).permutation(of.base.n))[0]
        for seed in range(orders)
    ]
    assert estimate_drift(of, confidence=0.95).sigma < 1.0
    assert "above" not in sides
    assert sides.count("to confirm") >= suspected * orders


@pytest.mark.parametrize("known", [False, True])
def test_no_part_shows_a_regression_of_scores_without_bounds(known: bool) -> None:
    of = population(40.0, 0.02, 1000)
    order = np.random.default_rng(2).permutation(1000)
    part, whole = drawn(of, order, 900), of.base if known else None
    found = find(part, order[:900].tolist(), 1000, RULE, base_of_all=whole)
    assert found is not None
    assert (found.side, found.error_chance, found.to_confirm) == (None, 1.0, True)


def test_a_part_of_zeros_and_ones_is_not_taken_for_the_whole_where_the_whole_is_known() -> None:
    rng = np.random.default_rng(6)
    base = np.where(rng.random(900) < 0.6, 1.0, 0.0)
    base[-1] = 0.5
    whole = paired(base, base, "mean")
    part = drawn(whole, np.arange(900), 400)
    found = find(part, list(range(400)), 900, RULE, base_of_all=whole.base)
    assert found is not None
    assert found.method == "bounded-betting"
    guessed = find(part, list(range(400)), 900, RULE)
    assert guessed is not None
    assert guessed.method == "flips-exact"


def test_one_document_that_loses_much_keeps_the_verdict_open() -> None:
    """The bound is three times what the worst document seen lost."""
    of = population(0.0, 0.01, 4000)
    order = np.random.default_rng(3).permutation(4000)
    part = drawn(of, order, 504)
    calm = find(part, order[:504].tolist(), 4000, RULE)
    values = part.candidate.values.copy()
    values[100] -= 6.0
    shaken = PairedScores(base=part.base, candidate=paired(values, values, "perplexity").base)
    found = find(shaken, order[:504].tolist(), 4000, RULE)
    assert calm is not None
    assert calm.side == "below"
    assert found is not None
    assert found.side is None
    assert found.assumed_worst == pytest.approx(18.0, rel=0.03)
    assert found.seen_worst == pytest.approx(6.0, rel=0.01)


def test_the_interval_holds_the_sigma_of_all_documents() -> None:
    size, missed, runs = 1200, 0, 60
    of = population(1.6, 0.3, size)
    for seed in range(runs):
        order = np.random.default_rng([5, seed]).permutation(size)
        found = find(drawn(of, order, 300), order[:300].tolist(), size, RULE, with_interval=True)
        assert found is not None
        assert found.low <= found.sigma <= found.high
        missed += not found.low <= 1.6 <= found.high
    allowed = 1.0 - RULE.interval_confidence
    assert missed / runs <= allowed + 3.0 * math.sqrt(allowed * (1.0 - allowed) / runs)


def test_known_base_scores_give_the_unit_without_error() -> None:
    of = population(0.0, 0.05, 1000)
    order = np.random.default_rng(1).permutation(1000)
    part = drawn(of, order, 200)
    found = find(part, order[:200].tolist(), 1000, RULE, base_of_all=of.base)
    assert found is not None
    assert found.unit == unit_of(of.base)


def test_a_base_that_does_not_scatter_yet_decides_nothing() -> None:
    same = paired(np.full(100, -1.0), np.full(100, -1.5), "perplexity")
    assert find(same, list(range(100)), 1000, RULE) is None


def test_no_drift_is_so_far_that_a_perplexity_would_be_negative() -> None:
    of = excess(paired([-1.0, -2.0, -4.0], [-1.0, -2.0, -4.0], "perplexity"), np.arange(3), 9)
    evidence = BoundedEvidence(of, 9, margin=1.0)
    assert evidence.against_more(-1e6) == -math.inf
    assert evidence.against_less(-1e6) == math.inf
