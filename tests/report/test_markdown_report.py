"""The Markdown page: what it says, that text of models stays text, and that it never gets long."""

from __future__ import annotations

import re

import pytest
from any_reports import reports
from example_bisections import bisection, culprit, search
from example_reports import DEMO, UNCHANGED, comparison, failed, report
from harmless_markdown import HOSTILE, assert_harmless, seen, tokens
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from evalguard.core.compare_report import CompareReport, RunIdentity
from evalguard.page.safe_text import inline, printable
from evalguard.page.table import Table
from evalguard.page.terminal import code_block, foldout
from evalguard.report.compare_markdown import (
    COMMENT_BYTES,
    SUMMARY_BYTES,
    comment_marker,
    failure_markdown,
    render_markdown,
)
from evalguard.report.compare_view import build_report_view

BISECTED = report(
    comparison(),
    bisect=bisection(
        search(culprits=(culprit("rope_theta"), culprit("attn_scale", 0.9))),
        fix="models:\n  port:\n    settings: {rope_theta: 4000}  # `x`",
        fix_where="configs/demo.yaml:24",
        proof="evalguard compare --base orig --cand port --set rope_theta=reference",
    ),
)


@pytest.mark.parametrize("text", HOSTILE)
def test_text_of_a_model_stays_text_wherever_it_stands(text: str) -> None:
    for shown in (inline(text), f"- {inline(text)}", foldout(text, inline(text))):
        assert_harmless(shown)
    (cell,) = [
        t for t in tokens(Table(headings=["a"], rows=[[text]]).markdown()) if t.type == "td_open"
    ]
    assert cell
    assert seen(tokens(inline(text))) == text.split()


@given(st.text(st.characters(exclude_categories=("Cs",)), max_size=80))
@example("1.x")
@example("a\\|b`")
@example("\\8a1f2b3c`")
@example("1234567a. x")
def test_any_text_comes_out_as_it_went_in(text: str) -> None:
    text = printable(text).strip()
    shown = tokens(inline(text))
    assert_harmless(inline(text))
    assert seen(shown) == text.split()


@given(st.lists(st.text(st.sampled_from("`~ ab\t>#-"), max_size=12), min_size=1, max_size=4))
def test_nothing_ends_a_block_of_code(lines: list[str]) -> None:
    (block,) = tokens(code_block(lines, "yaml"))
    assert (block.type, block.content) == ("fence", "\n".join(lines) + "\n")


def test_the_page_of_the_demo_reads_from_the_verdict_down() -> None:
    page = render_markdown(build_report_view(DEMO))
    lines = page.splitlines()
    assert lines[0] == "### ❌ REGRESSED: 2 regressed, 2 tolerated, 1 unchanged"
    assert "+1.47 sigma" in lines[2]
    assert lines[4].startswith("fla-port against orig: ")
    (row,) = [line for line in lines if "lastword | perplexity" in line]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[2:4] == ["4.133", "4.263"]
    assert cells[4] == "+1.47 \\[1.30, 1.63\\]"
    assert cells[6] == "regressed (1)"
    assert "1. evalguard\\_lastword perplexity: 76% of the drift" in page


def test_the_culprits_the_repair_and_the_proof_are_on_the_page() -> None:
    found = build_report_view(BISECTED)
    page = render_markdown(found)
    assert found.bisection is not None
    for name in found.bisection.guilty:
        assert inline(name) in page
    assert found.bisection.proof in page
    fix = found.bisection.fix
    assert fix is not None
    assert all(line in page for line in fix.lines)


@pytest.mark.parametrize("most", [COMMENT_BYTES, SUMMARY_BYTES])
def test_a_page_of_thousands_of_metrics_is_cut_and_says_what_is_missing(most: int) -> None:
    many = [
        comparison(**UNCHANGED, task=f"task_{i}", caveats=(f"caveat {i} " * 60,))
        for i in range(1500)
    ]
    page = render_markdown(
        build_report_view(report(*many, comparison(task="the_bad_one"))), most=most
    )
    assert len(page.encode()) <= most
    assert bool(re.search(r"Left out: \d+ metrics", page)) == (most == COMMENT_BYTES)
    assert "Left out: caveats" in page
    assert "the\\_bad\\_one" in page


def test_names_of_megabytes_do_not_make_it_long() -> None:
    name = "$<&@" * 100_000
    long = RunIdentity(name=name, digest=name, description=name)
    shown = report(comparison(task=name, reason=name), base=long, candidate=long, command=name)
    page = render_markdown(build_report_view(shown), most=COMMENT_BYTES)
    assert len(page.encode()) <= COMMENT_BYTES
    assert page.startswith("### ❌ REGRESSED")


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(reports())
def test_any_report_gives_a_harmless_page_within_its_length(shown: CompareReport) -> None:
    page = render_markdown(build_report_view(shown), most=COMMENT_BYTES, marker=comment_marker("a"))
    assert len(page.encode()) <= COMMENT_BYTES
    assert page.startswith(comment_marker("a"))
    assert_harmless(page)


def test_no_line_of_a_comment_is_an_order_to_gitlab() -> None:
    lines = ["/close", " /merge", "\n/label ~x", "/assign @me", "\t/approve"]
    page = failure_markdown("\n".join(lines), "/reopen", exit_code=3)
    assert not [line for line in page.splitlines() if line.lstrip().startswith("/")]


def test_a_hash_is_code_so_that_it_is_copied_and_never_linked() -> None:
    assert inline("at 8a1f2b3c, 1234567 documents") == "at `8a1f2b3c`, 1234567 documents"
    assert inline("reports/x-8a1f2b3c 20261121T020000Z") == "reports/x-8a1f2b3c 20261121T020000Z"


def test_places_and_times_can_be_copied() -> None:
    assert (
        inline("configs/demo.yaml:24: at 11:00:00Z, 95%")
        == "configs/demo.yaml:24: at 11:00:00Z, 95%"
    )
    assert inline("a :smile: :+1: :100:").count("\u200b") == 3


def test_markers_tell_pairs_apart_and_stay_the_same() -> None:
    assert comment_marker("a", "b") == comment_marker("a", "b")
    assert len({comment_marker("a", "b"), comment_marker("b", "a"), comment_marker("ab")}) == 3
    assert re.fullmatch(r"<!-- evalguard [0-9a-f]{16} -->", comment_marker("-->", "\ud800"))


def test_a_metric_without_a_number_is_no_regression() -> None:
    page = render_markdown(build_report_view(report(failed())))
    assert page.startswith("### 💥 FAILED")
    assert "3 of 5,153 scores of fla-port are NaN" in page


def test_a_comparison_that_did_not_finish_says_that_nothing_is_known() -> None:
    page = failure_markdown("no model <b>x</b>\nsecond", "try @this", exit_code=3)
    assert page.startswith("### 💥 No verdict")
    assert "neither a pass nor a regression" in page
    assert_harmless(page)
