"""All metrics together, in the terminal, in JSON and in the dataclass: the same numbers."""

from __future__ import annotations

import dataclasses
from typing import Any

import jsonschema
import pytest
from example_reports import DEMO, comparison, report

from evalguard.core.across_tasks import AcrossTasks
from evalguard.report.compare_terminal import render_terminal
from evalguard.report.contract.compare_document import compare_document, compare_schema

ACROSS = AcrossTasks(
    metrics=(("lastword", "none", "acc"), ("choice", "none", "acc")),
    tasks=2,
    n=3048,
    n_moved=96,
    pooled_sigma=0.6342,
    pooled_stderr=0.121,
    pooled_interval=(0.397, 0.871),
    pooled_df=2871.3,
    confidence=0.95,
    pooled_p_value=0.0001,
    max_z=5.1,
    max_z_metric=("lastword", "none", "acc"),
    max_z_p_value=0.0002,
    fisher=41.5,
    fisher_p_value=0.0003,
    p_value=0.0002,
    resamples=9999,
    seed=7,
    left_out=((("choice", "none", "mcc"), "its drift is not a sum over documents"),),
)
SHOWN = dataclasses.replace(DEMO, across_tasks=ACROSS)


def test_the_terminal_says_it_in_a_few_lines() -> None:
    text = render_terminal(SHOWN, width=80, color=False, verbose=True)
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("All metrics together"))
    assert lines[start : start + 4] == [
        "All metrics together: 2 metrics of 2 tasks drift by +0.63 sigma on average",
        "[0.40, 0.87], overall p = 0.0002 (pooled p = 0.0001, largest z p = 0.0002,",
        "Fisher p = 0.0003; 9,999 random joint sign flips, seed 7, n = 3,048); without",
        "choice mcc.",
    ]
    assert "All metrics together" not in render_terminal(DEMO, width=80, color=False, verbose=True)


def test_the_document_holds_every_number_of_the_record() -> None:
    written = compare_document(SHOWN)
    jsonschema.Draft202012Validator(compare_schema()).validate(written)
    across: dict[str, Any] = written["across_tasks"]
    assert set(across) == {field.name for field in dataclasses.fields(AcrossTasks)}
    assert across["pooled_interval"] == [0.397, 0.871]
    assert across["max_z_metric"] == {"task": "lastword", "filter": "none", "metric": "acc"}
    assert across["left_out"][0]["metric"] == "mcc"
    for name in ("n", "n_moved", "pooled_sigma", "max_z", "fisher", "p_value", "resamples", "seed"):
        assert across[name] == getattr(ACROSS, name)


def test_without_one_the_document_says_why() -> None:
    written = compare_document(
        dataclasses.replace(DEMO, across_tasks_reason="1 of 1 gated metrics")
    )
    assert written["across_tasks"] is None
    assert written["across_tasks_reason"] == "1 of 1 gated metrics"


def test_open_ends_are_null_with_a_note() -> None:
    wide = dataclasses.replace(ACROSS, pooled_interval=(float("-inf"), float("inf")))
    written = compare_document(dataclasses.replace(DEMO, across_tasks=wide))
    assert written["across_tasks"]["pooled_interval"] == [None, None]
    assert any("across_tasks.pooled_interval[0] is -infinite" in note for note in written["notes"])


@pytest.mark.parametrize("q_value", [0.25, None])
def test_q_values_stand_in_the_document(q_value: float | None) -> None:
    written = compare_document(report(comparison(bh_q_value=q_value)))
    assert written["comparisons"][0]["bh_q_value"] == q_value
