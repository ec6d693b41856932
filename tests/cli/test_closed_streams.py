"""Streams that are closed, full or not read never turn an exit code into another one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")


def shell(line: str) -> subprocess.CompletedProcess[str]:
    """Run a shell line in which ``eg`` is the command."""
    command = f'eg() {{ "{sys.executable}" -m evalguard "$@"; }}; {line}'
    return subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, check=False, timeout=500
    )


def test_a_result_that_nobody_can_get_is_no_success() -> None:
    ran = shell("eg schema >&-")
    assert ran.returncode == 3
    assert "error: standard output is closed" in ran.stderr
    assert "Traceback" not in ran.stderr


@needs_full
def test_a_full_stdout_is_an_error_and_a_reader_that_went_away_is_none() -> None:
    ran = shell("eg schema >/dev/full")
    assert ran.returncode == 3
    assert "standard output cannot be written: No space left" in ran.stderr
    assert shell("eg schema | head -c 1").stderr == ""


@needs_full
@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("compare --base a", 2),
        ("compare --base a --git-bisect", 125),
        ("compare --base a --debug", 2),
    ],
)
def test_a_full_or_closed_stderr_keeps_the_exit_code(words: str, code: int) -> None:
    for where in ("2>/dev/full", "2>&-", "<&- >&- 2>&-"):
        assert shell(f"eg {words} {where}").returncode == code, where


def test_closed_descriptors_are_not_given_to_the_next_file() -> None:
    check = (
        "import os, evalguard.cli.output as o; o.prepare_streams(); a, b = os.pipe(); "
        "raise SystemExit(0 if min(a, b) > 2 else 1)"
    )
    line = f'"{sys.executable}" -c "{check}" <&- >&- 2>&-'
    assert subprocess.run(["sh", "-c", line], check=False).returncode == 0


def test_a_folder_that_was_removed_is_said(tmp_path: Path) -> None:
    ran = shell(f"mkdir '{tmp_path}/d'; cd '{tmp_path}/d'; rmdir '{tmp_path}/d'; eg models")
    assert ran.returncode == 2
    assert "error: the current folder was removed" in ran.stderr
