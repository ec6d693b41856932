"""The one sentence keeps size and certainty apart and ends with a real next step."""

from __future__ import annotations

import dataclasses
from typing import Any

from distribution_examples import distribution
from example_reports import DEMO, INF, SETTINGS, comparison, failed, report

from evalguard.core.compare_report import CompareReport, RunIdentity
from evalguard.core.comparison import Undecided
from evalguard.core.distribution_comparison import Figure
from evalguard.core.gate import Gate
from evalguard.core.verdict import Margin
from evalguard.report.compare_view import build_report_view
from evalguard.report.first_screen import verdict_line
from evalguard.report.meaning import derive_meaning
from evalguard.report.metric_labels import drift_in_unit, margin_lines, tally_report


def quiet(**changes: Any) -> Any:
    """A comparison without a significant drift."""
    fields = {"significant": False, "certain": False, "outcome": "unchanged", "p_value": 0.4}
    return comparison(**{**fields, **changes})


def without_settings(shown: CompareReport) -> CompareReport:
    return dataclasses.replace(shown, candidate=RunIdentity(name="port", digest="d"))


def test_regressed_names_size_certainty_allowance_and_a_setting_to_undo() -> None:
    said = derive_meaning(DEMO)
    assert said.sentence == (
        "fla-port is worse than orig by 1.47 standard errors on evalguard_lastword perplexity "
        "(95% paired interval 1.30 to 1.63, p < 1e-12); the gate allows 1.0."
    )
    assert said.next_step == "to see what one setting costs"
    # norm_dtype comes first, but is at its reference value already.
    assert said.command == (
        "evalguard compare --base orig --cand fla-port --set attn_scale=reference"
    )


def test_without_a_command_line_the_command_is_made_up_from_the_names() -> None:
    shown = dataclasses.replace(
        DEMO,
        command="",
        base=RunIdentity(name="my model", digest="d"),
        candidate=RunIdentity(name="b", digest="e", settings=SETTINGS),
    )
    assert derive_meaning(shown).command == (
        "evalguard compare --base 'my model' --cand b --set attn_scale=reference"
    )


def test_several_settings_lead_to_a_bisection_of_the_users_own_comparison() -> None:
    several = tuple(
        dataclasses.replace(SETTINGS[-1], name=name, value=1, reference=0) for name in ("a", "b")
    )
    candidate = dataclasses.replace(DEMO.candidate, settings=several)
    typed = "evalguard compare --base runs/1 --cand fla-port --bisect never"
    shown = dataclasses.replace(DEMO, command=typed, candidate=candidate)
    said = derive_meaning(shown)
    assert said.next_step == "to name the culprits"
    assert said.command == "evalguard bisect --base runs/1 --cand fla-port"
    from_python = derive_meaning(dataclasses.replace(shown, command=""))
    assert from_python.command == "evalguard bisect --base orig --cand fla-port"
    failed = derive_meaning(dataclasses.replace(shown, bisect_reason="the disk was full"))
    assert failed.command.endswith("--bisect never --set a=reference")


def test_from_python_no_command_names_a_base_whose_model_is_not_at_hand() -> None:
    stored = dataclasses.replace(DEMO.base, kind="stored run")
    said = derive_meaning(dataclasses.replace(DEMO, command="", base=stored))
    assert said.command == ""
    assert said.next_step == "compare again with setting attn_scale at reference"


def test_after_a_bisection_the_command_is_a_comparison_with_the_users_own_options() -> None:
    shown = dataclasses.replace(
        DEMO, command="evalguard bisect --config g.yaml --base orig --cand fla-port --budget 9"
    )
    assert derive_meaning(shown).command == (
        "evalguard compare --config g.yaml --base orig --cand fla-port --set attn_scale=reference"
    )


def test_without_settings_no_setting_is_suggested() -> None:
    said = derive_meaning(without_settings(DEMO))
    assert said.command == ""
    assert "20261120T110000Z-orig-vs-fla-port" in said.next_step
    said = derive_meaning(without_settings(dataclasses.replace(DEMO, run_folder=None)))
    assert said.command == ""
    assert said.next_step


def test_settings_that_are_all_undone_are_not_suggested() -> None:
    undone = tuple(dataclasses.replace(s, value=s.reference) for s in SETTINGS)
    shown = dataclasses.replace(
        DEMO, candidate=dataclasses.replace(DEMO.candidate, settings=undone)
    )
    assert derive_meaning(shown).command == "evalguard trace --base orig --cand fla-port"


