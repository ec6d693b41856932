"""A night in its renderings: the same words, harmless whatever a model is called."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import jsonschema
import pytest
from example_nights import a_history, a_night, a_trend

from evalguard.core.findings import Finding
from evalguard.nights.history_page import render_history_page
from evalguard.nights.night_page import (
    night_document,
    night_mail,
    night_markdown,
    night_schema,
    render_night_page,
)
from evalguard.nights.night_report import GonePair

HOSTILE = "<script>alert(1)</script>\x1b[31m\u202e@team"


def test_all_that_is_new_stands_on_top_of_every_page() -> None:
    report = a_night()
    said = (
        "NEW: port against orig regressed on lastword acc.",
        "NEW: gone against orig gave no number: no model.",
        "is worse by 1.30 ± 0.10 sigma since 2026-11-19; changed there: packages.torch 2.12",
        "5 documents that were broken before, 2 for the first time; 5 of them as on 2026-10-02",
    )
    mail = " ".join(night_mail(report).split())
    for line in said:
        assert line in mail
        assert line in render_night_page(report)
    assert mail.startswith("Subject: evalguard nightly 2026-11-21: REGRESSED, 1 new")
    assert "culprits: norm_dtype" in mail
    assert "norm\\_dtype" in night_markdown(report)
    assert 'href="run/report.html"' in render_night_page(report)


def test_what_could_not_be_kept_stands_on_top_of_every_page() -> None:
    night = a_night()
    pair = replace(night.pairs[0], not_kept="it is locked")
    changes = replace(night.changes[1], problem="the history is damaged")
    night = replace(night, pairs=(pair, night.pairs[1]), changes=(night.changes[0], changes))
    for page in (night_mail(night), night_markdown(night), render_night_page(night, ())):
        text = " ".join(page.split())
        assert "PROBLEM: port against orig: this run is not in the history: it is locked" in text
        assert "PROBLEM: gone against orig: the history is damaged" in text


def test_a_pass_that_may_say_little_says_so_on_every_page() -> None:
    night = a_night()
    found = (
        Finding(kind="same_model", text="base and candidate are one model"),
        Finding(kind="sides_differ", text="configs differ: eos_token_id 1 -> 2"),
    )
    doubtful = replace(night.pairs[0], state="passed", exit_code=0, findings=found)
    said = "Passed, but: port against orig: base and candidate are one model."
    passed = replace(night, pairs=(doubtful, night.pairs[1]))
    for page in (night_mail(passed), night_markdown(passed), render_night_page(passed, ())):
        assert said in " ".join(page.split())
    whole = (night_mail(passed), render_night_page(passed, ()))
    assert all("configs differ: eos_token_id 1 -" in " ".join(page.split()) for page in whole)
    failed = replace(night, pairs=(replace(doubtful, state="regressed"), night.pairs[1]))
    assert "Passed, but" not in night_mail(failed)


def test_a_pair_without_a_number_has_the_reason_in_its_row() -> None:
    page = render_night_page(a_night())
    assert page.count('<td colspan="4" class="why">no model</td>') == 1


def test_drifts_of_a_base_that_does_not_scatter_are_told_in_points() -> None:
    report = a_night()
    (metric,) = report.pairs[0].metrics
    looping = replace(
        metric, sigma=math.inf, low=0.0, high=math.inf, unit="pp", drift=50.0, drift_low=25.8,
        drift_high=70.1,
    )  # fmt: skip
    step = replace(report.changes[0].steps[0], before=0.0, after=50.0, stderr=7.9, unit="pp")
    night = replace(
        report,
        pairs=(replace(report.pairs[0], metrics=(looping,)), report.pairs[1]),
        changes=(replace(report.changes[0], steps=(step,)), report.changes[1]),
    )
    for page in (night_mail(night), night_markdown(night), render_night_page(night, ())):
        text = " ".join(page.replace("\\", "").split())
        assert "+50.0pp" in text
        assert "[25.8, 70.1]" in text
        assert "is worse by 50.0 ± 7.9 pp since 2026-11-19" in text
        assert "inf " not in text
        assert "- sigma" not in text


def test_a_night_without_a_pair_says_so() -> None:
    empty = replace(a_night(), pairs=(), changes=())
    page = render_night_page(empty)
    assert "(no pair)" in page
    assert "No pair was compared." in page


def test_what_is_said_of_a_trend_are_sentences() -> None:
    page = render_history_page(a_history())
    assert "<p>Worse by " in page
    assert "(permutation scan; nights in a row are not seen to be alike).</p>" in page


def test_what_tonight_and_last_night_do_not_share_is_named() -> None:
    gone = tuple(
        GonePair(base="orig", candidate=f"old{number}", was="regressed") for number in range(7)
    )
    night = replace(a_night(), gone=gone, other_bases=("orig",))
    for page in (night_mail(night), night_markdown(night), render_night_page(night, ())):
        text = " ".join(page.split())
        assert "Not what it was last night, a base: orig (weights" in text
        assert "Not compared last night: gone against orig." in text
        assert "Not compared any more: old0 against orig (regressed last night), old1" in text
        assert "old4 against orig (regressed last night) and 2 more." in text
    first = replace(night, previous="", gone=())
    assert "Not compared" not in night_mail(first)


def test_documents_that_break_as_often_as_chance_does_are_not_told_of() -> None:
    report = a_night()
    (broken,) = report.changes[0].broken
    often = replace(report.changes[0], broken=(replace(broken, by_chance=4.0),))
    few = replace(report.changes[0], broken=(replace(broken, again=2, shared=2),))
    for changes in (often, few):
        assert "Broken again" not in night_mail(
            replace(report, changes=(changes, report.changes[1]))
        )


def test_the_metric_named_first_is_one_that_failed_the_gate() -> None:
    report = a_night()
    (regressed,) = report.pairs[0].metrics
    passed = replace(regressed, metric="f1", sigma=9.0, outcome="degraded", state="passed")
    nothing = replace(regressed, metric="mcc", sigma=None, outcome="failed", state="failed")
    pair = replace(report.pairs[0], metrics=(passed, nothing, regressed))
    assert pair.worst is regressed
    assert replace(pair, metrics=(passed, nothing)).worst is nothing
    assert replace(pair, metrics=()).worst is None
    page = render_night_page(replace(report, pairs=(pair, report.pairs[1])))
    assert "<td>lastword acc</td>" in page
    assert "<td>[1.10, 2.50]</td>" in page


def test_a_name_cannot_act_on_any_page() -> None:
    report = a_night(HOSTILE)
    page = render_night_page(report)
    assert "<script>alert" not in page
    assert page.count("<script") == 1
    assert "http" not in page.split("<main", 1)[1]
    for text in (night_mail(report), night_markdown(report), page):
        assert "\x1b" not in text
        assert "\u202e" not in text
    assert "<script>" not in night_markdown(report)


def test_the_document_satisfies_its_schema_and_holds_no_infinity() -> None:
    report = a_night()
    metric = replace(report.pairs[0].metrics[0], sigma=float("inf"))
    report = replace(report, pairs=(replace(report.pairs[0], metrics=(metric,)), report.pairs[1]))
    document = json.loads(json.dumps(night_document(report), allow_nan=False))
    jsonschema.validate(document, night_schema())
    assert document["pairs"][0]["metrics"][0]["sigma"] is None
    assert document["counts"] == {"passed": 0, "regressed": 1, "undecided": 0, "failed": 1}


@pytest.mark.parametrize("nights", [1, 40])
def test_a_history_s_page_shows_every_night_and_change_point(nights: int) -> None:
    report = a_history(HOSTILE, a_trend(nights))
    page = render_history_page(report)
    assert page.count("<circle") == nights
    assert ("Worse by 1.40" in page) == (nights == 40)
    assert "<script>alert" not in page
