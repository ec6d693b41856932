"""Absolute limits of the gate."""

from __future__ import annotations

import math
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalguard.core.comparison import Comparison
from evalguard.core.distribution_comparison import DistributionComparison, Figure, Percentile
from evalguard.core.exit_code import decide_exit_code
from evalguard.core.gate import Gate
from evalguard.core.limits import KINDS, Limit, LimitState, LimitVerdict, figure_of, judge_limits
from evalguard.core.shown_tokens import KlEstimate
from evalguard.distributions.kl import KL_PERCENTS
from evalguard.errors import UsageError


def distribution(**figures: Any) -> DistributionComparison:
    return DistributionComparison(
        task="t", n=10, positions=100, top_k=10, confidence=0.95, **figures
    )


def judged(metric: str, limit: float, **figures: Any) -> LimitVerdict:
    (verdict,) = judge_limits([Limit(metric=metric, value=limit)], [distribution(**figures)], [])
    return verdict


def answered(share: float | None, interval: tuple[float, float] | None, **more: Any) -> Comparison:
    fields: dict[str, Any] = {
        "task": "t", "filter": "none", "metric": "acc", "higher_is_better": True, "n": 100,
        "n_used": 100, "base": 0.5, "base_stderr": 0.05, "candidate": 0.5, "candidate_stderr": 0.05,
        "sigma": 0.0, "sigma_interval": (-0.1, 0.1), "paired_stderr": 0.0025, "p_value": 0.5,
        "method": "mcnemar-exact", "confidence": 0.95, "false_alarm_probability": 0.0,
        "outcome": "unchanged", "significant": False, "certain": False, "bit_identical": False,
        "reason": "", "same_answer": share, "same_answer_interval": interval,
    }  # fmt: skip
    return Comparison(**{**fields, **more})


@pytest.mark.parametrize(
    ("value", "interval", "only_certain", "state", "certain"),
    [
        (0.02, (0.015, 0.025), False, "regressed", True),
        (0.02, (0.005, 0.035), False, "regressed", False),
        (0.02, None, False, "regressed", False),
        (0.02, (0.015, 0.025), True, "regressed", True),
        # not "undecided", which a gate may let pass: nothing is known
        (0.02, (0.005, 0.035), True, "failed", False),
        (0.01, (0.01, 0.01), False, "failed", False),
        (0.0, (0.0, 0.0), False, "failed", False),
        (None, None, False, "failed", False),
        (math.nan, None, False, "failed", False),
    ],
)
def test_a_lower_bound_breaks_an_upper_limit_and_never_keeps_it(
    value, interval, only_certain, state, certain
):
    bound = KlEstimate(
        task="t", n=10, positions=100, confidence=0.95, tokens=20.0,
        kl_at_least=Figure(value=value, interval=interval), mass_seen=Figure(value=0.9),
    )  # fmt: skip
    limit = Limit(metric="kl_mean", value=0.01)
    (verdict,) = judge_limits([limit], [], [], only_certain=only_certain, bounds=[bound])
    assert (verdict.state, verdict.certain, verdict.at_least) == (state, certain, True)
    assert verdict.value == (value if state == "regressed" else None)
    if verdict.interval is not None:
        assert verdict.interval == (interval[0], math.inf)
    assert verdict.state != "regressed" or verdict.bounds == (value, math.inf)


def test_a_bound_is_asked_of_the_mean_alone_and_only_where_nothing_was_measured():
    bound = KlEstimate(
        task="t", n=10, positions=100, confidence=0.95,
        kl_at_least=Figure(value=9.0, interval=(8.0, 10.0)),
    )  # fmt: skip
    limits = [Limit(metric="kl_mean", value=0.01), Limit(metric="kl_max", value=0.01)]
    measured = distribution(kl=Figure(value=0.001, interval=(0.0009, 0.0011)))
    verdicts = judge_limits(limits[:1], [measured], [], bounds=[bound])
    assert [(one.state, one.at_least) for one in verdicts] == [("passed", False)]
    verdicts = judge_limits(limits, [], [], bounds=[bound])
    assert [(one.metric, one.state) for one in verdicts] == [
        ("kl_mean", "regressed"),
        ("kl_max", "failed"),
    ]


@pytest.mark.parametrize(
    ("value", "interval", "state", "certain"),
    [
        (0.005, (0.004, 0.006), "passed", False),
        (0.009, (0.008, 0.011), "undecided", False),
        (0.012, (0.009, 0.015), "regressed", False),
        (0.012, (0.011, 0.013), "regressed", True),
        (0.01, (0.01, 0.01), "passed", False),
        (0.005, None, "undecided", False),  # of one document nothing is known
        (0.02, None, "regressed", False),
        (0.005, (0.004, math.inf), "undecided", False),
        (math.inf, None, "regressed", False),
        (None, None, "failed", False),
        (math.nan, None, "failed", False),
    ],
)
def test_an_upper_limit(value, interval, state, certain):
    verdict = judged("kl_mean", 0.01, kl=Figure(value=value, interval=interval))
    assert (verdict.state, verdict.certain) == (state, certain)
    assert verdict.kind == "upper"
    assert verdict.reason


