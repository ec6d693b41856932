"""What the score cache makes of leases: one process scores a block."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest
from lockless_disks import no_flock

from evalguard.core.scorer import Response
from evalguard.store.block_cache import ScoreCache
from evalguard.store.leases import Lease


def test_blocks_have_one_owner_also_where_there_are_no_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "flock", no_flock)
    ours, theirs = ScoreCache(tmp_path), ScoreCache(tmp_path)
    with ours.locked("k", "b0") as first:
        assert first
        with theirs.locked("k", "b0") as other:
            assert not other
        ours.put("k", "b0", [Response(loglikelihood=-1.0)])
    assert ours.problems == theirs.problems == []
    assert theirs.get("k", "b0") is not None


def test_a_disk_that_takes_no_lease_keeps_blocks_and_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(source: Path, target: Path) -> None:
        raise OSError(errno.ENOTSUP, "Not supported")

    monkeypatch.setattr(os, "link", link)
    cache = ScoreCache(tmp_path)
    for block in ("b0", "b1"):
        with cache.locked("k", block) as ours:
            assert ours
            cache.put("k", block, [Response(loglikelihood=-1.0)])
    (problem,) = cache.problems
    assert "takes no leases (Not supported)" in problem
    assert cache.get("k", "b1") is not None
    assert not list(tmp_path.rglob("*.partial"))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_disk_that_refuses_is_said_by_writing_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def tried(path: Path) -> Lease | None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Lease, "tried", tried)
    cache = ScoreCache(tmp_path)
    with cache.locked("k", "b") as ours:
        assert ours
    assert cache.problems == []


def test_a_block_is_held_twice_by_one_process_and_once_by_another(tmp_path: Path) -> None:
    ours, theirs = ScoreCache(tmp_path), ScoreCache(tmp_path)
    with ours.locked("k", "b") as first, ours.locked("k", "b") as again:
        assert first
        assert again
        with theirs.locked("k", "b") as other, theirs.locked("k", "c") as free:
            assert not other
            assert free
    with theirs.locked("k", "b") as other:
        assert other
    assert not list(tmp_path.rglob("*.lock"))
