"""The limit of a cache's size takes nothing from the run that keeps to it."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import pytest

from evalguard.core.scorer import Response
from evalguard.engine.meter import Meter
from evalguard.store.block_cache import ScoreCache
from evalguard.store.cache_folder import limit_cache

HOUR = 3600.0
ANSWERS = [Response(loglikelihood=-1.0)]


def left(folder: Path, ages: dict[str, float], *, since: float) -> set[str]:
    """Blocks that are left of those last used so many seconds ago."""
    kept, now = ScoreCache(folder / "scores"), time.time()
    for name, age in ages.items():
        kept.put("aa11", name, ANSWERS)
        os.utime(kept.current / "aa11" / f"{name}.parquet", (now - age, now - age))
    limit_cache(1, folder, lambda _: None, since=since)
    return {name for name in ages if kept.holds("aa11", name)}


def test_all_that_a_long_run_used_stays(tmp_path: Path) -> None:
    ages = {"last": 60.0, "first": 9.9 * HOUR, "older": 11.5 * HOUR}
    assert left(tmp_path, ages, since=time.time() - 10 * HOUR) == {"last", "first"}


@pytest.mark.parametrize("set_by", [-900 * HOUR, 0.0, 900 * HOUR])
def test_a_clock_that_is_set_during_a_run_takes_nothing_from_it(
    tmp_path: Path, set_by: float
) -> None:
    now = time.time()
    clocks = iter([now - set_by - 2 * HOUR, now])
    wall = iter([100.0, 100.0, 100.0 + 2 * HOUR])
    meter = Meter(clock=lambda: next(clocks), wall=lambda: next(wall))
    # used before the clock was set, and after
    ages = {"before": set_by + 1.5 * HOUR, "after": 1.5 * HOUR}
    assert left(tmp_path, ages, since=meter.began()) == set(ages)


def test_what_the_disk_does_not_let_go_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    kept, told = ScoreCache(tmp_path / "scores"), list[str]()
    kept.put("aa11", "b0", ANSWERS)
    os.utime(kept.current / "aa11" / "b0.parquet", (1, 1))
    monkeypatch.setattr(Path, "unlink", refused)
    limit_cache(1, tmp_path, told.append, since=time.time())
    (said,) = told
    assert said.endswith("b0.parquet cannot be removed: Read-only file system")


def test_a_block_of_a_time_to_come_is_as_old_as_its_next_use(tmp_path: Path) -> None:
    kept = ScoreCache(tmp_path / "scores")
    kept.put("aa11", "b0", ANSWERS)
    path = kept.current / "aa11" / "b0.parquet"
    ahead = time.time() + 1000 * HOUR
    os.utime(path, (ahead, ahead))
    assert kept.get("aa11", "b0") is not None
    assert path.stat().st_mtime < ahead - 500 * HOUR
