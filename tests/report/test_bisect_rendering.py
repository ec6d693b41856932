"""A bisection in the JSON document and in the terminal: every outcome in plain words."""

from __future__ import annotations

import dataclasses
import json
import math

import jsonschema
import pytest
from any_reports import names
from example_bisections import BY_STATUS, OF_A_LIMIT, bisection, culprit, search
from example_reports import comparison, report
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from evalguard.bisect.bisect_report import BisectReport
from evalguard.report.compare_document import compare_document, compare_schema
from evalguard.report.compare_terminal import render_terminal
from evalguard.report.compare_view import explain_report
from evalguard.report.formats import render_report

VALIDATOR = jsonschema.Draft202012Validator(compare_schema())


def shown(found: BisectReport, width: int = 80) -> str:
    return " ".join(
        render_terminal(
            report(comparison(), bisect=found), width=width, color=False, verbose=True
        ).split()
    )


def test_who_acts_only_together_beside_another_culprit_is_told_by_the_page_and_the_document() -> (
    None
):
    pair = {"norm_dtype": "prefill", "prefill": "norm_dtype"}
    found = bisection(
        search(
            culprits=(
                culprit("attn_softcap", 2.0),
                *(
                    culprit(name, 5.0, sigma_alone=0.0, role="together", partners=(partner,))
                    for name, partner in pair.items()
                ),
            )
        )
    )
    text = shown(found, width=120)
    assert "norm_dtype and prefill act only together" in text
    written = compare_document(report(comparison(), bisect=found))["bisect"]["culprits"]
    partners = {one["setting"]: one["partners"] for one in written}
    assert partners == {"attn_softcap": [], "norm_dtype": ["prefill"], "prefill": ["norm_dtype"]}
    assert {one["in_context"] for one in written if one["partners"]} == {5.0}
    redundant = [dataclasses.replace(one, role="redundant") for one in found.culprits[1:]]
    either = bisection(search(culprits=(found.culprits[0], *redundant)))
    assert "each of norm_dtype and prefill would be enough" in shown(either, width=120)


@pytest.mark.parametrize("status", BY_STATUS)
def test_every_outcome_is_a_document_of_the_contract(status: str) -> None:
    written = compare_document(report(comparison(), bisect=BY_STATUS[status]))
    VALIDATOR.validate(written)
    assert json.loads(json.dumps(written, allow_nan=False)) == written
    assert set(written["bisect"]) == set(compare_schema()["$defs"]["BisectReport"]["properties"])


@pytest.mark.parametrize("status", BY_STATUS)
@pytest.mark.parametrize("width", [40, 80, 120])
def test_no_line_is_wider_than_the_terminal(status: str, width: int) -> None:
    found = dataclasses.replace(BY_STATUS[status], fix="")
    text = render_terminal(
        report(comparison(), bisect=found), width=width, color=False, verbose=True
    )
    assert max(cell_len(line) for line in text.split("\n")) <= width


def test_the_promised_keys_hold_the_numbers_of_the_report() -> None:
    written = compare_document(report(comparison(), bisect=bisection()))["bisect"]
    assert written["status"] == "minimal"
    assert written["unexplained_sigma"] == 0.06
    assert (written["evaluations"], written["probes"]) == (3.4, 12)
    (guilty,) = written["culprits"]
    assert (guilty["setting"], guilty["reference"], guilty["candidate"]) == (
        "attn_softcap", 40.0, None,
    )  # fmt: skip
    assert (guilty["sigma_alone"], guilty["role"]) == (1.4, "additive")


def test_one_guilty_setting_is_named_with_its_size_and_the_way_to_see_it() -> None:
    text = shown(BY_STATUS["minimal"])
    assert "comes from attn_softcap; without it, +0.06 sigma are left." in text
    assert "exit code 1; culprit: attn_softcap." in text
    assert "Next, to prove the repair:" in text
    assert "--set attn_softcap=reference" in text
    assert "Cause: attn_softcap +1.40; " in text


def test_what_is_cleared_is_said_with_what_it_rests_on() -> None:
    text = shown(BY_STATUS["minimal"])
    assert "together all at their candidate value, +0.06 sigma on all 5,153 documents" in text
    assert "No effect seen, bit-identical scores where asked: setting_h" in " ".join(text.split())