@pytest.mark.parametrize(
    ("value", "interval", "state", "certain"),
    [
        (0.99, (0.985, 0.995), "passed", False),
        (0.985, (0.975, 0.99), "undecided", False),
        (0.975, (0.97, 0.985), "regressed", False),
        (0.95, (0.94, 0.96), "regressed", True),
    ],
)
def test_a_lower_limit(value, interval, state, certain):
    verdict = judged("same_top1", 0.98, same_top1=Figure(value=value, interval=interval))
    assert (verdict.state, verdict.certain) == (state, certain)
    assert verdict.kind == "lower"


@given(
    value=st.floats(0, 1),
    ends=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    limit=st.floats(0, 1),
    metric=st.sampled_from(["kl_mean", "same_top1"]),
)
def test_a_pass_is_a_whole_interval_within_and_a_regression_a_value_beyond(
    value, ends, limit, metric
):
    low, high = min(value, *ends), max(value, *ends)
    name = "kl" if metric == "kl_mean" else metric
    verdict = judged(metric, limit, **{name: Figure(value=value, interval=(low, high))})
    within = high <= limit if metric == "kl_mean" else low >= limit
    beyond = value > limit if metric == "kl_mean" else value < limit
    assert (verdict.state == "passed") == within
    assert (verdict.state == "regressed") == beyond
    assert verdict.state in get_args(LimitState)


@pytest.mark.parametrize(
    ("metric", "field"),
    [
        ("kl_mean", "kl"), ("dp_rms", "dp_rms"), ("dp_mean", "dp"), ("same_top1", "same_top1"),
        ("same_topk", "same_topk"),
    ],
)  # fmt: skip
def test_each_name_is_about_its_own_figure(metric, field):
    figure = Figure(value=0.25, stderr=0.01, interval=(0.2, 0.3))
    assert figure_of(metric, distribution(**{field: figure})) == figure


@pytest.mark.parametrize(
    ("metric", "percent"),
    [("kl_median", 50.0), ("kl_p90", 90.0), ("kl_p95", 95.0), ("kl_p99", 99.0),
     ("kl_p99.9", 99.9), ("kl_max", 100.0)],
)  # fmt: skip
def test_each_percentile_is_one_that_is_measured(metric, percent):
    assert percent in KL_PERCENTS
    percentiles = tuple(Percentile(percent=p, figure=Figure(value=p)) for p in KL_PERCENTS)
    assert figure_of(metric, distribution(kl_percentiles=percentiles)).value == percent


@pytest.mark.parametrize(
    ("low", "high", "least", "most"),
    [(-0.3, 0.1, 0.0, 0.3), (-0.3, -0.1, 0.1, 0.3), (0.1, 0.3, 0.1, 0.3)],
)
def test_the_mean_change_counts_without_its_sign(low, high, least, most):
    middle = (low + high) / 2
    figure = figure_of("dp_mean", distribution(dp=Figure(value=middle, interval=(low, high))))
    assert figure.value == abs(middle)
    assert figure.interval == (least, most)
    assert judged("dp_mean", 0.05, dp=Figure(value=-0.2)).state == "regressed"


def test_an_estimate_says_when_its_proven_bound_reaches_beyond():
    figure = Figure(value=0.005, interval=(0.004, 0.006), bounds=(0.004, 0.05))
    verdict = judged("kl_mean", 0.01, kl=figure)
    assert verdict.state == "passed"
    assert "proven bound reaches above the limit" in verdict.reason
    near = Figure(value=0.005, interval=(0.004, 0.006), bounds=(0.004, 0.008))
    assert "proven" not in judged("kl_mean", 0.01, kl=near).reason


def test_what_was_not_measured_is_failed_and_never_passed():
    limits = [Limit(metric="kl_mean", value=0.1), Limit(metric="same_answer", value=0.9)]
    verdicts = judge_limits(limits, [], [answered(None, None)])
    assert [v.state for v in verdicts] == ["failed", "failed"]
    assert verdicts[0].reason == "not known: of no task distributions were compared"
    assert verdicts[1].reason == "not known: of no task answers are known"
    broken = DistributionComparison(
        task="t", n=1, positions=1, top_k=1, confidence=0.95, failure="NaN"
    )
    (verdict,) = judge_limits(limits[:1], [broken], [])
    assert (verdict.state, verdict.reason) == ("failed", "not known: NaN")


