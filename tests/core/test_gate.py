from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalguard.core.comparison import Comparison
from evalguard.core.exit_code import decide_exit_code
from evalguard.core.gate import Gate, GateResult
from evalguard.core.pairing import PairedScores
from evalguard.core.scores import ScoreTable
from evalguard.core.verdict import Margin, decide
from evalguard.errors import UsageError
from evalguard.stats.compare_scores import compare_documents, compare_scores, failed_comparison


def comparison(
    sigma: float,
    low: float,
    high: float,
    *,
    metric: str = "acc",
    task: str = "passages",
    p_value: float = 0.5,
    false_alarm: float = 0.0,
    margin: float = 1.0,
) -> Comparison:
    verdict = decide(sigma, low, high, margin)
    return Comparison(
        task=task,
        filter="none",
        metric=metric,
        higher_is_better=True,
        n=100,
        n_used=100,
        base=0.5,
        base_stderr=0.05,
        candidate=0.5 - 0.05 * sigma,
        candidate_stderr=0.05,
        sigma=sigma,
        sigma_interval=(low, high),
        paired_stderr=0.01,
        p_value=p_value,
        method="paired-t",
        confidence=0.95,
        false_alarm_probability=false_alarm,
        outcome=verdict.outcome,
        significant=verdict.significant,
        certain=verdict.certain,
        bit_identical=False,
        reason="",
    )


UNCHANGED = comparison(0.0, -0.5, 0.5)
UNCHANGED_OTHER = comparison(0.0, -0.5, 0.5, metric="f1")
IMPROVED = comparison(-1.0, -1.5, -0.5)
DEGRADED = comparison(0.5, 0.1, 0.9, p_value=0.008)
UNDECIDED = comparison(0.5, -0.5, 1.5)
CERTAIN = comparison(1.5, 1.2, 1.8, p_value=1e-9)
SIGNIFICANT = comparison(1.5, 0.5, 2.5, p_value=1e-3)
LITERAL = comparison(1.5, -0.5, 3.5, p_value=0.1)
FAILED = failed_comparison(("passages", "none", "f1"), "the worker died")


@pytest.mark.parametrize(
    ("fail_on", "failing", "undecided"),
    [
        ("real", {"CERTAIN", "SIGNIFICANT"}, {"LITERAL", "UNDECIDED"}),
        ("margin", {"CERTAIN", "SIGNIFICANT", "LITERAL"}, {"UNDECIDED"}),
        ("significant", {"CERTAIN", "SIGNIFICANT"}, {"LITERAL", "UNDECIDED"}),
        ("certain", {"CERTAIN"}, {"SIGNIFICANT", "LITERAL", "UNDECIDED"}),
        ("any-degradation", {"CERTAIN", "SIGNIFICANT", "LITERAL", "DEGRADED"}, {"UNDECIDED"}),
    ],
)
@pytest.mark.parametrize(
    "name", ["UNCHANGED", "IMPROVED", "DEGRADED", "UNDECIDED", "CERTAIN", "SIGNIFICANT", "LITERAL"]
)
def test_each_policy_fails_on_what_it_says(fail_on, failing, undecided, name):
    result = Gate(fail_on=fail_on).judge([globals()[name]])
    expected = "regressed" if name in failing else "undecided" if name in undecided else "passed"
    assert result.state == expected
    assert result.passed == (expected != "regressed")


def test_a_failure_is_its_own_state_and_never_passes():
    for fail_on in ("real", "margin", "significant", "certain", "any-degradation"):
        result = Gate(fail_on=fail_on).judge([UNCHANGED, FAILED])
        assert (result.state, result.passed) == ("failed", False)
        assert result.failed == (("passages", "none", "f1"),)
        assert result.regressed == ()


def test_nothing_compared_is_no_pass():
    result = Gate().judge([])
    assert (result.state, result.passed, result.family_false_alarm) == ("failed", False, None)
    assert "nothing was compared" in result.reason


@pytest.mark.parametrize(
    ("comparisons", "state"),
    [
        ([UNCHANGED, IMPROVED, DEGRADED], "passed"),
        ([UNCHANGED, UNDECIDED], "undecided"),
        ([UNDECIDED, FAILED], "failed"),
        ([CERTAIN, UNDECIDED, FAILED, UNCHANGED], "regressed"),
    ],
)
def test_the_gravest_known_state_wins(comparisons, state):
    for ordered in (comparisons, comparisons[::-1]):
        assert Gate().judge(ordered).state == state


