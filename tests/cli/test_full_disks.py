"""A disk that refuses at any moment of a run costs what it was to keep, and never a score."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from small_disks import mounted_disk
from small_world import SmallWorld

from evalguard.store.atomic_files import HalfFile

TASKS = ("--tasks", "sw_long,sw_choice,sw_text")
# What a run says of its keeping, and what differs between any two runs.
OWN = {"created", "run_folder", "files", "command", "notes", "findings", "resources", "checksum"}


@pytest.fixture
def refuses(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let the disk refuse, with an error, every file after the first so many."""

    def after(files: int, number: int) -> None:
        opened, begun = HalfFile.open, [0]

        def refusing(self: HalfFile) -> Any:
            begun[0] += 1
            if begun[0] > files:
                raise OSError(number, os.strerror(number))
            return opened(self)

        monkeypatch.setattr(HalfFile, "open", refusing)

    return after


def numbers(document: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in document.items() if key not in OWN}


def check_said_once(document: dict[str, Any], cause: str) -> None:
    said = [one["text"] for one in document["findings"] if "kept in the cache" in one["text"]]
    assert len(said) <= 1, said
    assert not said or cause in said[0]


def half_files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.suffix in (".partial", ".lock")]


@pytest.fixture(scope="module")
def whole() -> dict[str, dict[str, Any]]:
    """What runs on a patient disk came to, by mode."""
    return {}


def expected(compare: Any, whole: dict[str, Any], mode: str, tmp_path: Path) -> dict[str, Any]:
    if mode not in whole:
        words = ("--cache-dir", tmp_path / "patient", "--output-path", tmp_path / "reports")
        whole[mode] = compare("orig", "sharp", *TASKS, *words, "--distributions", mode, "--json")
        assert whole[mode].code == 1
    return numbers(whole[mode].document)


@pytest.mark.slow
# A disk fills at any file; every day the first, an early and a late one, at night all of them.
@pytest.mark.parametrize(
    "files", [0, 3, 9, *(pytest.param(n, marks=pytest.mark.nightly) for n in (1, 2, 4, 6, 12))]
)
@pytest.mark.parametrize("mode", ["lockstep", "off"])
def test_a_disk_that_is_full_in_the_middle_of_a_run_costs_no_score(
    compare: Any, refuses: Any, whole: dict[str, Any], tmp_path: Path, files: int, mode: str
) -> None:
    patient = expected(compare, whole, mode, tmp_path)
    refuses(files + 1, errno.ENOSPC)  # the check before the run still fits
    words = ("--cache-dir", "cache", "--output-path", "out", "--distributions", mode)
    ran = compare("orig", "sharp", *TASKS, *words, "--json")
    assert ran.code == 1
    assert numbers(ran.document) == patient
    check_said_once(ran.document, "the disk is full")
    assert ran.document["run_folder"] is None
    assert half_files(tmp_path / "cache") == half_files(tmp_path / "out") == []


@pytest.mark.parametrize(
    ("number", "cause"),
    [
        (errno.EROFS, "the file system is read-only"),
        (errno.EDQUOT, "the disk is full"),
        (errno.EACCES, "no write permission"),
        (errno.EIO, "Input/output error"),
    ],
)
def test_whatever_a_disk_says_the_verdict_stands(
    compare: Any, refuses: Any, tmp_path: Path, number: int, cause: str
) -> None:
    refuses(1, number)
    ran = compare("orig", "sharp", "--cache-dir", "cache", "--output-path", "out", "--json")
    assert ran.code == 1
    check_said_once(ran.document, cause)
    texts = [one["text"] for one in ran.document["findings"] if one["kind"] == "not_stored"]
    assert any("no run folder was written" in text for text in texts)
    assert half_files(tmp_path) == []


def test_a_full_disk_costs_the_reference_and_the_distributions_that_need_it(
    compare: Any, refuses: Any, tmp_path: Path
) -> None:
    refuses(1, errno.ENOSPC)
    words = ("--cache-dir", "cache", "--output-path", "out", "--distributions", "reference")
    ran = compare("orig", "sharp", *words, "--json")
    assert ran.code == 1
    check_said_once(ran.document, "the disk is full")
    (found,) = ran.document["distributions"]
    assert "could not be kept" in json.dumps(found)


