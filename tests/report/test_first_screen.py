"""What the commands print unasked: the answer in the first line, all of it on one screen."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from typing import Any, get_args

import pytest
from distribution_examples import distribution
from example_bisections import BY_STATUS, OF_A_LIMIT, bisection, culprit, measured, search
from example_nights import a_history, a_night, a_trend
from example_reports import DEMO, INF, UNCHANGED, UNDECIDED, comparison, failed, report
from rich.cells import cell_len
from sample_run import SAMPLE
from test_floor_report import EXAMPLES
from test_plan_table import metric as planned
from test_plan_table import report as plan_report
from whole_report import WHOLE

from evalguard.bisect.bisect_report import MetricSearch
from evalguard.bisect.bisect_section import bisection_view
from evalguard.bisect.bisect_words import search_answer
from evalguard.core.compare_report import CompareReport
from evalguard.core.comparison import Comparison, Undecided
from evalguard.core.findings import Finding, FindingKind
from evalguard.core.gate import Gate, Waiver
from evalguard.floors.floor_page import render_floor
from evalguard.harness.finished_runs.run_facts import caveats_of
from evalguard.nights.history_page import history_text
from evalguard.nights.night_page import night_text
from evalguard.planning.plan_page import render_plan
from evalguard.report.compare_document import compare_document, read_report
from evalguard.report.compare_markdown import render_markdown as markdown
from evalguard.report.compare_terminal import render_terminal
from evalguard.report.compare_view import build_report_view
from evalguard.report.first_screen import cause_line
from evalguard.report.formats import render_report

STORED = read_report(json.loads((SAMPLE / "result.json").read_text(encoding="utf-8")))
PASSING = report(
    comparison(metric="acc", **UNCHANGED),
    comparison(**{**UNCHANGED, "sigma": 0.31, "sigma_interval": (-0.1, 0.72)}),
)
LACKS = Undecided(kind="above_margin", detectable_sigma=2.38, needed_n=4_300)
CHANCE: dict[str, Any] = {
    "sigma": 1.3, "sigma_interval": (-0.4, 3.0), "p_value": 0.07, "outcome": "undecided",
    "significant": False, "certain": False, "n": 2048, "n_used": 2048, "undecided": LACKS,
}  # fmt: skip
UNSURE = report(comparison(**CHANCE), comparison(metric="acc", **UNCHANGED))
MANY = report(
    *(
        comparison(
            task="suite", metric=f"metric_{number}",
            **({} if number in (7, 41, 55) else UNCHANGED),
        )
        for number in range(60)
    )
)  # fmt: skip
FEW_TASKS: dict[str, CompareReport] = {
    "demo": DEMO,
    "stored": STORED,
    "passing": PASSING,
    "undecided": UNSURE,
    "sixty": MANY,
    "failed": report(failed(), comparison(metric="acc", **UNCHANGED)),
    "nothing": report(),
    "infinite": report(comparison(sigma=INF, sigma_interval=(INF, INF))),
    "limit": report(comparison(**UNCHANGED), bisect=OF_A_LIMIT),
    **{f"bisected-{n}": report(comparison(), bisect=found) for n, found in BY_STATUS.items()},
}


def screen(shown: CompareReport, width: int = 80) -> list[str]:
    return render_terminal(shown, width=width, color=False).splitlines()


def first(shown: CompareReport) -> str:
    """The verdict, as one line."""
    return screen(shown, 400)[0]


@pytest.mark.parametrize("name", FEW_TASKS)
def test_one_to_three_tasks_fit_on_a_screen_of_24_lines(name: str) -> None:
    lines = screen(FEW_TASKS[name])
    assert len(lines) <= 24
    assert max(map(cell_len, lines)) <= 80


@pytest.mark.parametrize("name", FEW_TASKS)
def test_the_first_line_says_state_rule_and_exit_code(name: str) -> None:
    shown = FEW_TASKS[name]
    assert first(shown).startswith(f"{shown.gate.state.upper()}: ")
    assert f"; {shown.gate.rule}; exit code {shown.exit_code}" in first(shown)


@pytest.mark.parametrize("name", FEW_TASKS)
@pytest.mark.parametrize("width", [60, 80, 140])
def test_nothing_that_the_verdict_needs_is_cut(name: str, width: int) -> None:
    shown = FEW_TASKS[name]
    text = " ".join(" ".join(screen(shown, width)).split())
    assert " ".join(build_report_view(shown).first.split()) in text
    assert "…" not in text


def test_intervals_are_not_broken_between_lines() -> None:
    for width in range(40, 100):
        assert "[1.30, 1.63]" in "".join(screen(DEMO, width)[:4])


def test_a_regression_names_the_worst_metric_with_sigma_and_interval() -> None:
    assert "evalguard_lastword perplexity +1.47 sigma [1.30, 1.63]" in first(DEMO)


def test_a_pass_names_the_largest_drift() -> None:
    line = first(PASSING)
    assert "PASSED: worst drift +0.31 sigma [-0.10, 0.72] (lambada_openai perplexity)" in line
    same = report(comparison(**{**UNCHANGED, "sigma": 0.0, "bit_identical": True}))
    assert "PASSED: every score is bit-identical to the base's" in first(same)


def test_an_undecided_run_says_its_kind_and_what_would_decide() -> None:
    line = first(UNSURE)
    assert "UNDECIDED: lambada_openai perplexity +1.30 sigma [-0.40, 3.00], p = 0.07" in line
    assert "above the margin, chance not excluded; such a run fails 2.4 sigma or more" in line
    assert "score about 4,300 documents, not 2,048" in " ".join(screen(UNSURE))


def test_a_failure_says_which_metric_and_why() -> None:
    shown = FEW_TASKS["failed"]
    why = "3 of 5,153 scores of fla-port are NaN (first: document 17)"
    assert f"FAILED: lambada_openai perplexity gives no number: {why}" in first(shown)
    assert "FAILED: nothing was compared" in first(report())


def test_where_nothing_was_compared_the_reasons_are_on_the_screen() -> None:
    none = dataclasses.replace(report(), not_compared=DEMO.not_compared)
    assert "Not compared: evalguard_choice f1: its aggregation is not a mean" in screen(none)
    assert "; 1 not compared" in " ".join(" ".join(screen(DEMO)).split())


def test_what_a_waiver_lets_through_is_named() -> None:
    waiver = Waiver(
        task="lambada_openai", metric="perplexity", up_to=2.0, until="2027-01-31",
        reason="known, ticket 17", where="guard.yaml:3",
    )  # fmt: skip
    shown = report(comparison(), gate=Gate(waivers=(waiver,), today="2026-11-20"))
    assert "PASSED: drift +1.47 sigma [1.30, 1.63] (lambada_openai perplexity), accepted" in first(
        shown
    )
    assert "known, ticket 17" in " ".join(" ".join(screen(shown)).split())


def test_a_limit_that_fails_alone_is_what_the_first_line_is_about() -> None:
    gate = Gate(limits=())
    made = report(comparison(**UNCHANGED), gate=gate)
    limits = dataclasses.replace(made.gate, state="regressed", limits=WHOLE.gate.limits)
    line = first(dataclasses.replace(made, gate=limits, exit_code=1))
    assert line.startswith("REGRESSED: kl_mean on evalguard_rolling")
    assert "at most 0.01: 0.02 [" in line


def test_the_culprits_stand_below_the_verdict_each_with_its_share() -> None:
    two = search(culprits=(culprit(sigma=1.1), culprit("norm_dtype", 0.31)))
    lines = screen(report(comparison(), bisect=bisection(two)))
    cause = next(line for line in lines if line.startswith("Cause: "))
    assert lines.index(cause) <= 2
    assert "attn_softcap +1.10, norm_dtype +0.31; " in cause
    assert cause.endswith(" left")


def cause_of(*searches: MetricSearch) -> str:
    text = " ".join(" ".join(screen(report(comparison(), bisect=bisection(*searches)))).split())
    return text[text.index("Cause: ") : text.index(" left") + 5]


def test_the_rest_of_a_metric_is_said_to_be_its_where_distributions_are_apart() -> None:
    made = report(comparison(), bisect=bisection(search()))
    (line,) = (one for one in screen(made) if one.startswith("Cause: "))
    assert line.endswith("+0.06 left")
    made = dataclasses.replace(made, distributions=(distribution(),))
    text = " ".join(screen(made))
    assert "+0.06 left of perplexity" in " ".join(text.split())
    same = dataclasses.replace(made, distributions=(distribution(bit_identical=True),))
    assert "left of" not in " ".join(screen(same))


def test_shares_that_do_not_add_up_are_said_not_to() -> None:
    two = search(culprits=(culprit(), culprit("norm_dtype", 0.31)))
    together = "(together +1.41: they act on each other); +0.06 left"
    assert cause_of(two) == f"Cause: attn_softcap +1.40, norm_dtype +0.31 {together}"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (  # beyond the drift, and of the other sign
            {"drift_sigma": 1.1, "unexplained_sigma": 0.0,
             "culprits": (culprit(sigma=1.5), culprit("norm_dtype", -0.4))},
            "attn_softcap (alone +1.50 sigma, without it -0.40 sigma), "
            "norm_dtype (alone -0.40 sigma, without it +1.50 sigma); +0.06 left",
        ),
        (  # one is a factor
            {"drift_sigma": 1e10, "log_unit": 0.05, "unexplained_sigma": 0.0,
             "culprits": (
                 culprit(sigma=9e9, sigma_alone=4e9),
                 culprit("norm_dtype", 1e9, sigma_alone=None),
             )},
            "attn_softcap (alone a factor of 2e+08, without it a factor of 0.98), "
            "norm_dtype (without it a factor of 1.1); +0.06 left",
        ),
        (  # a share of 1e22 where the whole is 1e8
            {"drift_sigma": 5.7e8, "log_unit": 0.05,
             "culprits": (culprit(sigma_alone=2.0, shapley_sigma=-1.6e22),)},
            "attn_softcap (alone +2.00 sigma, without it +0.06 sigma); +0.06 left",
        ),
        (  # what is 1e22 beside the others divides by as much
            {"drift_sigma": 5.7e8, "log_unit": 0.05, "status": "masked",
             "culprits": (
                 culprit(sigma=-1.6e22, sigma_alone=-12.0),
                 culprit("norm_dtype", 1.6e22, sigma_in_context=5.7e8),
             )},
            "attn_softcap (alone a factor of 0.4, without it a factor of 0.98), "
            "norm_dtype (alone a factor of 8e+20, without it a factor of 1.1); +0.06 left",
        ),
        (  # infinite beside a number: nobody knows what each would make of the other
            {"drift_sigma": math.inf, "log_unit": 0.05, "measured": (),
             "culprits": (culprit(sigma=math.inf), culprit("norm_dtype", math.nan,
                                                           sigma_alone=3.0))},
            "attn_softcap (alone +inf sigma), norm_dtype (alone +3.00 sigma); +0.06 left",
        ),
        (  # larger than the drift that it is a part of, alone
            {"drift_sigma": 1.0, "unexplained_sigma": -0.5, "culprits": (culprit(sigma=1.5),)},
            "attn_softcap (alone +1.50 sigma, without it -0.50 sigma); +0.06 left",
        ),
        (  # of the other sign than a gain
            {"drift_sigma": -2.0, "culprits": (culprit(sigma=1.5),)},
            "attn_softcap (alone +1.50 sigma, without it +0.06 sigma); +0.06 left",
        ),
        (  # nothing but what each adds beside the other was measured
            {"drift_sigma": 1.1, "measured": (),
             "culprits": (culprit(sigma_alone=None, sigma=3.0), culprit("norm_dtype", -1.9))},
            "attn_softcap (neither measured alone nor without it), "
            "norm_dtype (alone -1.90 sigma); +0.06 left",
        ),
    ],
)  # fmt: skip
def test_what_is_no_share_of_the_drift_is_told_by_two_drifts(
    changes: dict[str, Any], said: str
) -> None:
    probes = (
        measured("norm_dtype", documents=5153, drift_sigma=-0.4),
        measured("attn_softcap", documents=5153, drift_sigma=1.5),
        measured("attn_softcap", documents=100, drift_sigma=7.0),
    )
    found = search(**{"settings": ("attn_softcap", "norm_dtype"), "measured": probes, **changes})
    assert cause_of(found) == f"Cause: {said}"
    whole = report(comparison(), bisect=bisection(found))
    view = bisection_view(whole.bisect)
    assert {one.share for one in view.searches[0].culprits} == {"-"}
    told = compare_document(whole)["bisect"]["culprits"]
    shares = [one.shapley_sigma for one in found.culprits]
    assert [one["shapley"] for one in told] == [s if math.isfinite(s) else None for s in shares]


def test_what_divides_by_as_much_as_the_rest_multiplies_with_is_told_as_a_factor() -> None:
    found = search(
        drift_sigma=5.7e8, log_unit=0.05, status="masked", unexplained_sigma=0.0,
        culprits=(
            culprit(sigma=-1.6e22, sigma_alone=-12.0),
            culprit("norm_dtype", 1.6e22, sigma_in_context=5.7e8),
        ),
    )  # fmt: skip
    view = bisection_view(bisection(found))
    rows = [(one.alone, one.beside, one.share) for one in view.searches[0].culprits]
    assert rows == [("x0.4", "x3.6e-14", "-"), ("x8e+20", "x2.9e+07", "-")]
    for form in ("text", "markdown", "html"):
        assert "e+22" not in render_report(report(comparison(), bisect=bisection(found)), form)


@pytest.mark.parametrize(
    ("alone", "said"),
    [
        (-1.0, "norm_dtype acts the other way, and hid part of what the rest does"),
        (0.03, "norm_dtype acts the other way, and hid part of what the rest does"),
        (None, "norm_dtype acts the other way, and hid part of what the rest does"),
        (2.5, "norm_dtype makes +2.50 sigma alone, and hid part of what the rest does beside it"),
    ],
)
def test_a_culprit_that_does_harm_alone_is_no_helper(alone: float | None, said: str) -> None:
    hidden = culprit("norm_dtype", -3.0, sigma_alone=alone)
    found = search(status="masked", culprits=(culprit(sigma=6.0), hidden))
    assert f"({said})" in search_answer(found)


def test_within_the_margin_what_moved_is_named_with_how_far_the_distributions_did() -> None:
    inside = search(status="not_reproduced", drift_sigma=0.04, culprits=(), settings=("model",))
    within = "Cause: model moves lambada_openai perplexity by +0.04 sigma only, within the margin"
    assert cause_line(report(comparison(), bisect=bisection(inside, repaired=None))) == f"{within}."
    made = report(
        comparison(), bisect=bisection(inside, repaired=None), distributions=(distribution(),)
    )
    told = "beneath these scores the distributions moved: KL 0.01234 ± 0.00041 nats a token"
    said = f"{within}; {told} on evalguard_rolling."
    assert cause_line(made) == said
    for form in ("markdown", "html"):
        assert told in render_report(made, form)


def test_an_infinite_drift_of_one_culprit_is_all_its_own() -> None:
    assert cause_of(search(drift_sigma=math.inf, culprits=(culprit(sigma=math.inf),))) == (
        "Cause: attn_softcap +inf; +0.06 left"
    )


def test_parts_of_a_culprit_stand_in_it_with_shares_only_where_these_add_up() -> None:
    whole = search(culprits=(culprit("weights.attention", 9.59),), drift_sigma=9.65)
    layers = tuple(culprit(f"layer{n}", 3.1) for n in range(3))
    inside = {"inside": ("weights.attention",), "drift_sigma": 9.6}
    sums = search(culprits=layers, unexplained_sigma=0.3, **inside)
    said = "Cause: weights.attention +9.59 (in it layer0 +3.10, layer1 +3.10, layer2 +3.10"
    assert cause_of(whole, sums) == f"{said}, +0.30 in its other parts); +0.06 left"
    parts = tuple(culprit(f"layer{n}", 0.86) for n in range(3))
    alone = search(culprits=parts, unexplained_sigma=0.1, **inside)
    said = "Cause: weights.attention +9.59 (in it layer0, layer1 and layer2)"
    assert cause_of(whole, alone) == f"{said}; +0.06 left"
    long = render_terminal(
        report(comparison(), bisect=bisection(whole, alone)), width=80, color=False, verbose=True
    )
    why = "they act on each other, and so do not add up"
    assert why in " ".join(long.split())


def test_a_culprit_whose_parts_are_not_proven_says_so() -> None:
    whole = search(culprits=(culprit("weights.attention", 1.4),))
    vague = search(status="unexplained", culprits=(), cleared=(), inside=("weights.attention",))
    said = "Cause: weights.attention +1.40 (no single part of it is proven); +0.06 left"
    assert cause_of(whole, vague) == said


def test_culprits_of_two_metrics_are_summed_metric_by_metric() -> None:
    other = {"task": "choice", "metric": "acc"}
    two = search(**other, culprits=(culprit("norm_dtype", 2.0, **other),), drift_sigma=2.1)
    text = " ".join(" ".join(screen(report(comparison(), bisect=bisection(search(), two)))).split())
    assert "Cause: lambada_openai perplexity: attn_softcap +1.40; +0.06 left." in text
    assert "choice acc: norm_dtype +2.00; +0.06 left" in text


def test_a_search_without_an_answer_says_so_in_the_place_of_the_cause() -> None:
    text = " ".join(screen(report(comparison(), bisect=BY_STATUS["diffuse"])))
    assert "Cause: No single setting makes the drift" in text
    stopped = report(comparison(), bisect=BY_STATUS["stopped"])
    assert cause_line(stopped).startswith("Bisection: No answer for lambada_openai perplexity yet")
    assert cause_line(stopped, "a -> b").startswith("Bisection of a -> b: No answer")
    without = report(comparison(), bisect_reason="the candidate is a finished run")
    assert "Not bisected: the candidate is a finished run." in screen(without)


def test_two_searches_of_one_metric_share_one_table() -> None:
    second = search(culprits=(culprit("norm_dtype", 0.31),), repaired_before=("attn_softcap",))
    shown = report(comparison(), bisect=bisection(search(), second))
    text = render_terminal(shown, width=80, color=False, verbose=True)
    assert text.count("base -> candidate") == 1
    assert text.count("Bisection of lambada_openai perplexity") == 1
    assert "Search 1: " in text
    assert "Search 2: " in text
    page = render_report(shown, "html")
    assert page.count('aria-label="Culprits, ') == 1
    assert page.count("<h3>Bisection of lambada_openai perplexity") == 1


def test_the_worst_metrics_come_first_and_the_others_are_counted() -> None:
    lines = screen(MANY)
    rows = [line.split()[0] for line in lines if re.match(r"suite +metric_|  metric_", line)]
    names = [re.search(r"metric_\d+", line)[0] for line in lines if " metric_" in line]  # type: ignore[index]
    assert len(rows) == 10
    shown = [name for name in names if name in ("metric_7", "metric_41", "metric_55")]
    assert len(set(shown)) == 3
    assert set(names[1:4] if len(names) > 10 else names[:3]) == {
        "metric_7",
        "metric_41",
        "metric_55",
    }
    assert "and 50 more, all within the gate" in lines


def test_hidden_metrics_that_are_not_within_the_gate_are_said_to_be() -> None:
    grave = [comparison(task="suite", metric=f"m{n}") for n in range(13)]
    fine = [comparison(task="suite", metric=f"u{n}", **UNCHANGED) for n in range(5)]
    assert "and 8 more: 3 regressed, 5 within the gate" in screen(report(*grave, *fine))


def test_distributions_have_one_line() -> None:
    shown = dataclasses.replace(DEMO, distributions=(distribution(),))
    told = [line for line in screen(shown) if line.startswith("Distributions: ")]
    assert len(told) == 1
    assert "mean KL 0.01234" in told[0]
    assert "same top token 98.12%" in told[0]


def test_a_wide_terminal_has_a_row_for_each_metric_with_its_task() -> None:
    row = next(line for line in screen(DEMO, 140) if line.startswith("evalguard_lastword  perp"))
    assert row.endswith("regressed")


def test_caveats_that_touch_the_verdict_are_whole_and_the_others_counted() -> None:
    heavy, how = "76% of the drift comes from the worst 1% of documents", "scores that were stored"
    shown = report(comparison(caveats=(heavy,), provenance=(how,)), notes=("batch size 4",))
    text = " ".join(" ".join(screen(shown)).split())
    assert "More (3 caveats, 1 here): " in text
    assert heavy in text
    assert how not in text


def test_the_long_form_begins_with_the_same_verdict_and_holds_everything() -> None:
    long = render_terminal(STORED, width=80, color=False, verbose=True)
    assert long.splitlines()[0] == screen(STORED)[0]
    view = build_report_view(STORED)
    words = " ".join(long.split())
    for text in (*view.answers, view.influence, view.resources, view.sentence):
        assert " ".join(text.split()) in words
    assert all(caveat.text in words for caveat in view.caveats)


def test_the_markdown_page_begins_with_the_verdict_too() -> None:
    head = markdown(build_report_view(DEMO)).split("\n\n")
    assert "REGRESSED" in head[0]
    assert "1.47 sigma" in head[1]


def _metrics(number: int) -> list[Comparison]:
    return [comparison(task=f"task_{n}", metric="acc", **UNDECIDED) for n in range(number)]


def test_sixty_tasks_show_the_worst_ten() -> None:
    lines = screen(report(*_metrics(60)))
    assert sum(line.endswith("undecided") for line in lines if "and" not in line) == 10
    assert "and 50 more, all undecided" in lines


def test_names_without_room_beside_their_numbers_stand_whole_above_them() -> None:
    names = ["first_difference_beyond_ties", "valid_tool_call", "loops"]
    lines = screen(
        report(*(comparison(task="calls", metric=n, filter="text", **UNDECIDED) for n in names))
    )
    for name in names:
        (place,) = [at for at, line in enumerate(lines) if line.startswith(f"  {name} (text)")]
        beside = lines[place] if lines[place].endswith("undecided") else lines[place + 1]
        assert beside.endswith("undecided")
    assert len(lines) <= 24
    assert not any("…" in line for line in lines)


def test_a_plan_is_its_answer_the_hardest_metrics_and_the_next_step() -> None:
    hard = [planned(f"m{n}", ratio=1.0 + n, ratio_range=(0.9 + n, 1.1 + n)) for n in range(15)]
    lines = render_plan(plan_report(planned(), *hard), width=80, color=False).splitlines()
    assert lines[0].startswith("Too few documents")
    assert len(lines) <= 24
    assert "and 6 more, which fall less short" in lines
    assert any(line.startswith("Next: a higher --limit") for line in lines)


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_floor_is_its_answer_and_the_largest_drift_of_each_metric(name: str) -> None:
    lines = render_floor(EXAMPLES[name], width=80, color=False).splitlines()
    assert len(lines) <= 24
    assert re.match("Unchanged, orig shows|orig gives every document", lines[0])


def test_a_trend_says_first_whether_anything_changed() -> None:
    text = history_text(a_history(), width=80, color=False)
    assert re.match(r"\d+ change points?: port against orig", text)
    assert len(text.splitlines()) <= 24
    many = a_history("port", *(a_trend(30, f"m{n}") for n in range(20)))
    assert len(history_text(many, width=80, color=False).splitlines()) <= 24


@pytest.mark.parametrize(
    "caveat",
    [
        *caveats_of({"use_cache": "cache.db"}, generated=True),
        *caveats_of({"dtype": "bfloat16"}, generated=False),
    ],
)
def test_what_puts_the_scores_in_doubt_stands_on_the_first_screen(caveat: str) -> None:
    shown = report(comparison(caveats=(caveat,)))
    assert caveat in " ".join(render_terminal(shown, width=80, color=False).split())


@pytest.mark.parametrize("kind", get_args(FindingKind))
def test_a_finding_of_any_kind_stands_on_the_first_screen(kind: FindingKind) -> None:
    found = Finding(kind=kind, text="12 weights of port are left out")
    shown = " ".join(render_terminal(report(findings=(found,)), width=80, color=False).split())
    assert found.text in shown


@pytest.mark.parametrize(
    "note",
    [
        "dtype follows the checkpoint (float32); set model_args.dtype",
        "batch size 4",
        "differential-1b: its scores are not kept for other runs: it is built anew",
        "100 documents scored with lm-eval's own path: largest difference 1e-06 nats",
    ],
)
def test_a_note_stays_off_the_first_screen_whatever_its_words(note: str) -> None:
    assert note not in render_terminal(report(notes=(note,)), width=80, color=False)


def test_a_night_shows_the_largest_drifts_first_and_the_command_for_the_gravest_pair() -> None:
    made = a_night()
    (metric,) = made.pairs[0].metrics
    many = [dataclasses.replace(metric, metric=f"m{n}", sigma=1.5 + n) for n in range(5)]
    grave = dataclasses.replace(made.pairs[0], metrics=tuple(many))
    night = dataclasses.replace(made, pairs=(grave, *made.pairs[1:]))
    lines = night_text(night, width=80, color=False).splitlines()
    shown = [re.search(r"lastword (m\d): \+", line) for line in lines]
    assert [one[1] for one in shown if one] == ["m4", "m3", "m2"]
    assert "  and 2 more metrics" in lines
    place = lines.index("Next, to see the gravest in full:")
    assert lines[place + 1] == "  evalguard report /r/nightly/n/run"
    assert len(lines) <= 24


@pytest.mark.parametrize("number", [0, 1, 5, 12])
def test_caveats_that_one_screen_has_no_room_for_are_counted(number: int) -> None:
    caveats = tuple(f"caveat {i} takes a line and a half of the screen " * 2 for i in range(number))
    shown = report(comparison(caveats=caveats))
    lines = screen(shown)
    assert len(lines) <= 24
    if number:
        assert f"{number} caveat" in " ".join(lines)
        assert "caveat 0 takes" in " ".join(lines)
