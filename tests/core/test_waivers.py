"""Waivers: a known degradation is let through up to a size, until a day, and never silently."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalguard.core.comparison import Comparison
from evalguard.core.exit_code import decide_exit_code
from evalguard.core.gate import Gate, GateResult, Waiver
from evalguard.core.limits import Limit
from evalguard.core.pairing import pair
from evalguard.core.scores import ScoreTable
from evalguard.stats.compare_scores import compare_scores

TODAY = "2026-11-20"
WAIVER = Waiver(
    task="lastword", metric="acc", up_to=5.0, until="2026-12-31", reason="known", where="g.yaml:7"
)


def comparison(wrong: int, metric: str = "acc") -> Comparison:
    """The candidate has this many more documents wrong than the base, of 100."""
    hashes = tuple(map(str, range(100)))
    base = ScoreTable(
        task="lastword",
        filter="none",
        metric=metric,
        aggregation="mean",
        higher_is_better=True,
        doc_ids=np.arange(100),
        values=(np.arange(100) < 80).astype(float),
        doc_hashes=hashes,
        prompt_hashes=hashes,
        target_hashes=hashes,
    )
    candidate = replace(base, values=(np.arange(100) < 80 - wrong).astype(float))
    return compare_scores(pair(base, candidate))


REGRESSED = comparison(10)  # sigma 2.49


def judged(
    *waivers: Waiver, comparisons: tuple[Comparison, ...] = (REGRESSED,), today: str = TODAY
) -> tuple[GateResult, str]:
    gate = Gate(waivers=waivers, today=today)
    result = gate.judge(comparisons)
    return result, "\n".join(one.text for one in gate.find_unused_waivers(comparisons, result))


def test_an_accepted_metric_stays_regressed_and_does_not_fail_the_gate() -> None:
    result, notes = judged(WAIVER)
    assert REGRESSED.outcome == "regressed"
    assert (result.passed, result.state, result.regressed) == (True, "passed", ())
    assert [(one.key, one.waiver) for one in result.accepted] == [
        (("lastword", "none", "acc"), WAIVER)
    ]
    assert result.reason == "1 of 1 gated metrics regressed and accepted by waivers"
    assert decide_exit_code(result, strict=True, git_bisect=False) == 0
    assert notes == ""


@pytest.mark.parametrize(
    "changed",
    [
        {"task": "other"},
        {"metric": "f1"},
        {"filter": "strict"},
        {"up_to": 2.4},
        {"until": "2026-11-19"},
    ],
)
def test_it_covers_its_own_metric_size_and_time_only(changed: dict[str, object]) -> None:
    result, notes = judged(replace(WAIVER, **changed))
    assert (result.passed, result.accepted) == (False, ())
    assert "waiver of " in notes


def test_the_last_day_counts() -> None:
    assert judged(WAIVER, today="2026-12-31")[0].passed
    assert not judged(WAIVER, today="2027-01-01")[0].passed


def test_an_expired_waiver_is_loud_even_where_nothing_regressed() -> None:
    for found in (REGRESSED, comparison(0)):
        notes = judged(WAIVER, comparisons=(found,), today="2027-01-01")[1]
        assert "waiver of lastword acc: it EXPIRED on 2026-12-31" in notes
        assert "g.yaml:7" in notes


@pytest.mark.parametrize(
    ("waiver", "found", "today", "said"),
    [
        (WAIVER, REGRESSED, "2026-12-20", "ends in 11 days, on 2026-12-31"),
        (
            replace(WAIVER, up_to=2.0),
            REGRESSED,
            TODAY,
            "sigma 2.49 is beyond the 2 that",
        ),
        (WAIVER, comparison(0), TODAY, "not needed in this run"),
        (replace(WAIVER, task="lastwrod"), REGRESSED, TODAY, "names nothing that was compared"),
    ],
)
def test_what_is_odd_about_a_waiver_is_said(
    waiver: Waiver, found: Comparison, today: str, said: str
) -> None:
    assert said in judged(waiver, comparisons=(found,), today=today)[1]


def test_another_metric_that_regressed_still_fails() -> None:
    result, _ = judged(WAIVER, comparisons=(REGRESSED, comparison(10, "acc_norm")))
    assert (result.state, result.regressed) == ("regressed", (("lastword", "none", "acc_norm"),))
    assert len(result.accepted) == 1


def test_what_gave_no_number_is_never_accepted() -> None:
    failed = replace(
        REGRESSED, outcome="failed", sigma=None, sigma_interval=None, p_value=None, reason="crash"
    )
    assert judged(WAIVER, comparisons=(failed,))[0].state == "failed"


def test_an_infinite_drift_is_never_accepted() -> None:
    endless = replace(REGRESSED, sigma=float("inf"), sigma_interval=(float("inf"), float("inf")))
    assert not WAIVER.covers(endless, TODAY)
    assert not replace(WAIVER, up_to=1e308).covers(endless, TODAY)


def test_an_absolute_limit_is_not_accepted() -> None:
    gate = Gate(waivers=(WAIVER,), today=TODAY, limits=(Limit(metric="kl_mean", value=0.1),))
    assert not gate.judge((REGRESSED,)).passed


@given(st.integers(0, 30), st.floats(0.1, 10.0))
def test_waivers_only_ever_take_away_from_what_regressed(wrong: int, up_to: float) -> None:
    found = comparison(wrong)
    without = Gate().judge((found,))
    result, _ = judged(replace(WAIVER, up_to=up_to), comparisons=(found,))
    accepted = tuple(one.key for one in result.accepted)
    assert result.regressed + accepted == without.regressed
    assert bool(accepted) == (bool(without.regressed) and (found.sigma or 0.0) <= up_to)
