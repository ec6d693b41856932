"""Documents that a limit on a figure of answers takes: exact binomial probabilities."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from evalguard.core.limits import Limit
from evalguard.planning.limit_plan import documents_to_keep, documents_to_see, plan_limit
from evalguard.stats.effective_sample import Share


def chance_to_tell(n: int, limit: float, rate: float, level: float) -> float:
    """That Clopper and Pearson's upper end, by the beta distribution, is within the limit."""
    ends = ((k, stats.beta.ppf(1.0 - level, k + 1, n - k)) for k in range(n))
    most = max((k for k, end in ends if end <= limit), default=-1)
    return float(stats.binom.cdf(most, n, rate)) if most >= 0 else 0.0


@pytest.mark.parametrize(
    ("rate", "power", "n"), [(0.01, 0.95, 299), (0.01, 0.8, 161), (1 / 3, 0.8, 4)]
)
def test_what_never_may_happen_is_seen_by_the_rule_of_three(
    rate: float, power: float, n: int
) -> None:
    assert documents_to_see(rate, power=power) == n
    assert 1.0 - (1.0 - rate) ** n >= power > 1.0 - (1.0 - rate) ** (n - 1)


@pytest.mark.parametrize(("limit", "rate"), [(0.01, 0.0), (0.05, 0.01), (0.05, 0.03), (0.2, 0.1)])
def test_a_limit_is_kept_for_sure_by_so_many_documents(limit: float, rate: float) -> None:
    found = documents_to_keep(limit, rate, level=0.025, power=0.8)
    assert found is not None
    assert chance_to_tell(found, limit, rate, 0.025) >= 0.8
    assert chance_to_tell(int(0.8 * found), limit, rate, 0.025) < 0.8


def test_without_one_that_counts_it_is_the_closed_form() -> None:
    # 1 - 0.025^(1/n) <= 1%
    assert documents_to_keep(0.01, 0.0, level=0.025, power=0.8) == 368


@pytest.mark.parametrize("rate", [0.01, 0.02])
def test_no_number_shows_a_limit_kept_that_is_not(rate: float) -> None:
    assert documents_to_keep(0.01, rate, level=0.025, power=0.8) is None


PLANNED: dict[str, Any] = {
    "task": "calls", "filter_name": "text", "n": 200, "pilot_n": 64, "level": 0.025, "power": 0.8,
}  # fmt: skip


def test_a_share_that_has_to_stay_above_is_planned_by_its_complement() -> None:
    above = plan_limit(Limit(metric="valid_json", value=0.95), share=0.97, **PLANNED)
    below = plan_limit(Limit(metric="cut", value=0.05), share=0.03, **PLANNED)
    assert (above.needed, above.fewest) == (below.needed, below.fewest)
    assert above.fewest == 72
    unknown = plan_limit(Limit(metric="cut", value=0.05), share=None, **PLANNED)
    assert (unknown.needed, unknown.fewest) == (None, below.fewest)


@pytest.mark.parametrize("name", ["loops", "valid_json"])
def test_a_literal_limit_says_how_rare_a_break_the_documents_show(name: str) -> None:
    literal = plan_limit(
        Limit(metric=name, value=float(name == "valid_json")), share=0.0, **PLANNED
    )
    assert literal.literal
    assert literal.seen == pytest.approx(1.0 - 0.2 ** (1 / 200))
    assert (literal.needed, literal.fewest) == (161, 1)


@pytest.mark.parametrize("alike", [0.02, 0.3, 5.0])
def test_documents_with_several_answers_are_never_too_few(alike: float) -> None:
    # each document has its own rate, beta distributed about 3%; alike: how near to all or none
    rng, rate, repeats = np.random.default_rng(7), 0.03, 4
    n = documents_to_keep(0.08, rate, level=0.025, power=0.8)
    assert n is not None
    own = rng.beta(rate / alike, (1.0 - rate) / alike, size=(1500, n))
    hits = rng.binomial(repeats, own) / repeats
    shares = [Share(hits=of, positions=np.ones(n)) for of in hits]
    kept = [share.interval(confidence=0.95)[1] <= 0.08 for share in shares]
    assert np.mean(kept) >= 0.8 - 0.025