def test_a_large_drift_that_is_not_sure_is_not_called_worse_without_saying_so() -> None:
    shown = report(
        comparison(sigma=1.3, sigma_interval=(-0.4, 3.0), significant=False, certain=False,
                   p_value=0.07)
    )  # fmt: skip
    said = derive_meaning(shown)
    assert "that it is worse at all is not sure (95% paired interval -0.40 to 3.00" in said.sentence
    assert said.next_step.startswith("score more documents")


def test_documents_that_the_task_does_not_have_are_not_asked_for() -> None:
    lacks = Undecided(kind="too_few_documents", needed_n=78_749, decidable_margin="1.4%")
    undecided = quiet(outcome="undecided", undecided=lacks, n=500, n_used=500, n_total=2_048)
    said = derive_meaning(report(undecided))
    assert said.next_step == (
        "score all 2,048: lambada_openai has 2,048 documents, about 78,700 are needed; "
        "--margin 1.4% is the smallest that they decide, or take a larger task"
    )


def test_a_real_drift_whose_interval_holds_the_margin_says_so() -> None:
    shown = report(comparison(sigma=1.3, sigma_interval=(0.4, 2.2), certain=False))
    assert derive_meaning(shown).sentence.endswith(
        "allows 1.0, and the interval reaches below that."
    )


def test_a_gate_that_asks_for_certainty_is_named() -> None:
    uncertain = comparison(sigma=1.3, sigma_interval=(0.4, 2.2), certain=False)
    said = derive_meaning(report(uncertain, gate=Gate(fail_on="certain")))
    assert "the gate (fail on certain) asks for more evidence" in said.sentence
    assert "documents" in said.next_step


def test_a_metric_outside_the_gate_is_not_said_to_fail_it_and_that_it_is_worse_is_said() -> None:
    shown = report(
        comparison(),
        quiet(metric="acc", sigma=0.1, sigma_interval=(-0.2, 0.3)),
        gate=Gate(gate_metrics=("acc",)),
    )
    sentence = derive_meaning(shown).sentence
    assert "its drift is +0.10 standard errors, on lambada_openai acc" in sentence
    assert sentence.endswith("; not gated: lambada_openai perplexity +1.47 sigma.")
    assert "; not gated: lambada_openai perplexity +1.47 sigma; a metric fails " in verdict_line(
        shown
    )
    assert tally_report(shown) == "1 unchanged; not gated: 1 regressed"
    assert "is not searched either: gate it for that" in derive_meaning(shown).next_step


def test_the_first_line_says_the_drift_in_the_margins_unit_and_the_margin_it_was_held_to() -> None:
    own = comparison(sigma=2.7, sigma_interval=(1.9, 3.5), margin=1.08, margin_text="2%")
    shown = report(own, gate=Gate(margin="1pp", margins=(("perplexity", Margin.parse("2%")),)))
    line = verdict_line(shown)
    assert "+2.70 sigma [1.90, 3.50], +5.00% [3.52, 6.48]; a metric fails above 2% if " in line
    assert drift_in_unit(comparison(margin=1.0, margin_text="1 sigma")) == ""
    assert margin_lines(shown.comparisons) == [
        "In the margin's unit: lambada_openai perplexity +5.00% [3.52, 6.48], margin 2% "
        "(1.08 sigma)."
    ]


def test_an_infinite_drift_gives_its_reason_and_no_number() -> None:
    shown = report(
        comparison(sigma=INF, sigma_interval=(INF, INF), reason="the base has no scatter.")
    )
    assert derive_meaning(shown).sentence == (
        "fla-port is worse than orig on lambada_openai perplexity: the base has no scatter; "
        "the gate allows 1.0."
    )


def test_undecided_asks_for_the_documents_that_decide() -> None:
    lacks = Undecided(kind="too_few_documents", detectable_sigma=2.14, needed_n=430)
    shown = report(
        quiet(sigma=0.4, sigma_interval=(-0.4, 1.2), outcome="undecided", n_used=100,
              undecided=lacks)
    )  # fmt: skip
    said = derive_meaning(shown)
    assert said.sentence.startswith(
        "100 documents cannot tell whether fla-port is worse than orig by more than 1.0 standard "
        "errors on lambada_openai perplexity (sigma +0.40, 95% paired interval -0.40 to 1.20, "
    )
    assert "too few documents to exclude a drift above the margin; such a run" in said.sentence
    assert "fails 2.1 sigma or more in 80% of cases" in said.sentence
    assert said.next_step == "score about 430 documents, not 100"