def test_every_task_is_held_to_every_limit():
    limits = [Limit(metric="kl_mean", value=0.1), Limit(metric="kl_max", value=0.1)]
    verdicts = judge_limits(limits, [distribution(), distribution()], [])
    assert [v.metric for v in verdicts] == ["kl_mean", "kl_mean", "kl_max", "kl_max"]


@pytest.mark.parametrize(
    ("metric", "value", "said"),
    [
        ("kl_men", 0.1, "did you mean 'kl_mean'"),
        ("kl_mean", -0.1, "0 or more, not -0.1"),
        ("kl_mean", math.nan, "0 or more, not nan"),
        ("kl_mean", math.inf, "0 or more, not inf"),
        ("same_top1", 98, "between 0 and 1, not 98"),
        ("kl_mean", "much", "0 or more, not 'much'"),
        ("kl_mean", True, "0 or more, not True"),
    ],
)
def test_impossible_limits_are_refused(metric, value, said):
    with pytest.raises(UsageError, match="limit") as error:
        Limit(metric=metric, value=value)
    assert said in str(error.value)


FINE = answered(0.97, (0.96, 0.98))
BEYOND = distribution(kl=Figure(value=0.012, interval=(0.009, 0.015)))


def gate(fail_on: str = "margin", **limits: float) -> Gate:
    return Gate(
        fail_on=fail_on,
        limits=tuple(Limit(metric=name, value=value) for name, value in limits.items()),
    )


def test_a_broken_limit_fails_the_gate_whatever_the_margin_says():
    result = gate(kl_mean=0.01).judge([FINE], [BEYOND])
    assert result.state == "regressed"
    assert not result.passed
    assert result.regressed == ()
    assert decide_exit_code(result, strict=False, git_bisect=True) == 1
    assert result.reason == "1 of 1 limits regressed (t kl_mean)"


def test_certain_asks_for_the_whole_interval():
    result = gate("certain", kl_mean=0.01).judge([FINE], [BEYOND])
    assert result.state == "undecided"
    assert result.passed
    surely = distribution(kl=Figure(value=0.012, interval=(0.011, 0.015)))
    assert gate("certain", kl_mean=0.01).judge([FINE], [surely]).state == "regressed"


def test_an_unmeasured_limit_fails_with_its_own_exit_code():
    result = gate(kl_mean=0.01).judge([FINE])
    assert result.state == "failed"
    assert decide_exit_code(result, strict=False, git_bisect=False) == 3
    assert decide_exit_code(result, strict=False, git_bisect=True) == 125


def test_kept_limits_pass_and_are_said():
    result = gate(kl_mean=0.1, same_answer=0.9).judge([FINE], [BEYOND])
    assert result.state == "passed"
    assert result.reason == "the gated metric passed, and all 2 limits kept"
    assert [v.state for v in result.limits] == ["passed", "passed"]


def test_limits_and_the_confinement_of_metrics_are_two_things():
    confined = Gate(gate_metrics=("acc",), limits=(Limit(metric="kl_mean", value=0.01),))
    assert confined.judge([FINE], [BEYOND]).state == "regressed"
    assert confined.needs_distributions
    assert not Gate(limits=(Limit(metric="same_answer", value=0.9),)).needs_distributions
    assert set(KINDS.values()) == {"upper", "lower"}


def test_the_largest_value_has_no_interval_and_passes_by_itself():
    largest = (Percentile(percent=100.0, figure=Figure(value=0.4)),)
    assert judged("kl_max", 0.5, kl_percentiles=largest).state == "passed"
    assert judged("kl_max", 0.3, kl_percentiles=largest).state == "regressed"


@pytest.mark.parametrize(("n", "rare"), [(10, "1 in 3"), (100, "1 in 33"), (2_000, "1 in 668")])
def test_a_kept_mean_says_what_its_documents_cannot_show(n, rare):
    figure = Figure(value=0.005, interval=(0.004, 0.006))
    of = DistributionComparison(
        task="t", n=n, positions=9 * n, top_k=10, confidence=0.95, kl=figure
    )
    (kept,) = judge_limits([Limit(metric="kl_mean", value=0.01)], [of], [])
    assert kept.reason.endswith(
        f"{n:,} documents may hold none of a kind that is rarer than {rare}"
    )
    share = 1.0 / int(rare.split()[-1])
    assert (1.0 - share) ** n <= 0.05 < (1.0 - 1.0 / (1.0 / share + 1.0)) ** n
    (broken,) = judge_limits([Limit(metric="kl_mean", value=0.001)], [of], [])
    assert "rarer" not in broken.reason
