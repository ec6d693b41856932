"""What killed processes left is removed once it is old, and nothing else is."""

from __future__ import annotations

import os
import time
from datetime import datetime, timezone
from pathlib import Path

import pytest

from evalguard.store.block_cache import ScoreCache
from evalguard.store.cache_folder import open_cache_dir
from evalguard.store.run_folder import RunFolder

DAY = 24 * 3600.0
WHEN = datetime(2026, 11, 20, 12, tzinfo=timezone.utc)
RUN = ".20260101T000000Z-a-vs-b.partial"


def make(path: Path, *, age: float, folder: bool = False) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if folder:
        (path / "samples").mkdir(parents=True)
        (path / "samples" / "x.parquet").touch()
    else:
        path.touch()
    then = time.time() - age
    os.utime(path, (then, then))
    return path


def test_old_half_written_runs_go_and_young_ones_stay(tmp_path: Path) -> None:
    old = make(tmp_path / RUN, age=2 * DAY, folder=True)
    young = make(tmp_path / RUN.replace("a-vs", "c-vs"), age=60, folder=True)
    probe = make(tmp_path / ".evalguard-0011aabb", age=2 * DAY)
    with RunFolder.create(tmp_path, "a", "b", WHEN):
        assert not old.exists()
        assert not probe.exists()
        assert young.exists()


@pytest.mark.parametrize(
    "name",
    ["20260101T000000Z-a-vs-b", ".git", ".x.partial", "notes.partial", ".evalguard-config",
     ".20260101T000000Z-mine", ".cache.12.partial"],
)  # fmt: skip
def test_what_evalguard_did_not_name_is_never_removed(tmp_path: Path, name: str) -> None:
    kept = make(tmp_path / name, age=1000 * DAY, folder=True)
    RunFolder.create(tmp_path, "a", "b", WHEN).discard()
    assert (kept / "samples" / "x.parquet").exists()


def test_a_link_goes_without_what_it_leads_to(tmp_path: Path) -> None:
    target = make(tmp_path / "mine", age=2 * DAY, folder=True)
    link = tmp_path / "reports" / RUN
    link.parent.mkdir()
    link.symlink_to(target)
    os.utime(link, (0, 0), follow_symlinks=False)
    RunFolder.create(tmp_path / "reports", "a", "b", WHEN).discard()
    assert not link.is_symlink()
    assert (target / "samples" / "x.parquet").exists()


def test_the_cache_loses_old_half_blocks_and_old_logs(tmp_path: Path) -> None:
    block = tmp_path / "scores" / "v1" / "00aa" / ".ffee.parquet.77-0011aabb.partial"
    old = [make(block, age=2 * DAY), make(tmp_path / "logs" / "worker-7-m.log", age=31 * DAY)]
    young = [
        make(block.with_name(".ffee.parquet.78-0011aabb.partial"), age=60),
        make(tmp_path / "logs" / "worker-8-m.log", age=DAY),
        make(tmp_path / "scores" / "v1" / "00aa" / "ffee.parquet", age=1000 * DAY),
        make(tmp_path / "logs" / "mine.log", age=1000 * DAY),
    ]
    open_cache_dir(tmp_path)
    assert not [path for path in old if path.exists()]
    assert not [path for path in young if not path.exists()]


def test_a_cache_that_is_made_is_for_this_user_alone(tmp_path: Path) -> None:
    made = open_cache_dir(tmp_path / "above" / "cache")
    assert made.is_absolute()
    for folder in (made, made.parent):
        assert folder.stat().st_mode & 0o777 == 0o700


def test_a_cache_that_cannot_be_made_is_no_error_yet(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert open_cache_dir(tmp_path / "file" / "cache") == tmp_path / "file" / "cache"


def test_a_cache_that_anybody_can_write_is_doubtful(tmp_path: Path) -> None:
    assert ScoreCache(tmp_path / "scores").problems == []
    (tmp_path / "scores").mkdir()
    assert ScoreCache(tmp_path / "scores").problems == []
    (tmp_path / "scores").chmod(0o777)
    (problem,) = ScoreCache(tmp_path / "scores").problems
    assert "every user of this machine can write there" in problem
    (tmp_path / "scores").chmod(0o770)
    assert ScoreCache(tmp_path / "scores").problems == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_that_a_stranger_made_where_anybody_may_is_doubtful(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    (tmp_path / "cache" / "scores").mkdir(parents=True)
    os.chown(tmp_path / "cache", 12345, 12345)
    (problem,) = ScoreCache(tmp_path / "cache" / "scores").problems
    assert f"{tmp_path / 'cache'} " in problem
