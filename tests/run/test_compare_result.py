"""CompareResult: typed, the same numbers as JSON, and a table for pandas."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from fake_models import table

import evalguard
from evalguard.comparison.result import CompareResult
from evalguard.comparison.table_comparisons import compare_tables
from evalguard.core.compare_report import CompareReport, RunIdentity
from evalguard.core.gate import Gate
from evalguard.errors import UsageError
from evalguard.report.compare_document import compare_document


@pytest.fixture
def result() -> CompareResult:
    base = [table([1.0, 0.0] * 20), table([1.0], metric="lonely"), table([1.0] * 9, metric="flat")]
    candidate = [table([0.0, 0.0] * 20), table([1.0], metric="lonely")]
    candidate.append(table([0.0] * 9, metric="flat"))
    gate = Gate()
    comparisons = compare_tables(base, candidate, gate=gate)
    report = CompareReport(
        base=RunIdentity(name="a", digest="d"),
        candidate=RunIdentity(name="b", digest="e"),
        comparisons=comparisons,
        gate=gate.judge(comparisons),
        exit_code=1,
        created="2026-01-01T00:00:00+00:00",
        version=evalguard.__version__,
    )
    return CompareResult(report)


def test_the_shortcuts_are_those_of_the_report(result: CompareResult) -> None:
    assert result.comparisons is result.report.comparisons
    assert result.gate is result.report.gate
    assert (result.passed, result.exit_code, result.run_folder) == (False, 1, None)


def test_json_and_dict_are_the_contract(result: CompareResult) -> None:
    assert result.to_dict() == compare_document(result.report)
    assert json.loads(result.to_json()) == result.to_dict()


def test_a_frame_has_a_row_per_comparison_and_bounds_as_columns(result: CompareResult) -> None:
    frame = result.to_pandas()
    assert list(frame["metric"]) == ["acc", "lonely", "flat"]
    assert list(frame["outcome"]) == ["regressed", "failed", "regressed"]
    assert "sigma_interval" not in frame.columns
    low, high = result.comparisons[0].sigma_interval or (None, None)
    assert (frame.loc[0, "sigma_low"], frame.loc[0, "sigma_high"]) == (low, high)
    assert math.isnan(frame.loc[1, "sigma"])
    assert math.isinf(frame.loc[2, "sigma"])  # the base does not scatter; JSON has null here
    assert result.to_dict()["comparisons"][2]["sigma"] is None
    assert frame["n"].dtype.kind == "i"
    assert frame["sigma_low"].dtype.kind == "f"


def test_text_is_plain_unless_colour_is_wanted(result: CompareResult) -> None:
    assert "\x1b" not in result.render()
    assert "\x1b" in result.render(color=True)
    assert max(map(len, result.render(width=60).splitlines())) <= 60


def test_a_result_is_saved_in_the_format_of_the_suffix(
    result: CompareResult, tmp_path: Path
) -> None:
    for name, text in (
        ("a.txt", result.render(verbose=True) + "\n"),
        ("a.md", result.to_markdown()),
        ("a.json", result.to_json() + "\n"),
    ):
        result.save(tmp_path / name)
        assert (tmp_path / name).read_text() == text
    result.save(str(tmp_path / "b.txt"), "markdown")
    assert (tmp_path / "b.txt").read_text() == result.to_markdown()
    with pytest.raises(UsageError, match="says no format"):
        result.save(tmp_path / "a.pdf")
    with pytest.raises(UsageError, match="no folder"):
        result.save(tmp_path / "no" / "a.txt")