def test_a_regression_beside_a_failure_names_both():
    result = Gate().judge([CERTAIN, FAILED])
    assert "1 of 2 gated metrics regressed (passages acc)" in result.reason
    assert "1 of 2 gated metrics failed (passages f1)" in result.reason


def test_undecided_metrics_pass_unless_the_policy_fails_them():
    assert Gate().judge([UNDECIDED]).passed
    result = Gate(undecided="fail").judge([UNDECIDED])
    assert (result.state, result.passed) == ("undecided", False)


def result_with(state: str, *, passed: bool | None = None) -> GateResult:
    example = {
        "passed": [UNCHANGED],
        "regressed": [CERTAIN, FAILED],
        "undecided": [UNDECIDED],
        "failed": [FAILED],
    }
    result = Gate().judge(example[state])
    assert result.state == state
    return result if passed is None else dataclasses.replace(result, passed=passed)


@pytest.mark.parametrize(
    ("state", "strict", "git_bisect", "code"),
    [
        ("passed", False, False, 0),
        ("passed", True, False, 0),
        ("passed", True, True, 0),
        ("regressed", False, False, 1),
        ("regressed", True, False, 1),
        ("regressed", True, True, 1),
        ("failed", False, False, 3),
        ("failed", True, False, 3),
        ("failed", False, True, 125),
        ("undecided", False, False, 0),
        ("undecided", True, False, 4),
        ("undecided", False, True, 0),
        ("undecided", True, True, 125),
    ],
)
def test_each_state_has_its_exit_code(state, strict, git_bisect, code):
    assert decide_exit_code(result_with(state), strict=strict, git_bisect=git_bisect) == code


def test_undecided_metrics_that_the_policy_fails_exit_with_4_without_strict():
    result = result_with("undecided", passed=False)
    assert decide_exit_code(result, strict=False, git_bisect=False) == 4
    assert decide_exit_code(result, strict=False, git_bisect=True) == 125


def test_holm_decides_any_degradation_over_the_gated_metrics():
    gate = Gate(fail_on="any-degradation")
    weak = comparison(0.5, 0.1, 0.9, p_value=0.02, metric="acc")
    assert gate.judge([weak]).state == "regressed"  # 0.02 <= 0.025
    others = [comparison(0.0, -0.5, 0.5, metric=f"m{i}") for i in range(3)]
    result = gate.judge([weak, *others])
    assert result.state == "passed"
    assert result.holm_p_values == pytest.approx((0.08, 1.0, 1.0, 1.0))
    narrowed = Gate(fail_on="any-degradation", gate_metrics=("acc",)).judge([weak, *others])
    assert narrowed.state == "regressed"


def test_any_degradation_still_fails_the_literal_rule():
    assert Gate(fail_on="any-degradation").judge([LITERAL]).state == "regressed"


def test_a_failed_metric_has_no_holm_p_value():
    result = Gate().judge([FAILED, DEGRADED])
    assert result.holm_p_values == (None, 0.008)


def test_the_family_wise_chance_is_a_bound_and_its_value_under_independence():
    family = [comparison(0.0, -0.5, 0.5, metric=f"m{i}", false_alarm=0.1) for i in range(3)]
    result = Gate(fail_on="margin").judge(family)
    assert result.family_false_alarm == pytest.approx(0.3)
    assert result.family_false_alarm_independent == pytest.approx(1.0 - 0.9**3)


def test_the_default_gate_asks_for_a_real_degradation_by_holm_over_all_gated_metrics():
    weak = comparison(1.5, 0.01, 2.99, metric="acc", p_value=0.02)
    assert Gate().judge([weak]).state == "regressed"
    others = [comparison(0.0, -0.5, 0.5, metric=f"m{i}") for i in range(3)]
    several = Gate().judge([weak, *others])
    assert several.state == "undecided"
    assert several.holm_p_values[0] == pytest.approx(0.08)
    assert Gate(fail_on="margin").judge([weak, *others]).state == "regressed"


def test_an_unchanged_candidate_fails_the_default_gate_with_its_level_at_most():
    family = [comparison(0.0, -2.0, 2.0, metric=f"m{i}", false_alarm=0.2) for i in range(4)]
    result = Gate().judge(family)
    assert result.family_false_alarm == result.family_false_alarm_independent == 0.025


