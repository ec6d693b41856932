"""Which documents carry a drift, in the terminal, in JSON and as columns of a table."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from example_reports import comparison, report

from evalguard.comparison.result import CompareResult
from evalguard.core.comparison import Influence, InfluentialDocument
from evalguard.report.compare_document import compare_document, compare_schema
from evalguard.report.compare_terminal import render_terminal


def influential(doc_id: int, contribution: float, task: str = "lambada_openai") -> Any:
    return InfluentialDocument(
        task=task, doc_id=doc_id, contribution=contribution, share=contribution / 1.465272
    )


INFLUENCE = Influence(
    documents=(influential(412, 0.2811), influential(7, -0.1204), influential(3, 0.1, "other")),
    moved=5100,
    half=640,
    removed=51,
    sigma_without=1.2146,
)


def test_the_terminal_names_them_for_the_regression_it_is_about() -> None:
    text = render_terminal(
        report(comparison(influence=INFLUENCE)), width=80, color=False, verbose=True
    )
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("Documents that carry"))
    assert lines[start : start + 3] == [
        "Documents that carry lambada_openai perplexity: half of the change comes from",
        "640 of 5,153; without the top 51, sigma is +1.21. Largest: documents 412 (+0.28",
        "sigma), 7 (-0.12 sigma), other 3 (+0.1 sigma).",
    ]
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("outcome", ["degraded", "unchanged", "improved"])
def test_the_terminal_is_silent_where_nothing_regressed(outcome: str) -> None:
    values = {"sigma": 0.1, "sigma_interval": (-0.2, 0.4), "significant": False, "certain": False}
    if outcome == "degraded":
        values = {**values, "sigma_interval": (0.05, 0.2), "significant": True}
    if outcome == "improved":
        values = {**values, "sigma": -0.2, "sigma_interval": (-0.3, -0.1)}
    shown = report(comparison(outcome=outcome, influence=INFLUENCE, **values))
    assert "Documents that carry" not in render_terminal(shown, width=80, color=False, verbose=True)


def test_the_document_and_the_table_hold_the_same_numbers() -> None:
    shown = report(comparison(influence=INFLUENCE), comparison(metric="acc"))
    written = compare_document(shown)
    jsonschema.Draft202012Validator(compare_schema()).validate(written)
    influence, none = (one["influence"] for one in written["comparisons"])
    assert none is None
    frame = CompareResult(shown).to_pandas()
    for name in ("moved", "half", "removed", "sigma_without"):
        assert influence[name] == getattr(INFLUENCE, name) == frame[f"influence_{name}"][0]
    for one, (task, doc_id, contribution, share) in zip(
        influence["documents"], frame["influence_documents"][0], strict=True
    ):
        assert one == {
            "task": task, "doc_id": doc_id, "contribution": contribution, "share": share
        }  # fmt: skip
    assert "influence" not in frame.columns
    assert frame["influence_documents"][1] is None
