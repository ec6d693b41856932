"""Generated answers in a report: silent where nothing changed, one line where something did."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from example_reports import comparison, report
from whole_report import WHOLE

from evalguard.core.compare_report import CompareReport
from evalguard.core.distribution_comparison import Figure
from evalguard.core.generation_comparison import (
    FigureComparison,
    FilterComparison,
    FirstDifference,
    FirstDifferences,
    GenerationComparison,
    PairedFigure,
)
from evalguard.report.compare_terminal import render_terminal
from evalguard.report.compare_view import build_report_view
from evalguard.report.formats import render_report


def figure(base: float, candidate: float, half: float) -> PairedFigure:
    apart = candidate - base
    return PairedFigure(
        base=Figure(value=base, stderr=half / 4),
        candidate=Figure(value=candidate, stderr=half / 4),
        difference=Figure(value=apart, stderr=half / 2, interval=(apart - half, apart + half)),
        n=200,
        method="paired-t",
    )


def shown(**fields: Any) -> CompareReport:
    usual: dict[str, Any] = {"length": figure(300.0, 301.0, 5.0)}
    generation = GenerationComparison(
        task="sums",
        n=200,
        repeats=1,
        confidence=0.95,
        same_text=Figure(value=0.4, interval=(0.3, 0.5)),
        **{**usual, **fields},
    )
    return dataclasses.replace(report(comparison()), generations=(generation,))


def line(**fields: Any) -> str:
    return build_report_view(shown(**fields)).answers_change


def missing(filter_: str, base: float, candidate: float) -> FilterComparison:
    return FilterComparison(
        filter=filter_, missing=figure(base, candidate, 0.02), candidate_only=9, base_only=0
    )


def test_nothing_is_said_of_answers_that_did_not_change() -> None:
    unchanged = {
        "cut": figure(0.01, 0.02, 0.02),
        "filters": (missing("strict", 0.05, 0.06),),
    }
    assert line(**unchanged) == ""
    assert "Answers of" not in render_terminal(shown(**unchanged), width=80, color=False)


@pytest.mark.parametrize(
    ("candidate", "said"),
    [(330.0, "10% longer"), (150.0, "50% shorter"), (320.0, "")],
)
def test_a_length_is_said_from_ten_per_cent_on(candidate: float, said: str) -> None:
    assert line(length=figure(300.0, candidate, 5.0)) == (
        f"Answers of sums: {said}" if said else ""
    )
    assert line(length=figure(300.0, candidate, 200.0)) == ""


def test_the_first_screen_names_what_changed_and_the_filter_that_misses_most() -> None:
    text = line(
        cut=figure(0.004, 0.12, 0.02),
        filters=(missing("strict", 0.01, 0.30), missing("any", 0.0, 0.05)),
    )
    assert text == (
        "Answers of sums: 12.00% cut at the token limit (base 0.40%), "
        "30.00% without an answer (strict and 1 more filter) (base 1.00%) "
        "(to gate it: --gate-metric cut)"
    )


def test_a_side_that_repeats_itself_is_named() -> None:
    text = line(base_equal=0.02, candidate_equal=0.99)
    assert "the same text in all answers to 99% of the documents (base 2%)" in text


def test_many_tasks_are_counted() -> None:
    one = shown(cut=figure(0.0, 0.5, 0.1))
    tasks = tuple(dataclasses.replace(one.generations[0], task=f"t{number}") for number in range(5))
    text = build_report_view(dataclasses.replace(one, generations=tasks)).answers_change
    assert text.startswith("Answers of t0: ")
    assert text.endswith("; and 3 more tasks (to gate it: --gate-metric cut=0)")


def test_the_worst_figures_come_first_and_those_that_none_of_the_base_had_are_said() -> None:
    def told(name: str, base: float, candidate: float, stderr: float, more: int) -> Any:
        return FigureComparison(
            name=name, figure=figure(base, candidate, stderr), candidate_only=more, base_only=0
        )

    text = line(
        figures=(
            told("loops", 0.0, 0.04, 0.03, 3),
            told("empty", 0.0, 0.02, 0.03, 2),
            told("valid_json", 0.99, 0.49, 0.05, 0),
            told("first_difference_beyond_ties", 0.0, 0.9, 0.05, 90),
        )
    )
    assert "49" in text.partition("valid JSON")[0]
    assert text.index("valid JSON") < text.index("looping")
    assert "empty" not in text
    assert "ties" not in text
    assert text.endswith("(to gate it: --gate-metric loops=0)")


def test_every_format_shows_them() -> None:
    page = render_report(WHOLE, "html")
    assert '<h2 id="generations">Generated answers</h2>' in page
    assert '<a href="#generations">' in page
    assert "m pass@4 (f)" in page
    assert "Generated answers" in render_report(WHOLE, "markdown")
    long = render_terminal(WHOLE, width=80, color=False, verbose=True)
    assert "Generated answers, sums (9 documents, 3 clusters, 4 answers each)" in " ".join(
        long.split()
    )


def differing(**fields: Any) -> FirstDifferences:
    one = FirstDifference(
        position=5, base_token=7, candidate_token=8, base_margin=1.25, base_margin_exact=False,
        near_tie=False, doc_id=12, before="Mara carried the ", base_text="lantern down",
        candidate_text="boat down",
    )  # fmt: skip
    usual: dict[str, Any] = {
        "n": 200,
        "differ": 120,
        "placed": 120,
        "position": 23.4567,
        "beyond_ties": figure(0.0, 0.25, 0.04),
        "examples": (one, dataclasses.replace(one, doc_id=13, near_tie=True)),
    }
    return FirstDifferences(**{**usual, **fields})


def test_where_answers_first_differ_is_said_with_the_surest_examples() -> None:
    (view,) = build_report_view(shown(first_difference=differing())).generations
    rows = {row.label: row for row in view.rows}
    assert rows["first other token (from 0)"].base == "23.5"
    assert rows["differ beyond near ties"].candidate.startswith("25")
    (said,) = view.remarks
    assert said == (
        "document 12 first differs at token 5, which the base preferred by at least 1.2 nats: "
        "after 'Mara carried the ' 'lantern down', the candidate 'boat down'"
    )


def test_answers_that_differ_nowhere_or_whose_tokens_nobody_knows_have_no_such_rows() -> None:
    nowhere = differing(differ=0, placed=0, position=None, examples=())
    unknown = differing(placed=0, position=None, beyond_ties=None, examples=())
    for found in (nowhere, unknown, None):
        (view,) = build_report_view(shown(first_difference=found)).generations
        assert not [row for row in view.rows if "token" in row.label or "ties" in row.label]
        assert view.remarks == ()