def test_what_may_be_chance_is_shown_as_undecided_with_its_p_value():
    weak = comparison(1.5, -0.3, 3.3, metric="acc", p_value=0.06)
    shown_only = comparison(1.5, -0.3, 3.3, metric="f1", p_value=0.2)
    gate = Gate(gate_metrics=("acc",))
    found, other = gate.with_outcomes([weak, shown_only], gate.judge([weak, shown_only]))
    assert (found.outcome, other.outcome) == ("undecided", "undecided")
    assert "p = 0.06 does not say that it is real" in found.reason
    literal = Gate(fail_on="margin")
    assert literal.with_outcomes([weak], literal.judge([weak])) == (weak,)


@pytest.mark.parametrize("p_value", [0.0251, 0.03, 0.049, 0.05])
def test_a_p_value_above_the_level_of_the_interval_never_fails_the_default_gate(p_value):
    weak = comparison(1.5, -0.01, 3.01, metric="acc", p_value=p_value)
    assert Gate().judge([weak]).state == "undecided"


@pytest.mark.parametrize(("confidence", "state"), [(0.95, "undecided"), (0.90, "regressed")])
def test_the_confidence_moves_interval_and_gate_together(confidence, state):
    low = 0.01 if confidence == 0.90 else -0.1
    weak = dataclasses.replace(comparison(1.5, low, 3.0 - low, p_value=0.04), confidence=confidence)
    assert Gate(confidence=confidence).judge([weak]).state == state


@pytest.mark.parametrize(("high", "outcome"), [(0.9, "unchanged"), (1.2, "undecided")])
def test_a_drift_within_the_margin_is_degraded_only_where_holm_calls_it_real(high, outcome):
    weak = comparison(0.5, 0.1, high, p_value=0.02, metric="acc")
    others = [comparison(0.0, -0.5, 0.5, metric=f"m{i}") for i in range(3)]
    alone, several = Gate(), Gate()
    assert alone.with_outcomes([weak], alone.judge([weak]))[0].outcome == "degraded"
    family = [weak, *others]
    assert several.with_outcomes(family, several.judge(family))[0].outcome == outcome


@pytest.mark.parametrize("policy", ["warn", "pass", "fail"])
def test_what_becomes_of_an_undecided_run_is_the_policys(policy):
    weak = comparison(1.5, -0.3, 3.3, metric="acc", p_value=0.06)
    result = Gate(undecided=policy).judge([weak])
    assert (result.state, result.when_undecided) == ("undecided", policy)
    assert decide_exit_code(result, strict=False, git_bisect=False) == (
        4 if policy == "fail" else 0
    )


def test_any_degradation_adds_its_holm_level_to_the_bound():
    family = [comparison(0.0, -0.5, 0.5, false_alarm=0.1)]
    assert Gate(fail_on="any-degradation").judge(family).family_false_alarm == pytest.approx(0.125)


def test_a_tiny_family_wise_chance_keeps_its_digits():
    family = [comparison(0.0, -0.5, 0.5, metric=m, false_alarm=1e-30) for m in ("a", "b")]
    result = Gate().judge(family)
    assert result.family_false_alarm == pytest.approx(2e-30)
    assert result.family_false_alarm_independent == pytest.approx(2e-30)


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=20))
def test_the_bound_is_never_below_the_chance_under_independence(chances):
    family = [
        comparison(0.0, -0.5, 0.5, metric=f"m{i}", false_alarm=chance)
        for i, chance in enumerate(chances)
    ]
    result = Gate(fail_on="margin").judge(family)
    assert 0.0 <= result.family_false_alarm_independent <= result.family_false_alarm + 1e-12 <= 2.0
    assert result.family_false_alarm <= 1.0
    expected = 1.0 - math.prod(1.0 - chance for chance in chances)
    assert result.family_false_alarm_independent == pytest.approx(expected, abs=1e-12)


def test_ungated_metrics_are_shown_and_decide_nothing():
    other = comparison(0.0, -0.5, 0.5, metric="perplexity", task="prose")
    for name in ("perplexity", "prose/perplexity"):
        result = Gate(gate_metrics=(name,)).judge([CERTAIN, FAILED, other])
        assert result.state == "passed"
        assert result.gated == (("prose", "none", "perplexity"),)


def test_what_the_gate_lists_and_was_not_compared_is_missing():
    there = comparison(0.0, -0.5, 0.5, metric="acc_norm")
    gate = Gate(gate_metrics=("acc_nrm",), margins=(("passages/acc_norm", Margin(2.0)),))
    assert gate.missing([there]) == ("acc_nrm",)
    assert Gate(gate_metrics=("acc_norm",)).missing([there]) == ()


