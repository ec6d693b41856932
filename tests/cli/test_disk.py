"""Disks that refuse: said before anything long runs, or the verdict stands without its files."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from small_disks import mounted_disk
from small_world import SmallWorld

from evalguard.store.atomic_files import HalfFile


def left(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize("under", ["evalguard.txt", "evalguard.txt/deeper/still"])
def test_an_output_path_below_a_file_is_refused_before_anything_runs(
    refused_pair: Any, tmp_path: Path, under: str
) -> None:
    (tmp_path / "evalguard.txt").write_text("no folder")
    ran = refused_pair(3, "orig", "same", "--output-path", under)
    assert "evalguard.txt is a file, not a folder" in ran.err
    assert "--output-path" in ran.err
    assert "loading" not in ran.err


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a place nobody can write to")
def test_an_output_path_that_nobody_can_write_to(refused_pair: Any) -> None:
    ran = refused_pair(3, "orig", "same", "--output-path", "/proc/evalguard")
    assert "cannot write results to /proc/evalguard" in ran.err
    assert "loading" not in ran.err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_an_output_path_without_permission(refused_pair: Any, tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)
    assert "no write permission" in refused_pair(3, "orig", "same", "--output-path", "locked").err


@pytest.fixture
def full_after(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let the disk run full after so many files; what was half-written stays to be cleaned up."""

    def limit(files: int) -> None:
        sync, written = os.fsync, [0]

        def fsync(descriptor: int) -> None:
            written[0] += 1
            if written[0] > files:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            sync(descriptor)

        monkeypatch.setattr("evalguard.store.atomic_files.os.fsync", fsync)

    return limit


@pytest.mark.parametrize(("candidate", "code"), [("same", 0), ("sharp", 1)])
def test_a_disk_that_runs_full_costs_the_files_and_not_the_verdict(
    compare: Any, full_after: Any, tmp_path: Path, candidate: str, code: int
) -> None:
    full_after(1)  # the check before the run still fits
    ran = compare("orig", candidate, "--no-cache", "--output-path", "out", "--json")
    assert ran.code == code
    assert ran.document["run_folder"] is None
    (note,) = [one["text"] for one in ran.document["findings"] if one["kind"] == "not_stored"]
    assert "no run folder was written" in note
    assert "the disk is full" in note
    assert "--output-path FOLDER" in note
    assert left(tmp_path / "out") == []


def test_a_cache_that_cannot_be_written_costs_no_verdict_and_is_said(
    compare: Any, full_after: Any, tmp_path: Path
) -> None:
    full_after(2)
    ran = compare("orig", "sharp", "--cache-dir", "cache", "--output-path", "out", "--json")
    assert ran.code == 1
    assert any(
        "not everything could be kept in the cache" in one["text"]
        and "the disk is full" in one["text"]
        for one in ran.document["findings"]
    )
    assert not [name for name in left(tmp_path / "cache") if name.endswith(".partial")]


def test_scores_that_were_kept_before_the_disk_was_full_are_used_again(
    compare: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("--cache-dir", "cache", "--output-path", "out")
    opened = HalfFile.open

    def full_by_the_end(self: HalfFile) -> Any:
        if self.path.name == "result.json":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return opened(self)

    with monkeypatch.context() as patch:
        patch.setattr(HalfFile, "open", full_by_the_end)
        first = compare("orig", "sharp", *words)
    assert first.code == 1
    assert "no run folder was written" in " ".join(first.out.split())

    def score(*_: object) -> None:
        raise AssertionError("scored again")

    monkeypatch.setattr("evalguard.models.lm_scorer.LMScorer.score", score)
    again = compare("orig", "sharp", *words, "--json")
    assert again.code == 1
    assert Path(again.document["run_folder"], "result.json").is_file()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system with room for little more than the cache of two models."""
    with mounted_disk(tmp_path / "small", size="32k") as disk:
        yield disk


def test_a_real_full_disk_leaves_nothing_half_written(
    compare: Any, small_disk: Path, world: SmallWorld
) -> None:
    words = ("--output-path", small_disk / "out", "--cache-dir", small_disk / "cache")
    ran = compare("orig", "sharp", "--tasks", "sw_long,sw_word,sw_text", *words, "--json")
    assert ran.code == 1
    assert ran.document["run_folder"] is None
    assert any("the disk is full" in one["text"] for one in ran.document["findings"])
    assert left(small_disk / "out") == []
    assert not [name for name in left(small_disk / "cache") if "partial" in name]