@pytest.mark.parametrize("files", [1, 2])
def test_a_reference_file_that_cannot_be_written_costs_that_file(
    compare: Any, refuses: Any, tmp_path: Path, files: int
) -> None:
    refuses(files, errno.ENOSPC)
    words = ("--cache-dir", "cache", "--output-path", "out", "--save-reference", "base.parquet")
    ran = compare("orig", "sharp", *words, "--json")
    assert ran.code == 1, ran.err
    texts = [one["text"] for one in ran.document["findings"]]
    (text,) = [text for text in texts if "no reference file was written" in text]
    assert "the disk is full" in text
    assert not (tmp_path / "base.parquet").exists()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with mounted_disk(tmp_path / "disk", size="4m") as place:
        yield place


def test_a_cache_that_became_read_only_is_read_and_says_nothing(compare: Any, disk: Path) -> None:
    words = ("--cache-dir", disk / "cache", "--json", "-q")
    first = compare("orig", "sharp", *words)
    assert subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=False).returncode == 0
    again = compare("orig", "sharp", *words)
    assert numbers(again.document) == numbers(first.document)
    assert again.document["findings"] == first.document["findings"]
    other = compare("orig", "soft", *words)  # of which nothing is kept
    check_said_once(other.document, "the file system is read-only")
    assert any("kept in the cache" in one["text"] for one in other.document["findings"])


@pytest.fixture
def full(disk: Path) -> Path:
    """A folder of temporary files on a disk without room."""
    place = disk / "tmp"
    place.mkdir()
    rest = os.open(disk / "rest", os.O_WRONLY | os.O_CREAT)
    with contextlib.suppress(OSError):
        while os.write(rest, bytes(4096)):
            pass
    os.close(rest)
    return place


def run_with(full: Path, tmp_path: Path, *words: object) -> subprocess.CompletedProcess[str]:
    """Run a command that has no other folder for temporary files."""
    first = f"import tempfile\ntempfile.tempdir = {str(full)!r}\n"
    return subprocess.run(
        [sys.executable, "-c", f"{first}from evalguard.__main__ import run\nrun()",
         *map(str, words)],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(full), "HF_HUB_OFFLINE": "1",
             "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["lockstep", pytest.param("reference", marks=pytest.mark.nightly)])
def test_a_full_folder_of_temporary_files_costs_no_score(
    world: SmallWorld, tmp_path: Path, full: Path, mode: str
) -> None:
    words = ("compare", "--config", world.guard, "--base", "orig", "--cand", "sharp", "--json",
             "--tasks", "sw_long", "--distributions", mode, "--bisect", "never", "--cache-dir",
             tmp_path / "cache")  # fmt: skip
    found = run_with(full, tmp_path, *words)
    assert found.returncode == 1, found.stderr
    assert list(full.iterdir()) == []
    document = json.loads(found.stdout)
    patient = run_with(tmp_path, tmp_path, *words[:-1], tmp_path / "other")
    assert numbers(document) == numbers(json.loads(patient.stdout))


@pytest.mark.slow
@pytest.mark.nightly
def test_a_trace_that_finds_no_room_for_temporary_files_says_so(
    world: SmallWorld, tmp_path: Path, full: Path
) -> None:
    (tmp_path / "hook.py").write_text("def edit(model, value):\n    pass\n")
    (tmp_path / "text.txt").write_text("Mara carried the lantern.")
    plain = {"model_args": {"pretrained": str(world.models["llama"])}}
    edit = {"reference": 0, "candidate": 1, "target": "call:hook.py:edit"}
    models = {"orig": plain, "hooked": {"extends": "orig", "settings": {"edit": edit}}}
    (tmp_path / "guard.yaml").write_text(json.dumps({"models": models}))
    words = ("trace", "--config", "guard.yaml", "--base", "orig", "--cand", "hooked", "--text",
             "text.txt", "--cache-dir", tmp_path / "cache")  # fmt: skip
    found = run_with(full, tmp_path, *words)
    assert found.returncode == 3, found.stdout
    assert f"found no room in {full}" in " ".join(found.stderr.split())
    assert "TMPDIR" in found.stderr
    assert "Traceback" not in found.stderr
    assert list(full.iterdir()) == []
    assert run_with(tmp_path, tmp_path, *words).returncode == 0
