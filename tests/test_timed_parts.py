"""Parts of a benchmark within a budget: nothing that one does costs what the others measured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil
import pytest

from benchmarks import gpu_speed
from benchmarks.timed_parts import Measured, Part, run_parts

ROOT = Path(__file__).parent.parent
HEAD = "import json, subprocess, sys, time\nrows = open(sys.argv[1], 'a')\n"
ROW = "rows.write(json.dumps({'benchmark': 'b', 'measured': '1'}) + '\\n'); rows.flush()\n"
HALF = "rows.write('{\"benchmark\": '); rows.flush()\n"
HANG = "print('waiting', flush=True)\ntime.sleep(3600)\n"
CHILD = (
    "child = subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(3600)'],\n"
    "    start_new_session=True)\n"
    "open(sys.argv[1] + '.pid', 'w').write(str(child.pid))\n"
)


def ran(
    codes: Mapping[str, str], folder: Path, *, seconds: float = 600.0, **about: object
) -> tuple[list[Measured], list[list[tuple[str, int]]]]:
    """Parts that run these texts, and what was noted of (state, rows) meanwhile."""
    noted: list[list[tuple[str, int]]] = []

    def note(parts: Sequence[Measured]) -> None:
        noted.append([(one.state, len(one.rows)) for one in parts])

    parts = [Part(**{"name": n, "about": "", "limit": 300.0, **about}) for n in codes]  # type: ignore[arg-type]
    found = run_parts(
        parts,
        lambda name, rows: [sys.executable, "-S", "-c", HEAD + codes[name], str(rows)],
        until=time.monotonic() + seconds,
        folder=folder,
        note=note,
    )
    return found, noted


@pytest.mark.slow
def test_a_part_that_hangs_is_ended_with_all_it_started_and_its_rows_stay(tmp_path: Path) -> None:
    start = time.monotonic()
    subprocess.run([sys.executable, "-S", "-c", HEAD, str(tmp_path / "a")], check=True)
    enough = 2.0 + 20.0 * (time.monotonic() - start)
    codes = {"hangs": ROW + CHILD + ROW + HALF + HANG, "next": ROW}
    (hung, after), noted = ran(codes, tmp_path, limit=enough)
    assert (hung.state, len(hung.rows)) == ("out of time", 2)
    assert hung.said == "waiting"
    assert (after.state, len(after.rows)) == ("done", 1)
    assert [("running", 2), ("not reached", 0)] in noted  # known before it was over
    assert not psutil.pid_exists(int((tmp_path / "hangs.jsonl.pid").read_text()))


def test_a_part_that_fails_says_so_and_the_next_goes_on(tmp_path: Path) -> None:
    found, noted = ran({"fails": ROW + "sys.exit('no kernel for this device')", "next": ROW},
                       tmp_path)  # fmt: skip
    assert [(one.state, len(one.rows), one.said) for one in found] == [
        ("failed", 1, "no kernel for this device"), ("done", 1, ""),
    ]  # fmt: skip
    assert noted[0] == [("not reached", 0)] * 2
    assert noted[-1] == [("failed", 1), ("done", 1)]


def test_a_part_whose_package_is_not_installed_is_not_begun(tmp_path: Path) -> None:
    ((found,), _) = ran({"p": ROW}, tmp_path, needs=("json", "no_such_package"))
    assert (found.state, found.rows) == ("lacks a package", [])
    assert found.said == "no_such_package: not installed in this Python"


def test_what_there_is_no_time_for_is_not_begun(tmp_path: Path) -> None:
    found, _ = ran({"one": ROW, "other": ROW}, tmp_path, seconds=10.0, least=15.0)
    assert [(one.state, one.rows) for one in found] == [("not reached", [])] * 2


def test_nothing_runs_on_a_basis_that_failed(tmp_path: Path) -> None:
    found, _ = ran({"device": "sys.exit(1)", "next": ROW}, tmp_path, basis=True)
    assert [one.state for one in found] == ["failed", "not reached"]


def call(*words: str, code: int = 0) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-m", "benchmarks.gpu_speed", *words], cwd=ROOT,
                          env=environment, capture_output=True, text=True)  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def test_the_call_for_a_gpu_writes_what_it_has_whatever_its_budget(tmp_path: Path) -> None:
    call("--minutes", "0.01", "--output", str(tmp_path / "out" / "gpu.md"))
    told = json.loads((tmp_path / "out" / "gpu.json").read_text())
    assert [one["name"] for one in told["parts"]] == [part.name for part in gpu_speed.PARTS]
    assert {one["state"] for one in told["parts"]} <= {"not reached", "lacks a package"}
    assert "| tests, everything marked gpu | not reached |" in (
        tmp_path / "out" / "gpu.md"
    ).read_text(encoding="utf-8")


def test_the_call_for_a_gpu_says_beforehand_what_is_missing() -> None:
    assert "has what it needs\ndevice" in call("--list")


def test_the_limits_of_its_parts_leave_the_first_ones_their_time() -> None:
    first = [part for part in gpu_speed.PARTS if part.name in ("device", "tests", "scoring")]
    assert sum(part.limit for part in first) < 540.0
    assert [part.basis for part in gpu_speed.PARTS] == [True] + [False] * 7


@pytest.mark.nightly
def test_the_call_for_a_gpu_runs_on_a_cpu(tmp_path: Path) -> None:
    tiny = ("--small", "--device", "cpu", "--documents", "8", "--repeats", "1", "--minutes", "60")
    call(*tiny, "--parts", "tests,scoring,distributions", "--output", str(tmp_path / "gpu.md"))
    told = json.loads((tmp_path / "gpu.json").read_text())
    assert [(one["name"], one["state"], len(one["rows"])) for one in told["parts"]] == [
        ("device", "done", 1), ("tests", "done", 1), ("scoring", "done", 2),
        ("distributions", "done", 2),
    ]  # fmt: skip
    assert "loaded twice, 0 at most" in told["parts"][-1]["rows"][0]["how"]
