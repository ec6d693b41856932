"""``evalguard nightly`` where a pair hangs, or takes its process down."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_pairs import FakePairs, wait_until
from small_world import Ran, SmallWorld

Run = Callable[..., Ran]


@pytest.fixture
def fakes(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakePairs:
    """Processes that do what a candidate's name says; in the folder of ``run``."""
    return FakePairs(tmp_path / "journal", monkeypatch)


def guard(folder: Path, *candidates: str, run: str = "{bisect: never}") -> Path:
    """A guard file with these candidates of ``orig``; none of them has a model."""
    models = "".join(f"  {one}: {{extends: orig}}\n" for one in candidates)
    pairs = ", ".join(f"{{base: orig, cand: {one}}}" for one in candidates)
    path = folder / "night.yaml"
    path.write_text(
        f"models:\n  orig: {{model_args: {{pretrained: nowhere}}}}\n{models}"
        f"pairs: [{pairs}]\ntasks: [t]\nrun: {run}\n"
    )
    return path


def night(folder: Path) -> Path:
    (found,) = (path for path in (folder / "reports" / "nightly").glob("2*") if path.is_dir())
    return found


def steps(folder: Path) -> list[str]:
    lines = (night(folder) / "journal.jsonl").read_text().splitlines()
    return [key for line in lines for key in json.loads(line) if key not in ("pair", "in", "check")]


def reasons(document: dict[str, Any]) -> list[str]:
    return [f"{pair['state']}: {pair['reason']}" for pair in document["pairs"]]


@pytest.mark.slow
def test_a_pair_whose_time_is_up_has_failed_and_the_others_have_their_turn(
    run: Run, fakes: FakePairs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fakes.late_where_one_hangs(monkeypatch)
    config = guard(tmp_path, "a", "hangs", "b", run="{bisect: never, pair_hours: 3}")
    words = ("nightly", "--config", config, "-q", "--json")
    found = run(*words, "--pair-hours", "1.5")
    assert found.code == 3
    first, hung, last = reasons(found.document)
    assert (first, last) == ("passed: as its name says", "passed: as its name says")
    assert hung == "failed: timed out after 1.5 h, while it was compared"
    assert "--pair-hours N" in found.document["pairs"][1]["hint"]
    assert fakes.asked() == ["a", "hangs", "b"]
    by_file = run(*words, "--resume-hours", 0).document
    assert "timed out after 3 h" in by_file["pairs"][1]["reason"]


def test_a_pair_that_takes_its_process_down_takes_only_itself(
    run: Run, fakes: FakePairs, tmp_path: Path
) -> None:
    found = run("nightly", "--config", guard(tmp_path, "exits", "a"), "-q", "--json")
    assert found.code == 3
    assert reasons(found.document) == [
        "failed: its process exited with code 7 while it was compared",
        "passed: as its name says",
    ]
    assert steps(tmp_path).count("verdict") == 2


def test_systemds_sigterm_for_every_process_means_the_night_and_not_the_pair(
    run: Run, fakes: FakePairs, tmp_path: Path
) -> None:
    found = run("nightly", "--config", guard(tmp_path, "terminated"), "-q", "--json")
    assert reasons(found.document) == ["passed: as its name says"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_night_that_is_stopped_goes_on_with_the_pair_that_it_was_at(
    run: Run, fakes: FakePairs, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    config = guard(tmp_path, "a", "hangs")

    def press() -> None:
        wait_until(fakes.hangs)
        os.kill(os.getpid(), number)

    presser = threading.Thread(target=press)
    presser.start()
    stopped = run("nightly", "--config", config, "-q")
    presser.join()
    assert (stopped.code, stopped.out) == (code, "")
    assert "stopped: interrupted while hangs was being compared" in stopped.err
    assert fakes.told()[-1][1] == "interrupted"
    assert steps(tmp_path)[-1] == "stopped"
    presser = threading.Thread(target=press)
    presser.start()
    run("nightly", "--config", config, "-q")
    presser.join()
    assert fakes.asked() == ["a", "hangs", "hangs"]


@pytest.mark.parametrize("hours", ["-1", "nan", "soon"])
def test_hours_that_are_none_are_refused(refused: Run, tmp_path: Path, hours: str) -> None:
    config = guard(tmp_path, "a")
    refused(2, "nightly", "--config", config, "--pair-hours", hours)
    said = refused(
        2, "nightly", "--config", guard(tmp_path, "a", run=f"{{pair_hours: {hours}}}")
    ).err
    assert "pair_hours" in said


@pytest.mark.slow
def test_a_real_pair_that_is_killed_takes_only_itself(
    run: Run, world: SmallWorld, tmp_path: Path
) -> None:
    """As the system does where memory runs out; the others have their verdicts and history."""
    (tmp_path / "hooks.py").write_text(
        "import os, signal\n\ndef killed(model, value):\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    text = world.guard.read_text().replace(
        "pairs: [{base: orig, cand: sharp}]",
        "pairs: [{base: orig, cand: same}, {base: orig, cand: big}, {base: orig, cand: sharp}]",
    )
    big = (
        "  big:\n    extends: orig\n    settings:\n"
        "      room: {reference: 1, candidate: 2, target: 'call:hooks.py:killed'}\n"
    )
    config = tmp_path / "night.yaml"
    config.write_text(text.replace("pairs:", f"{big}pairs:", 1))
    document = run("nightly", "--config", config, "-q", "--json").document
    assert [pair["state"] for pair in document["pairs"]] == ["passed", "failed", "regressed"]
    assert "was killed by SIGKILL" in document["pairs"][1]["reason"]
    listed = run("history", "list", "--history", document["history"], "--json").document
    assert [one["candidate"] for one in listed["runs"]] == ["same", "sharp"]
