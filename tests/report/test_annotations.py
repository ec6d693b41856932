"""Annotations: one command a line, escaped as the runner unescapes it, nothing else executed."""

from __future__ import annotations

import re
from typing import Any

import pytest
from any_reports import reports
from example_bisections import bisection, culprit, search
from example_reports import DEMO, UNCHANGED, UNDECIDED, comparison, report
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evalguard.core.compare_report import CompareReport
from evalguard.core.gate import Gate
from evalguard.publish.annotations import (
    annotation_command,
    neutralize_commands,
    render_annotations,
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


def read(line: str) -> tuple[str, dict[str, str], str]:
    """Read a command as GitHub's runner does: split first, then unescape each part."""
    found = re.fullmatch(r"::([a-z]+) (.*?)::(.*)", line)
    assert found, line
    properties = dict(pair.split("=", 1) for pair in found[2].split(",") if pair)
    return found[1], {k: unescaped(v) for k, v in properties.items()}, unescaped(found[3])


def unescaped(text: str) -> str:
    for coded, plain in (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ","), ("%25", "%")):
        text = text.replace(coded, plain)
    return text


@given(*[st.text(st.characters(exclude_categories=("Cs",)), max_size=60)] * 2)
def test_any_text_arrives_as_it_was(title: str, message: str) -> None:
    line = annotation_command("error", title, message)
    assert "\n" not in line
    assert "\r" not in line
    kind, properties, data = read(line)
    assert kind == "error"
    assert properties.get("title", "") == title
    assert data == message


def test_the_escaping_is_that_of_the_runners_own_toolkit() -> None:
    line = annotation_command("warning", "a,b:c%", "50%\r\n::error::x,y:z", place="dir/a.yaml:24")
    assert line == (
        "::warning file=dir/a.yaml,line=24,title=a%2Cb%3Ac%25::50%25%0D%0A::error::x,y:z"
    )


@pytest.mark.parametrize(
    ("place", "wanted"),
    [("a.yaml:3", {"file": "a.yaml", "line": "3"}), ("a.yaml", {"file": "a.yaml"}), ("", {})],
)
def test_a_place_is_a_file_and_a_line(place: str, wanted: dict[str, str]) -> None:
    assert read(annotation_command("notice", "", "m", place=place))[1] == wanted


def test_the_demo_names_what_regressed() -> None:
    lines = [read(line) for line in render_annotations(build_report_view(DEMO)).splitlines()]
    assert [(kind, found["title"]) for kind, found, _ in lines] == [
        ("error", "fla-port against orig"),
        ("error", "evalguard_lastword perplexity: regressed"),
        ("error", "evalguard_lastword acc: regressed"),
    ]
    assert "sigma +1.47 [1.30, 1.63]" in lines[1][2]


def test_culprits_stand_at_their_line_of_the_guard_file() -> None:
    view = build_report_view(BISECTED)
    assert view.bisection is not None
    assert view.bisection.fix is not None
    file, line = view.bisection.fix.where.split(":")
    guilty = [read(one) for one in render_annotations(view).splitlines() if "title=culprit" in one]
    assert [found["title"] for _, found, _ in guilty] == [
        f"culprit: {name}" for name in view.bisection.guilty
    ]
    assert all((found["file"], found["line"]) == (file, line) for _, found, _ in guilty)


def test_what_passes_is_a_notice() -> None:
    fine = report(comparison(**UNCHANGED))
    (line,) = render_annotations(build_report_view(fine)).splitlines()
    assert line.startswith("::notice ")


@pytest.mark.parametrize(
    ("policy", "code", "wanted"),
    [("warn", 0, "warning"), ("fail", 4, "error"), ("pass", 0, "notice")],
)
def test_undecided_is_what_the_guard_file_says(policy: Any, code: int, wanted: str) -> None:
    shown = report(comparison(**UNDECIDED), gate=Gate(undecided=policy), exit_code=code)
    lines = render_annotations(build_report_view(shown)).splitlines()
    assert {read(line)[0] for line in lines} == {wanted}


def test_undecided_is_an_error_under_strict() -> None:
    shown = report(comparison(**UNDECIDED), exit_code=4)
    lines = render_annotations(build_report_view(shown)).splitlines()
    assert {read(line)[0] for line in lines} == {"error"}


def test_no_more_are_printed_than_github_shows() -> None:
    many = [comparison(task=f"t{i}") for i in range(40)]
    lines = [
        read(line) for line in render_annotations(build_report_view(report(*many))).splitlines()
    ]
    assert sum(kind == "error" for kind, _, _ in lines) == 10
    assert lines[-1][2] == "31 more are in the summary"


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(reports())
def test_every_line_of_any_report_is_one_command_of_ours(shown: CompareReport) -> None:
    text = render_annotations(build_report_view(shown))
    assert text.endswith("\n")
    for line in text[:-1].split("\n"):
        kind, properties, _ = read(line)
        assert kind in ("error", "warning", "notice")
        assert set(properties) <= {"title", "file", "line"}


def test_text_of_models_is_no_command() -> None:
    text = "::set-output name=a::b\n::add-mask::x"
    assert neutralize_commands(text, "T0KEN") == f"::stop-commands::T0KEN\n{text}\n::T0KEN::"
    with pytest.raises(ValueError, match="token"):
        neutralize_commands("knows T0KEN", "T0KEN")
