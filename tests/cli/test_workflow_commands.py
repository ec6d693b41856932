"""In a job of GitHub Actions no text of a model, a task or a file is a workflow command."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from written_runs import WrittenRun, write_finished_runs

from evalguard.cli.output import JobStream, write_result

EVIL = "0.4.9\n::error title=x::evil\r  ::add-mask::a ##[error]boo ::stop-commands::x \x1b[31m"


def commands(log: str) -> list[str]:
    """The lines that GitHub's runner takes for commands, as its own code reads them."""
    lines = re.split(r"\r\n|\r|\n", log)
    return [line for line in lines if line.lstrip().startswith("::") or "##[" in line]


def written(*parts: str) -> str:
    inner = io.StringIO()
    stream = JobStream(inner)
    for part in parts:
        stream.write(part)
    return inner.getvalue()


@pytest.mark.parametrize(
    "parts",
    [
        ("::error ::a",),
        (" \t\u2003::error ::a",),
        ("a\n::error ::b",),
        ("a\r::error ::b",),
        ("a\r\n", "::error ::b"),
        (":", ":error ::b"),
        (" ", ":", ":", "error::"),
        ("a ##[error]b",),
        ("#", "#", "[error]b"),
        ("##", "[error]b"),
        ("\x1b[0m::error ::a",),
    ],
)
def test_a_command_is_text_however_it_is_written(parts: tuple[str, ...]) -> None:
    assert commands("".join(parts)) or "\x1b" in parts[0]
    assert not commands(written(*parts))
    assert "\x1b" not in written(*parts)


@given(st.lists(st.text("a:# \n\r[]\t\x1b\u2003", max_size=9), max_size=6))
def test_whatever_is_written_in_whatever_parts_is_no_command(parts: list[str]) -> None:
    assert not commands(written(*parts))


@given(st.text('a:#[] \n\\"é', max_size=20), st.integers(0, 4) | st.none())
def test_a_json_document_stays_the_same_document(text: str, indent: int | None) -> None:
    document = {"a": text, text: [text]}
    assert json.loads(written(json.dumps(document, indent=indent))) == document


def test_plain_lines_stay_as_they_are() -> None:
    text = "Note: a::b\n  [0.1, 0.2] ## heading #[1]\n| :--- |\n"
    assert written(text) == text


def test_bytes_pass_the_same_way() -> None:
    inner = io.StringIO()
    data = "é\n::error ::a".encode()
    stream = JobStream(inner)
    stream.buffer.write(data[:1])
    stream.buffer.write(data[1:])
    assert inner.getvalue() == "é\n\\::error ::a"


def test_our_own_commands_are_commands(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdout", JobStream(sys.stdout))
    write_result("::error title=a::b", workflow_commands=True)
    write_result("::error title=c::d")
    assert capsys.readouterr().out == "::error title=a::b\n\\::error title=c::d\n"


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path]:
    """Two finished runs; the file of one names a version of lm-eval that is commands."""

    def plant(base: WrittenRun, candidate: WrittenRun) -> None:
        base.more["lm_eval_version"] = "0.4.8"
        candidate.more["lm_eval_version"] = EVIL

    return write_finished_runs(tmp_path, plant)


@pytest.mark.parametrize(
    "words",
    [(), ("-v",), ("--json",), ("--debug",), ("--format", "markdown"), ("--format", "junit")],
)
def test_no_output_of_a_comparison_holds_a_command_of_a_file(
    run: Any, monkeypatch: pytest.MonkeyPatch, runs: tuple[Path, Path], words: tuple[str, ...]
) -> None:
    base, candidate = runs
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    ran = run("compare", "--base", base, "--cand", candidate, "--track", "none", *words)
    assert ran.code == 3
    assert "evil" in ran.out
    assert not commands(ran.out)
    assert not commands(ran.err)
    if words == ("--json",):
        assert EVIL in ran.document["environment"]["candidate"]["lm_eval_version"]


def test_an_error_that_repeats_what_a_file_says_is_no_command(
    run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    guard = tmp_path / "guard.yaml"
    guard.write_text('models: {"a\\n::error ::evil": {}}\n', encoding="utf-8")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    ran = run("compare", "--config", guard, "--base", "a\n::error ::evil", "--cand", "##[error]b")
    assert ran.code == 2
    assert not commands(ran.err)


def test_annotations_of_a_comparison_are_the_only_commands(
    run: Any, monkeypatch: pytest.MonkeyPatch, runs: tuple[Path, Path]
) -> None:
    base, candidate = runs
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    words = ("--base", base, "--cand", candidate, "--track", "none", "--format", "annotations")
    ran = run("compare", *words)
    assert len(commands(ran.out)) == len(ran.out.splitlines()) >= 2
    assert all(line.startswith("::error title=") for line in commands(ran.out))
    assert not commands(ran.err)
