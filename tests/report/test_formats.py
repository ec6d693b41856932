"""Which format a file is written in, and what each gives for any report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from any_reports import reports
from example_reports import DEMO
from hypothesis import HealthCheck, given, settings

from evalguard.core.compare_report import CompareReport
from evalguard.core.option_words import FORMATS
from evalguard.errors import UsageError
from evalguard.report.compare_document import compare_document
from evalguard.report.compare_terminal import render_terminal
from evalguard.report.formats import RENDERINGS, check_format, choose_format, render_report


@pytest.mark.parametrize(
    ("name", "chosen", "wanted"),
    [("a.txt", None, "text"), ("a.b.JSON", None, "json"), ("a.json", "text", "text")],
)
def test_the_suffix_says_the_format_unless_one_is_chosen(
    name: str, chosen: str | None, wanted: str
) -> None:
    assert choose_format(Path(name), None if chosen is None else check_format(chosen)) == wanted


@pytest.mark.parametrize("name", ["report", "report.pdf", ".html", "a.json.gz"])
def test_another_suffix_needs_a_format(name: str) -> None:
    with pytest.raises(UsageError, match="suffix") as refused:
        choose_format(Path(name))
    assert "--format text|json" in refused.value.hint


def test_an_unknown_format_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean 'json'"):
        check_format("jsn")


def test_every_format_that_has_a_name_can_be_made() -> None:
    assert set(RENDERINGS) == set(FORMATS)


def test_no_two_formats_share_a_suffix_or_a_file_of_the_run_folder() -> None:
    suffixes = [suffix for one in RENDERINGS.values() for suffix in one.suffixes]
    files = [one.run_file for one in RENDERINGS.values() if one.run_file]
    assert len(set(suffixes)) == len(suffixes)
    assert len({*files, "result.json"}) == len(files) + 1


def test_text_and_json_are_what_the_command_prints() -> None:
    assert (
        render_report(DEMO, "text")
        == render_terminal(DEMO, width=80, color=False, verbose=True) + "\n"
    )
    assert json.loads(render_report(DEMO, "json")) == compare_document(DEMO)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(reports())
def test_any_report_can_be_written_in_every_format(shown: CompareReport) -> None:
    for name in RENDERINGS:
        text = render_report(shown, name)
        assert text.endswith("\n")
        text.encode()
