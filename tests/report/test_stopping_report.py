"""A sequential run in the JSON document, the terminal and the Python API."""

from __future__ import annotations

from dataclasses import replace

import jsonschema
import pytest
from example_reports import comparison, report

from evalguard.comparison.result import CompareResult
from evalguard.core.compare_report import CompareReport
from evalguard.core.comparison import SequentialRun, SequentialTask, Stopping
from evalguard.report.compare_document import compare_document, compare_schema
from evalguard.report.compare_terminal import render_terminal

LOOKS = (65, 129, 515, 5153)


def stopping(**changes: object) -> Stopping:
    fields: dict[str, object] = {
        "n_total": 5153, "n_used": 515, "look": 3, "looks": LOOKS, "seed": 1234, "alpha": 0.05,
        "alpha_below": 0.05, "alpha_above": 0.025, "error_chance": 0.011,
        "method": "bounded-betting", "assumed_worst": 3.08, "seen_worst": 0.04,
        "assumption": "no other document loses more than 3.08 nats (the most so far: 0.04)",
        "guarantee": "the verdict is that of all 5,153 documents, wrong in at most 5% of orders",
    }  # fmt: skip
    return Stopping(**{**fields, **changes})  # type: ignore[arg-type]


def sequential(*tasks: SequentialTask) -> SequentialRun:
    return SequentialRun(alpha=0.05, gated=2, seed=1234, loads=2, tasks=tasks)


@pytest.fixture
def stopped() -> CompareReport:
    shared = {"n_used": 515, "outcome": "unchanged", "significant": False, "certain": False}
    return report(
        comparison(**shared, confidence=0.9, sigma=0.01, sigma_interval=(-0.4, 0.9),
                   method="sequential-bounded", stopping=stopping()),
        comparison(**shared, confidence=0.9, metric="acc", sigma=0.0, sigma_interval=(-0.7, 0.95),
                   method="sequential-flips",
                   stopping=stopping(method="flips-exact", assumed_worst=None, seen_worst=None,
                                     assumption="")),
        sequential=sequential(
            SequentialTask(task="lambada_openai", n_used=515, n_total=5153, look=3, looks=LOOKS),
            SequentialTask(task="qa", n_used=80, n_total=80, look=1, looks=(80,),
                           reason="f1: it is not a mean"),
        ),
    )  # fmt: skip


def test_the_document_says_how_many_documents_the_verdict_rests_on(stopped: CompareReport) -> None:
    written = compare_document(stopped)
    jsonschema.Draft202012Validator(compare_schema()).validate(written)
    assert written["sequential"]["seed"] == 1234
    assert written["sequential"]["tasks"][0]["looks"] == list(LOOKS)
    assert written["comparisons"][0]["stopping"]["assumed_worst"] == 3.08
    assert written["comparisons"][1]["stopping"]["assumed_worst"] is None
    assert written["comparisons"][0]["n"] == 5153
    assert written["comparisons"][0]["n_used"] == 515
    ordinary = compare_document(report(comparison()))
    assert ordinary["sequential"] is None
    assert ordinary["comparisons"][0]["stopping"] is None


def test_the_terminal_says_what_is_guaranteed_and_on_which_assumption(
    stopped: CompareReport,
) -> None:
    text = " ".join(render_terminal(stopped, width=80, color=False, verbose=True).split())
    assert "wrong in at most 5% of document orders (seed 1234; 2 gated metrics" in text
    assert "lambada_openai: 515 of 5,153 documents, look 3 of 4; acc exact; perplexity" in text
    assert "(asymptotic) if no other document loses more than 3.08 nats" in text
    assert "qa: all 80 documents (f1: it is not a mean)" in text
    assert "sigma of all 5,153 documents lies between" in text
    assert all(
        len(line) <= 80
        for line in render_terminal(stopped, width=80, color=False, verbose=True).splitlines()
    )


def test_a_run_that_was_not_stopped_says_so() -> None:
    whole = SequentialTask(task="t", n_used=80, n_total=80, look=2, looks=(64, 80))
    late = report(comparison(stopping=stopping(n_used=5153, method="full", assumption="")),
                  sequential=sequential(whole))  # fmt: skip
    text = render_terminal(late, width=80, color=False, verbose=True)
    assert "Not stopped early, so that the verdict is the ordinary one: t: all 80" in text
    assert "Stopped early" not in text
    assert "Stopped early" not in render_terminal(
        report(comparison()), width=80, color=False, verbose=True
    )


def test_pandas_has_the_same_facts(stopped: CompareReport) -> None:
    frame = CompareResult(stopped).to_pandas()
    assert frame["stopped_early"].tolist() == [True, True]
    assert frame["stopping_method"].tolist() == ["bounded-betting", "flips-exact"]
    assert frame["guarantee"][0] == stopping().guarantee
    ordinary = CompareResult(report(comparison())).to_pandas()
    assert ordinary["stopped_early"].tolist() == [False]


def test_the_time_saved_is_printed_and_written(stopped: CompareReport) -> None:
    assert "Saved about" not in render_terminal(
        stopped, width=80, color=False, verbose=True
    )  # not known
    for seconds, text in (
        (250.4, "Saved about 4 min 10 s, at the pace of the documents scored now."),
        (-3.0, "No time saved: loading the models several times took longer"),
    ):
        assert stopped.sequential is not None
        told = replace(stopped, sequential=replace(stopped.sequential, saved_seconds=seconds))
        assert text in render_terminal(told, width=80, color=False, verbose=True)
        written = compare_document(told)
        jsonschema.Draft202012Validator(compare_schema()).validate(written)
        assert written["sequential"]["saved_seconds"] == seconds
        assert told == stopped