def test_an_advisory_metric_is_shown_and_never_fails():
    acc = comparison(1.5, 1.2, 1.8, metric="acc", p_value=1e-9)
    for name in ("acc", "passages/acc"):
        result = Gate(advisory=(name,)).judge([acc, UNCHANGED_OTHER])
        assert result.state == "passed"
        assert result.gated == (UNCHANGED_OTHER.key,)


@pytest.mark.parametrize(
    ("text", "value", "unit", "written"),
    [
        (1, 1.0, "sigma", "1 sigma"),
        ("1.25", 1.25, "sigma", "1.25 sigma"),
        ("2 sigma", 2.0, "sigma", "2 sigma"),
        ("1pp", 0.01, "points", "1pp"),
        ("0.5 pp", 0.005, "points", "0.5pp"),
        ("2%", 0.02, "relative", "2%"),
    ],
)
def test_a_margin_is_given_in_sigma_points_or_relative_to_the_base(text, value, unit, written):
    margin = Margin.parse(text)
    assert (margin.value, margin.unit, margin.text) == (pytest.approx(value), unit, written)
    assert Margin.parse(written) == margin


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        *((text, "a margin is a number of sigmas") for text in
          ("", "pp", "-1", "-1pp", "1PP", "1 pt", "nan", "inf", True, None, "1pp2", "1,5pp", [1])),
        ("1e400", "a margin is finite, not 1e400"),
        ("1e400%", "a margin is finite, not 1e400%"),
        ("100pp", "below 100pp, not 100pp: no metric between 0 and 1 drifts by more"),
        ("200pp", "the gate could not fail"),
    ],
)  # fmt: skip
def test_what_is_no_margin_is_refused(wrong, said):
    with pytest.raises(ValueError, match=said):
        Margin.parse(wrong)


def paired(base, candidate, aggregation):
    tables = (
        ScoreTable(
            task="passages", filter="none", metric="acc", aggregation=aggregation,
            higher_is_better=aggregation == "mean", doc_ids=np.arange(len(values)), values=values,
            weights=None, doc_hashes=(), prompt_hashes=(), target_hashes=(),
        )
        for values in (base, candidate)
    )  # fmt: skip
    one, other = tables
    return PairedScores(base=one, candidate=other)


HALF_RIGHT = np.arange(200) % 2.0
PASSAGES = -1.0 - np.arange(200) % 7.0


@pytest.mark.parametrize(
    ("base", "candidate", "aggregation", "margin", "expected"),
    [
        # 3 of 100 right answers lost, of 200: 1.5 points, and 3% of the base's value
        (HALF_RIGHT, np.where(np.arange(200) < 6, 0.0, HALF_RIGHT), "mean", "1pp", "regressed"),
        (HALF_RIGHT, np.where(np.arange(200) < 6, 0.0, HALF_RIGHT), "mean", "1.5pp", "undecided"),
        (HALF_RIGHT, np.where(np.arange(200) < 6, 0.0, HALF_RIGHT), "mean", "2%", "regressed"),
        (HALF_RIGHT, np.where(np.arange(200) < 6, 0.0, HALF_RIGHT), "mean", "4%", "undecided"),
        # a perplexity is worse where it is higher, and may double
        (PASSAGES, PASSAGES - 0.03, "perplexity", "2%", "regressed"),
        (PASSAGES, PASSAGES + 0.03, "perplexity", "2%", "improved"),
        (PASSAGES, PASSAGES - 0.65, "perplexity", "100%", "degraded"),
        (PASSAGES, PASSAGES - 0.75, "perplexity", "101%", "regressed"),
        # a mean log-likelihood of -4: 2% of its size are 0.08 nats
        (PASSAGES, PASSAGES - 0.1, "mean", "2%", "regressed"),
        (PASSAGES, PASSAGES - 0.07, "mean", "2%", "degraded"),
        (PASSAGES, PASSAGES + 0.1, "mean", "2%", "improved"),
        # no such margin: the reason
        (HALF_RIGHT, 1.0 - HALF_RIGHT, "mean", "100%", "no metric falls by more than 100%"),
        (PASSAGES, PASSAGES - 0.1, "perplexity", "1pp", "for metrics between 0 and 1"),
        (PASSAGES, PASSAGES - 0.1, "mean", "1pp", "for metrics between 0 and 1"),
        (0.0 * HALF_RIGHT, HALF_RIGHT, "mean", "2%", "the base's value is 0, and 2% of it is"),
        (HALF_RIGHT - 0.5, HALF_RIGHT - 0.6, "mean", "2%", "the base's value is 0"),
        # points need no standard error of the base
        (0.0 * HALF_RIGHT, HALF_RIGHT, "mean", "1pp", "improved"),
        (0.0 * HALF_RIGHT + 1.0, HALF_RIGHT, "mean", "1pp", "regressed"),
        (0.0 * HALF_RIGHT + 1.0, HALF_RIGHT, "mean", "2%", "regressed"),
    ],
)
def test_each_unit_gives_the_verdict_of_its_own_arithmetic_or_the_reason_for_none(
    base, candidate, aggregation, margin, expected
):
    of = paired(base, candidate, aggregation)
    found = compare_scores(of, margin=Margin.parse(margin))
    if found.outcome == "failed":
        assert expected in found.reason
        assert Gate(margin=margin).judge([found]).state == "failed"
        shown = compare_documents(of, margin=Margin.parse(margin), gated=False).comparison
        assert (shown.outcome != "failed", shown.margin_text) == (True, "1 sigma")
    else:
        assert found.outcome == expected