def test_roles_are_shown_where_they_tell_something() -> None:
    assert "which act only together" in shown(BY_STATUS["together"])
    assert "each of which would be enough" in shown(BY_STATUS["redundant"])
    assert "additive" not in shown(BY_STATUS["minimal"])


def test_a_setting_that_hides_others_is_named_as_such() -> None:
    assert "norm_dtype acts the other way" in shown(BY_STATUS["masked"])


def test_drift_that_cannot_be_narrowed_is_an_answer_and_no_failure() -> None:
    text = shown(BY_STATUS["diffuse"])
    assert "No single setting makes the drift" in text
    assert "setting_a, setting_b, setting_c and setting_d (+0.90)" in text
    for word in ("fail", "error:", "could not"):
        assert word not in text.partition("Bisection of")[2]


def test_drift_that_no_setting_makes_is_said_to_lie_outside() -> None:
    text = shown(BY_STATUS["not_reproduced"])
    assert "+1.36 sigma lie outside the settings" in text
    assert "culprit" not in text.partition("Bisection of")[0]


def test_a_stopped_search_says_what_is_proven_what_is_suspected_and_how_to_go_on() -> None:
    text = shown(BY_STATUS["stopped"])
    assert "attn_softcap is proven so far; suspected, not proven: norm_dtype (62%)" in text
    assert "evalguard bisect --resume reports/20261120T110000Z-orig-vs-fla-port" in text


def test_several_searches_have_the_gravest_status_and_all_culprits() -> None:
    second = search(
        metric="acc", culprits=(culprit("norm_dtype", metric="acc"),), repaired_before=("a",)
    )
    found = bisection(search(), second)
    assert found.status == "minimal"
    assert [one.setting for one in found.culprits] == ["attn_softcap", "norm_dtype"]
    assert found.evaluations == pytest.approx(6.8)
    assert found.probes == 24
    assert bisection(search(), dataclasses.replace(second, status="stopped")).status == "stopped"


def test_a_reason_stands_where_a_bisection_was_to_be_expected() -> None:
    without = report(comparison(), bisect_reason="the candidate is a finished run")
    assert "Not bisected: the candidate is a finished run." in render_terminal(
        without, width=80, color=False, verbose=True
    )
    assert compare_document(without)["bisect"] is None
    assert compare_document(without)["bisect_reason"] == "the candidate is a finished run"


def test_what_a_setting_does_alone_says_when_it_was_measured_on_some_documents_only() -> None:
    partly = search(culprits=(culprit(alone_share=0.25, alone_error_sigma=0.3),))
    whole = report(comparison(), bisect=bisection(partly))
    assert "~+1.4" in render_terminal(whole, width=80, color=False, verbose=True)
    words = " ".join(render_terminal(whole, width=80, color=False, verbose=True).split())
    assert "~: on part of the documents." in words
    found = compare_document(whole)["bisect"]["culprits"][0]
    assert (found["alone_share"], found["alone_error_sigma"]) == (0.25, 0.3)
    assert "~" not in render_terminal(
        report(comparison(), bisect=bisection(search())), width=80, color=False, verbose=True
    )


@given(names, st.one_of(st.floats(), st.none()), st.floats())
@settings(max_examples=60, deadline=None)
def test_hostile_names_and_any_number_are_safe(
    name: str, sigma: float | None, error: float
) -> None:
    found = bisection(
        search(
            task=name,
            culprits=(culprit(name, 1.0, sigma_alone=sigma, error_sigma=error, candidate=name),),
            drift_sigma=sigma,
            unexplained_sigma=sigma,
            cleared=(name,),
        ),
        fix=name, proof=name, notes=(name,),
    )  # fmt: skip
    whole = report(comparison(), bisect=found)
    VALIDATOR.validate(compare_document(whole))
    text = render_terminal(whole, width=80, color=False, verbose=True)
    assert all(char == "\n" or char.isprintable() for char in text)
    if sigma is not None and not math.isfinite(sigma):
        assert compare_document(whole)["bisect"]["drift_sigma"] is None