def test_a_margin_that_shrinks_with_documents_is_proposed_in_a_unit_that_does_not() -> None:
    lacks = Undecided(kind="above_margin", fixed_margin="2.1%", fixed_margin_n=9_000)
    shown = report(quiet(sigma=1.4, sigma_interval=(-0.4, 3.2), outcome="undecided", margin=1.0,
                         undecided=lacks))  # fmt: skip
    said = derive_meaning(shown)
    assert said.next_step == (
        "score about 9,000 documents, not 5,153 with --margin 2.1% (1.0 sigma now; sigma shrinks "
        "as they grow)"
    )
    assert "above the margin, chance not excluded" in said.sentence


def test_undecided_that_no_document_decides_does_not_send_for_more() -> None:
    lacks = Undecided(kind="too_few_documents", decidable_margin="1.4%")
    shown = report(
        quiet(sigma=0.0, sigma_interval=(-1.4, 1.4), outcome="undecided", undecided=lacks)
    )
    assert derive_meaning(shown).next_step == (
        "more documents do not decide at this margin; a wider one does: --margin 1.4%"
    )


def test_an_infinite_drift_that_may_be_chance_is_only_measured() -> None:
    shown = report(
        comparison(sigma=INF, sigma_interval=(-INF, INF), significant=False, certain=False)
    )
    assert "fla-port measures worse than orig" in derive_meaning(shown).sentence


def test_failed_says_that_nothing_is_known_and_why() -> None:
    said = derive_meaning(report(failed()))
    assert said.sentence == (
        "Whether fla-port is worse than orig on lambada_openai perplexity is not known, because "
        "3 of 5,153 scores of fla-port are NaN (first: document 17)."
    )
    assert said.command == ""


def test_a_regression_beside_a_failure_leaves_the_failure_said() -> None:
    said = derive_meaning(report(failed(), comparison(metric="acc")))
    assert "fla-port is worse than orig" in said.sentence
    assert "nothing is known about 1 metric that failed" in said.sentence


def test_degraded_is_real_and_within_the_margin() -> None:
    small = comparison(
        sigma=0.33, sigma_interval=(0.29, 0.36), outcome="degraded", certain=False, p_value=1e-8
    )
    said = derive_meaning(report(small))
    assert "by 0.33 standard errors" in said.sentence
    assert "(95% paired interval 0.29 to 0.36, p = 1e-08): real, but within the" in said.sentence
    assert said.sentence.endswith("within the margin of 1.0.")
    strict = derive_meaning(report(small, gate=Gate(fail_on="any-degradation")))
    assert "; the gate (fail on any-degradation) allows none" in strict.sentence


def test_improved_claims_no_p_value_for_what_was_not_tested() -> None:
    shown = report(quiet(sigma=-0.3, sigma_interval=(-0.5, -0.1), outcome="improved", p_value=1.0))
    assert derive_meaning(shown).sentence == (
        "fla-port is better than orig by 0.30 standard errors on lambada_openai perplexity "
        "(95% paired interval -0.50 to -0.10), and measurably worse on no metric."
    )


def test_degraded_does_not_hide_that_the_drift_may_be_above_the_margin() -> None:
    wide = comparison(sigma=0.7, sigma_interval=(0.3, 1.1), outcome="degraded", certain=False)
    said = derive_meaning(report(wide))
    assert said.sentence.endswith(
        "real, but within the margin of 1.0, although its interval reaches above."
    )


def test_one_margin_in_points_is_one_margin_whatever_it_comes_to_in_sigma() -> None:
    given = {"outcome": "unchanged", "margin_text": "5pp"}
    shown = report(
        quiet(metric="acc", sigma=0.1, sigma_interval=(-0.2, 0.4), margin=2.5, **given),
        quiet(metric="acc_norm", sigma=0.1, sigma_interval=(-0.2, 0.4), margin=2.6, **given),
        gate=Gate(margin="5pp"),
    )
    assert derive_meaning(shown).sentence.endswith(
        "and every interval ends below the margin of 5pp."
    )


