"""Findings stand on the first screen of every view, and come back from a stored run."""

from __future__ import annotations

import html
import json
import math
from dataclasses import replace
from typing import Any

import pytest
from example_reports import comparison, failed, report

from evalguard.core.broken_documents import AskedText, broken_document
from evalguard.core.compare_report import CompareReport
from evalguard.core.findings import Finding, Quote, without_quotes
from evalguard.errors import StoreError
from evalguard.report.compare_document import compare_document, parse_report
from evalguard.report.compare_terminal import render_terminal
from evalguard.report.formats import render_report

FOUND = Finding(
    kind="padding_changes",
    text="padding changes 3 of 40 answers of the candidate, and none of the base",
    task="storygen",
    metric="exact_match",
    values={"candidate": 3, "base": 0, "documents": (1, 5, 8)},
)


@pytest.fixture
def told() -> CompareReport:
    return report(comparison(), findings=(FOUND,))


@pytest.mark.parametrize("verbose", [False, True])
def test_a_finding_stands_above_the_table(told: CompareReport, verbose: bool) -> None:
    screen = render_terminal(told, width=80, color=False, verbose=verbose)
    said = " ".join(screen.split())
    assert f"Note: storygen exact_match: {FOUND.text}" in said
    assert said.index("Note:") < said.index("paired p")


@pytest.mark.parametrize("kind", ["markdown", "html"])
def test_pages_say_it(told: CompareReport, kind: Any) -> None:
    assert FOUND.text in html.unescape(render_report(told, kind))


QUOTING = Finding(
    kind="says_nothing",
    text="of the candidate, all 9 documents are given the same answer (documents 0, 1)",
    task="storygen",
    filter="strict",
    values={"n": 9, "first": "the cat sat"},
    quotes=(
        Quote(what="answer", side="candidate", doc_id=0, text="the cat sat"),
        Quote(what="answer", side="candidate", doc_id=1, text="the cat\nsat"),
    ),
)


def test_what_is_quoted_stands_behind_the_sentence_on_this_machine() -> None:
    screen = render_terminal(
        report(comparison(), findings=(QUOTING,)), width=200, color=False, verbose=False
    )
    assert (
        f"Note: storygen (strict): {QUOTING.text} "
        '(answer of the candidate: "the cat sat", "the cat sat")' in " ".join(screen.split())
    )


def test_a_report_without_quotes_holds_no_words_of_documents() -> None:
    whole = report(
        failed(quotes=QUOTING.quotes, reason="all alike"),
        findings=(QUOTING, FOUND),
        broken_documents=(
            broken_document("t", 3, [AskedText(base=-1.0, candidate=-math.inf, text="the cat")]),
        ),
    )
    bare = without_quotes(whole)
    assert "the cat" in json.dumps(compare_document(whole))
    assert "the cat" not in json.dumps(compare_document(bare))
    assert bare.findings == (replace(QUOTING, quotes=(), values={"n": 9}), FOUND)
    assert without_quotes(bare) == bare


def test_it_is_data_in_the_document_and_comes_back(told: CompareReport) -> None:
    document = json.loads(json.dumps(compare_document(told)))
    assert document["findings"][0]["values"]["documents"] == [1, 5, 8]
    assert parse_report(document).findings == (FOUND,)


def test_a_document_of_an_earlier_version_has_none(told: CompareReport) -> None:
    document = compare_document(told)
    del document["findings"]
    assert parse_report(document).findings == ()


def test_a_finding_cannot_act_on_a_terminal() -> None:
    evil = Finding(kind="sides_differ", text="a\x1b[31mb\nc", task="t")
    screen = render_terminal(report(comparison(), findings=(evil,)), width=80, color=False)
    assert "\x1b" not in screen


def without_key(document: dict[str, Any]) -> dict[str, Any]:
    """A document as an earlier version wrote it: words stood in sentences."""
    for part in ("findings", "comparisons"):
        for one in document[part]:
            del one["quotes"]
    return document


def test_what_an_earlier_version_said_with_words_of_documents_is_a_quote() -> None:
    said = "prompts differ: only the candidate's have a system prompt ('You are zyzzyva')"
    old = report(
        failed(metric="exact_match", reason='all alike (texts: "zyzzyva")'),
        failed(metric="perplexity", reason="3 scores are NaN"),
        findings=(Finding(kind="prompts_differ", text=said), FOUND),
    )
    found = parse_report(without_key(compare_document(old)))
    assert "zyzzyva" in found.findings[0].line
    assert "zyzzyva" in found.comparisons[0].quoted_reason
    assert (found.findings[1], found.comparisons[1].reason) == (FOUND, "3 scores are NaN")
    bare = without_quotes(found)
    assert "zyzzyva" not in json.dumps(compare_document(bare))
    assert bare.findings[0].text == "prompts differ, as declared"


@pytest.mark.parametrize("damaged", [None, 3, [3], [{"kind": ["x"]}], {"a": 1}])
def test_a_damaged_list_of_findings_is_refused(told: CompareReport, damaged: Any) -> None:
    document = {**compare_document(told), "findings": damaged}
    with pytest.raises(StoreError, match="damaged"):
        parse_report(document)
