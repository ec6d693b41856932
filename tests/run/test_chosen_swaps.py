"""How many suspects of a trace are taken from the base unasked: where that is cheap."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sample_run import SAMPLE

from evalguard.comparison.stored_run import StoredRun
from evalguard.core.compare_report import AnswerCounts, Phase, Resources
from evalguard.report.compare_document import read_report
from evalguard.store.run_folder import read_result
from evalguard.tracing.trace_run import choose_swaps


def run_that_took(seconds: float, *, kept: int) -> StoredRun:
    report = read_report(read_result(SAMPLE / "result.json", schema="evalguard.compare/1"))
    scoring = Phase(phase="scoring", models=("a",), wall_seconds=seconds, cpu_seconds=seconds)
    values: dict[str, Any] = {"phases": (scoring,), "wall_seconds": seconds, "cpu_seconds": seconds}
    resources = Resources(
        **values,
        answers=(AnswerCounts(model="a", documents=100, kept=kept, tokens=1),),
        children_cpu_seconds=0.0,
    )
    return StoredRun(
        report=replace(report, resources=resources), folder=SAMPLE, files={}, sealed=True
    )


@pytest.mark.parametrize(
    ("seconds", "kept", "swaps"),
    [(20.0, 0, 2), (90.0, 0, 0), (20.0, 90, 0), (1.0, 90, 2), (0.1, 100, 0)],
)
def test_two_suspects_are_swapped_unasked_where_an_evaluation_is_cheap(
    seconds: float, kept: int, swaps: int
) -> None:
    assert choose_swaps(None, run_that_took(seconds, kept=kept)) == swaps


def test_as_many_are_swapped_as_were_asked_for() -> None:
    assert choose_swaps(3, None) == 3
    assert choose_swaps(0, run_that_took(1.0, kept=0)) == 0
    assert choose_swaps(None, None) == 0
