"""Pages hold all they need, allow nothing else, and take every text as text."""

from __future__ import annotations

import base64
import dataclasses
import gzip
import hashlib
import json
import re
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
from any_reports import reports
from example_bisections import BY_STATUS
from example_documents import HOSTILE, choices, generated, loglikelihoods
from example_reports import DEMO, comparison, failed, report
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from whole_report import WHOLE

from evalguard.core.compare_report import CompareReport, drift_column
from evalguard.page.html_page import compress_json, cut_middle, cut_to_tail, html_page, make_visible
from evalguard.report.compare_html import render_html
from evalguard.report.compare_view import build_report_view

VOID = {"meta", "br", "img", "input", "hr", "link"}


class Tree(HTMLParser):
    """Elements with their attributes; every one that is opened has to be closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def page_of(shown: CompareReport, *documents: Any) -> str:
    return render_html(build_report_view(shown), documents)


def blocks_of(page: str) -> dict[str, Any]:
    found = re.findall(
        r'<script type="application/octet-stream" id="([^"]+)">([^<]*)</script>', page
    )
    return {name: json.loads(gzip.decompress(base64.b64decode(data))) for name, data in found}


def test_a_page_loads_nothing_and_names_no_place() -> None:
    page = page_of(DEMO, loglikelihoods(["a", "b"]))
    for tag, attributes in Tree(page).elements:
        assert tag not in {"link", "iframe", "object", "embed", "base", "form"}
        assert not {"src", "srcset", "style", "action"} & set(attributes)
        assert not any(name.startswith("on") for name in attributes), "an event handler"
        assert attributes.get("href", "#").startswith("#")
    assert "url(" not in page
    assert "@import" not in page


def test_the_policy_names_the_only_style_and_the_only_script() -> None:
    page = page_of(DEMO, loglikelihoods(["a", "b"]))
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]+)"', page)
    policy = policy.replace("&#39;", "'")
    styles = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    assert (len(styles), len(scripts)) == (1, 1)
    hashes = [
        f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
        for text in (*styles, *scripts)
    ]
    assert policy == (
        f"default-src 'none'; style-src {hashes[0]}; script-src {hashes[1]}; "
        "base-uri 'none'; form-action 'none'"
    )


def test_without_documents_there_is_no_table_of_them_and_no_script_for_it() -> None:
    page = page_of(DEMO)
    assert 'id="documents"' not in page
    assert "DecompressionStream" not in page
    assert "octet-stream" not in page


@pytest.mark.parametrize("status", BY_STATUS)
def test_every_bisection_shows_its_probes_and_culprits(status: str) -> None:
    found = BY_STATUS[status]
    page = page_of(report(comparison(), bisect=found))
    Tree(page)
    for search in found.searches:
        for culprit in search.culprits:
            assert culprit.setting in page
        assert page.count("settings at their candidate value") >= len(search.measured)


def test_the_numbers_of_a_document_are_those_of_its_run() -> None:
    documents = loglikelihoods(["first", "second", "third"], tokens=3, names=(" Ro", "sa", "!"))
    blocks = blocks_of(page_of(DEMO, documents))
    (of_task,) = blocks["rows"]
    assert np.cumsum(of_task["steps"]).tolist() == [0, 1, 2]
    assert [metric["label"] for metric in of_task["metrics"]] == ["perplexity", "acc"]
    totals = [of[0] for of in documents.of("base", "loglikelihood")]
    assert of_task["metrics"][0]["base"] == pytest.approx(totals, rel=1e-3)
    drifts = documents.drifts("none", "perplexity")
    assert of_task["metrics"][0]["drift"] == pytest.approx(drifts, rel=1e-2)
    piece = {name: column[1] for name, column in blocks["texts-0-0"].items()}
    assert (piece["prompt"], piece["target"]) == ("second", " Rosa")
    assert piece["continuation"] == [None]  # the target
    assert piece["base"][0][0] == pytest.approx(totals[1], abs=6e-3)
    assert piece["candidate"][0][2] is None
    assert piece["names"] == [[" Ro", "sa", "!"]]
    ((base, change, _, differences),) = piece["heat"]
    assert differences
    for side, found in (("base", base), ("candidate", np.add(base, change))):
        expected = documents.of(side, "token_logprobs")[1][0]
        assert found == pytest.approx([100 * value for value in expected], abs=0.51)


def test_a_page_of_very_many_documents_has_those_that_moved_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("evalguard.report.document_table.MOST_DOCUMENTS", 60)
    documents = loglikelihoods([f"text {i}" for i in range(200)], tokens=3)
    page = page_of(DEMO, documents)
    (of_task,) = blocks_of(page)["rows"]
    ids = np.cumsum(of_task["steps"])
    largest = np.zeros(200)
    for filter_, metric in documents.drifting:
        drifts = np.array(documents.drifts(filter_, metric), dtype=float)
        largest = np.maximum(largest, np.abs(np.nan_to_num(drifts)))
    assert len(ids) == 60 == len(of_task["metrics"][0]["drift"]) == len(of_task["kl"])
    assert largest[ids].min() >= np.delete(largest, ids).max()
    kl = documents.mean_kl()
    assert kl is not None
    assert of_task["kl"] == pytest.approx([kl[i] for i in ids], rel=0.05)
    assert len(blocks_of(page)["texts-0-0"]["prompt"]) == 60
    assert "the 60 of 200 documents that moved most are here; the run folder has all" in page


def test_a_page_of_fewer_documents_has_them_all() -> None:
    page = page_of(DEMO, loglikelihoods([f"text {i}" for i in range(200)]))
    assert len(blocks_of(page)["rows"][0]["steps"]) == 200
    assert "that moved most are here" not in page


def test_other_answers_are_marked_by_text_and_by_the_likeliest_option() -> None:
    page = page_of(DEMO, generated(["q"] * 3, ["4"] * 3), choices(3))
    of_texts, of_options = blocks_of(page)["rows"]
    assert of_texts["answers"] == [1, 1, 1]
    assert of_options["answers"] == [0, 1, 1]


def test_hostile_texts_are_in_the_page_only_as_packed_data() -> None:
    page = page_of(DEMO, loglikelihoods(HOSTILE), generated(HOSTILE, HOSTILE))
    Tree(page)
    assert "window.hit" not in page
    prompts = blocks_of(page)["texts-0-0"]["prompt"]
    assert prompts == [make_visible(text) for text in HOSTILE]
    assert page.encode()


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(reports())
def test_names_and_numbers_of_any_kind_leave_the_page_whole(shown: CompareReport) -> None:
    page = page_of(shown)
    Tree(page)
    assert len(re.findall("<script", page)) == 1


@given(st.text(st.characters(exclude_categories=()), max_size=200))
def test_what_is_made_visible_holds_nothing_that_acts(text: str) -> None:
    shown = make_visible(text)
    assert not re.search(
        "[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", shown
    )
    assert make_visible(shown) == shown
    assert base64.b64decode(compress_json([shown]))


def test_texts_are_cut_with_a_word_about_it() -> None:
    assert cut_middle("a" * 100 + "b" * 100, 30).startswith("a" * 10 + " ‹170 characters")
    assert cut_middle("abc", 3) == cut_to_tail("abc", 3) == "abc"
    assert cut_to_tail("abcdef", 2) == "…ef"


def test_a_template_that_misses_a_name_is_an_error() -> None:
    from jinja2 import UndefinedError

    with pytest.raises(UndefinedError):
        html_page("report/report.html")


def test_a_metric_without_a_number_has_the_reason_in_its_place() -> None:
    lost = failed(task="lost")
    page = page_of(report(lost, comparison()))
    (row,) = re.findall(r'<tr class="because"><td colspan="8">(.*?)</td>', page)
    assert row == lost.reason


def test_a_limit_says_its_state_once() -> None:
    page = page_of(WHOLE)
    (line,) = re.findall(r'<p class="regressed">(.*?)</p>', page)
    assert line == (
        '<span class="outcome">regressed</span> kl_mean on evalguard_rolling acc (f) at most 0.01: '
        "0.02 [0.01, inf]: above the limit"
    )


@pytest.mark.parametrize(("moved", "pictures"), [(2, 0), (3, 3)])
def test_one_or_two_documents_that_differ_are_no_distribution(moved: int, pictures: int) -> None:
    documents = loglikelihoods(["a"] * 40)
    column = drift_column("none", "perplexity")
    columns = {**documents.columns, column: [0.1] * moved + [0.0] * (40 - moved)}
    page = page_of(
        report(comparison(task=documents.task)), dataclasses.replace(documents, columns=columns)
    )
    assert f"{moved} of 40 documents differ" in page
    assert page.count("<figcaption>") == pictures


def test_a_name_of_another_direction_leaves_the_words_beside_it_in_order() -> None:
    page = page_of(report(comparison(task="مهمة")))
    assert "<bdi>مهمة</bdi> · 5,153 documents" in page


def test_a_page_that_compared_nothing_says_so() -> None:
    assert "<p>No metric was compared.</p>" in page_of(report())


def test_a_table_too_long_to_be_seen_at_once_names_the_worst_rows_first() -> None:
    several = [
        comparison(
            task=f"task {number}", sigma=number + 2.0, sigma_interval=(number + 1.5, number + 3.0)
        )
        for number in range(30)
    ]
    few = page_of(report(*several[:10]))
    assert "the largest drift first" not in few
    page = page_of(report(*several, failed(task="lost")))
    head = page[page.index("the largest drift first") :][:4_000]
    labels = re.findall(r'<a href="#(metric-\d+)"><bdi>(.*?) perplexity</bdi></a>', head)
    assert "perplexity</bdi></a> (no number)</li>" in head
    assert labels[:3] == [("metric-30", "lost"), ("metric-29", "task 29"), ("metric-28", "task 28")]
    assert "and 11 more" in head
    assert page.count('id="metric-') == 31
    assert page.count("axis-row") - few.count("axis-row") == 1  # above the rows, too