def test_a_margin_in_points_or_percent_is_said_as_it_was_given_and_in_sigma() -> None:
    given = {"margin": 2.5, "margin_text": "5%"}
    gate = Gate(margin="5%")
    small = comparison(sigma=2.0, sigma_interval=(1.9, 2.1), outcome="degraded", certain=False,
                       **given)  # fmt: skip
    said = derive_meaning(report(small, gate=gate)).sentence
    assert said.endswith("real, but within the margin of 5% (2.5 sigma).")
    open_ = quiet(sigma=0.4, sigma_interval=(-0.4, 3.2), outcome="undecided", needed_n=430, **given)
    assert (
        "worse than orig by more than 5% (2.5 sigma) on"
        in derive_meaning(report(open_, gate=gate)).sentence
    )
    large = comparison(sigma=3.0, sigma_interval=(2.8, 3.2), **given)
    assert "; the gate allows 5% (2.5 sigma)" in derive_meaning(report(large, gate=gate)).sentence
    assert build_report_view(report(large, gate=gate)).gate.startswith(
        "a metric fails above 5% if "
    )


def test_intervals_of_metrics_with_margins_of_their_own_end_below_these() -> None:
    shown = report(
        quiet(sigma=-0.06, sigma_interval=(-0.31, 0.18), margin=1.0, margin_text="1 sigma"),
        quiet(metric="acc", sigma_interval=(-0.2, 0.4), sigma=0.1, margin=2.5, margin_text="5pp"),
        gate=Gate(margins=(("acc", Margin.parse("5pp")),)),
    )
    assert "every interval ends below its own margin" in derive_meaning(shown).sentence


def test_the_confidence_is_the_one_of_the_interval() -> None:
    shown = report(quiet(sigma=0.1, sigma_interval=(-0.2, 0.4), confidence=0.999),
                   gate=Gate(confidence=0.999))  # fmt: skip
    assert derive_meaning(shown).sentence == (
        "fla-port is not measurably worse than orig: its drift is +0.10 standard errors, on "
        "lambada_openai perplexity (99.9% paired interval -0.20 to 0.40), and the interval ends "
        "below the margin of 1.0."
    )


def test_unchanged_says_what_the_intervals_exclude() -> None:
    shown = report(
        quiet(sigma=-0.06, sigma_interval=(-0.31, 0.18)),
        quiet(metric="acc", sigma=0.1, sigma_interval=(-0.2, 0.4)),
    )
    said = derive_meaning(shown)
    assert "the largest drift is +0.10 standard errors, on lambada_openai acc" in said.sentence
    assert "(95% paired interval -0.20 to 0.40)" in said.sentence
    assert "every interval ends below the margin of 1.0" in said.sentence
    assert said.next_step == "nothing to do"


def test_bit_identical_is_said_as_such() -> None:
    same = quiet(sigma=0.0, sigma_interval=(0.0, 0.0), p_value=1.0, bit_identical=True)
    assert derive_meaning(report(same)).sentence == (
        "fla-port gives every document the same score as orig, to the last bit."
    )


def test_moved_distributions_beneath_identical_scores_are_said() -> None:
    same = quiet(sigma=0.0, sigma_interval=(0.0, 0.0), p_value=1.0, bit_identical=True)
    shown = dataclasses.replace(report(same), distributions=(distribution(),))
    assert derive_meaning(shown).sentence.endswith(
        "to the last bit; beneath these scores the distributions moved: KL 0.01234 ± 0.00041 nats "
        "a token on evalguard_rolling."
    )
    still = dataclasses.replace(report(same), distributions=(distribution(kl=Figure(value=0.0)),))
    assert derive_meaning(still).sentence.endswith("to the last bit.")


def test_no_comparison_is_no_pass() -> None:
    assert "nothing is known" in derive_meaning(report()).sentence


def test_the_demo_suggests_a_command_that_works_in_any_folder() -> None:
    shown = dataclasses.replace(DEMO, command="evalguard demo --quiet")
    assert derive_meaning(shown).command == "evalguard demo --quiet --set attn_scale=reference"


def test_a_rule_that_fails_most_unchanged_candidates_leaves_the_question_to_p() -> None:
    for chance, said in ((0.82, "so that p has to say whether this one is worse"), (0.04, "")):
        gate = dataclasses.replace(DEMO.gate, family_false_alarm=chance)
        line = build_report_view(dataclasses.replace(DEMO, gate=gate)).gate
        assert f"with probability at most about {chance}" in line
        assert ("scatters like this" in line) == bool(said)
        assert line.endswith(said)
    gate = dataclasses.replace(gate, family_false_alarm_estimate=0.32)
    assert (
        "with probability about 0.32"
        in build_report_view(dataclasses.replace(DEMO, gate=gate)).gate
    )