def test_a_perplexity_beyond_reading_is_a_factor_and_no_number_of_sigma() -> None:
    far = search(
        log_unit=0.05,
        drift_sigma=1e10,
        culprits=(culprit(sigma=9e9, alone_error_sigma=1e8, error_sigma=1e8),),
    )
    text = shown(bisection(searches=(far,)))
    assert "The drift of a factor of 5e+08 on lambada_openai perplexity comes from" in text
    assert "without it, +0.06 sigma are left." in text
    assert "x4.5e+08" in text
    assert "+10" not in text


def test_what_the_largest_causes_leave_is_a_factor_too() -> None:
    far = search(log_unit=0.05, coarse=True, margin=2e6, drift_sigma=1e10, unexplained_sigma=1e6)
    text = shown(bisection(searches=(far,)))
    assert "without it, a factor of 5e+04 is left" in text
    assert "margin a factor of 1e+05, seed" in text
    coarse = search(coarse=True, margin=7.03125)
    assert "margin 7.03 sigma, seed" in shown(bisection(searches=(coarse,)))


def test_a_limit_is_told_in_its_own_unit_and_never_in_sigma() -> None:
    text = shown(OF_A_LIMIT)
    assert "drift of +0.00312 nats on lambada_openai kl_mean comes from attn_softcap" in text
    assert "without it, +3.45e-05 nats are left." in text
    assert "8 settings, 5,153 documents, up to 0.001 nats" in text
    assert "Divergence (nats) of each alone" in text
    assert "~+0.00312 +0.00309 +0.00309" in text
    assert "kl_mean on lambada_openai: 3.44e-05 (at most 0.001)" in text
    limited = report(comparison(), bisect=OF_A_LIMIT)
    cause = "Cause: attn_softcap +0.00309 nats; +3.45e-05 nats left"
    assert cause in render_report(limited, "text")
    page = render_report(limited, "html")
    assert ">Nats</th>" in page


def test_in_the_document_of_a_limit_nothing_is_called_sigma() -> None:
    written = compare_document(report(comparison(), bisect=OF_A_LIMIT))["bisect"]
    (found,) = written["searches"]
    for one in (written, found, *found["guilty"], *found["measured"], written["recommended"]):
        assert one["unit"] == "nats"
        assert all(value is None for name, value in one.items() if "sigma" in name)
    assert written["drift"] == found["drift"] == 0.003124
    assert found["guilty"][0]["alone"] == 0.003119
    in_sigma = compare_document(report(comparison(), bisect=bisection()))["bisect"]
    assert in_sigma["unit"] == "sigma"
    assert in_sigma["drift"] == in_sigma["drift_sigma"] == 1.465


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("weights:model.layers.2.mlp", "owner/base -> its own"),
        ("model_args.tokenizer", "owner/base -> its own"),
        ("env.NVIDIA_TF32_OVERRIDE", "owner/base -> not set"),
        ("config.sliding_window", "owner/base -> null"),
    ],
)
def test_what_a_model_has_by_itself_is_told_in_words(target: str, words: str) -> None:
    found = bisection(search(culprits=(culprit(target=target, reference="owner/base"),)))
    assert words in shown(found, 120)


def test_an_answer_after_which_nothing_more_was_asked_says_so() -> None:
    found = bisection(
        search(culprits=(culprit(),), ended="failed", failure="the disk is full"),
        resume="evalguard bisect --resume RUN",
    )
    text = " ".join(shown(found, 200).split())
    assert "; then it could not go on (the disk is full)." in text
    assert "Next, to go on where it stopped: evalguard bisect --resume RUN" in text


def test_where_hardly_any_assignment_runs_the_next_step_is_to_see_why() -> None:
    found = BY_STATUS["unexplained"]
    usual = explain_report(report(bisect=found))
    assert usual.next_step.startswith("search longer")
    refused = search().untestable
    stuck = dataclasses.replace(found.searches[0], untestable=refused, probes=1)
    rarely = explain_report(report(bisect=dataclasses.replace(found, searches=(stuck,))))
    assert rarely.next_step.startswith("see why assignments could not run")