@pytest.mark.parametrize(
    ("gate", "state", "said"),
    [
        ({"gate_metrics": ("f1",)}, "failed", "1 of 1 gated metrics failed"),
        ({"gate_metrics": ("acc",), "advisory": ("other/acc",)}, "regressed", "passages acc"),
        ({"gate_metrics": ("acc",), "advisory": ("passages/acc",)}, "failed", "judges none of"),
        ({"advisory": ("acc", "f1")}, "failed", "the gate judges none of the 2 metrics compared"),
        ({"advisory": ("f1",)}, "regressed", "1 of 1 gated metrics regressed"),
    ],
)
def test_only_and_advisory_leave_the_verdict_to_what_they_gate(gate, state, said):
    result = Gate(**gate).judge([CERTAIN, FAILED])
    assert result.state == state
    assert said in result.reason


@given(st.floats(0.01, 1.0), st.floats(1e-4, 0.1), st.floats(1e-3, 0.2))
def test_margins_in_all_units_are_one_amount_of_the_metric(base, stderr, amount):
    points = Margin(amount, "points").in_sigma(base, stderr, is_share=True)
    assert points * stderr == pytest.approx(amount)
    relative = Margin(amount, "relative").in_sigma(base, stderr, is_share=False)
    assert relative * stderr == pytest.approx(amount * base)
    assert Margin(amount).in_sigma(base, stderr, is_share=False) == amount


def test_points_are_for_metrics_between_0_and_1_and_no_unit_is_for_a_base_without_scatter():
    with pytest.raises(ValueError, match="in % or sigma"):
        Margin(0.01, "points").in_sigma(4.1, 0.1, is_share=False)
    with pytest.raises(ValueError, match="standard error is 0"):
        Margin(0.01, "points").in_sigma(1.0, 0.0, is_share=True)


def test_a_metric_of_one_task_has_its_own_margin_else_that_of_the_metric_else_the_gates():
    gate = Gate(
        margin="1pp", margins=(("acc", Margin(2.0)), ("gsm8k/acc", Margin(0.02, "relative")))
    )
    assert gate.margin_of("gsm8k", "acc").text == "2%"
    assert gate.margin_of("arc", "acc").text == "2 sigma"
    assert gate.margin_of("arc", "f1").text == "1pp"


def test_a_comparison_made_for_another_margin_or_confidence_is_refused():
    with pytest.raises(ValueError, match="another margin"):
        Gate(margin=2.0).judge([CERTAIN])
    with pytest.raises(ValueError, match="another margin"):
        Gate(confidence=0.9).judge([UNCHANGED])


def test_bit_identical_passes_under_a_margin_of_zero():
    identical = dataclasses.replace(comparison(0.0, 0.0, 0.0), bit_identical=True)
    assert Gate(margin=0.0).judge([identical]).state == "passed"


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"margin": -1.0}, ValueError, "margin"),
        ({"confidence": 1.0}, ValueError, "confidence"),
        ({"fail_on": "certan"}, UsageError, "did you mean 'certain'"),
        ({"undecided": "ignore"}, UsageError, "'ignore'"),
        ({"gate_metrics": ("acc", "f1"), "advisory": ("f1",)}, UsageError, "f1 in only and in adv"),
    ],
)
def test_an_impossible_gate_is_refused(options, error, message):
    with pytest.raises(error, match=message):
        Gate(**options)
