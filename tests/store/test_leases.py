"""A lease is one process's, whatever the file system's locks are worth and the clocks say."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from lockless_disks import no_flock

from evalguard.store.leases import BEAT_SECONDS, STALE_AFTER, Lease

# What flock does on an NFS mounted without a lock daemon, and on one with local locks, as another
# machine sees it: nobody's lock is in anybody's way.
NO_LOCKS = """
def flock(descriptor, how):
    raise OSError(errno.ENOLCK, "No locks available")
"""
LOCAL_LOCKS = """
def flock(descriptor, how):
    pass
"""
HOLDER = """
import sys, time
from pathlib import Path
from evalguard.store.leases import Lease
lease = Lease.tried(Path(sys.argv[1]))
print("held" if lease else "not", flush=True)
time.sleep(500)
"""
# Each is a machine of its own: it adds to a number in a file, which comes out right only if one
# does so at a time.
COUNTER = """
import errno, fcntl, os, sys
from pathlib import Path
from evalguard.store.leases import Lease
{flock}
fcntl.flock = flock
path, number, done = Path(sys.argv[1]), Path(sys.argv[2]), 0
while done < 100:
    lease = Lease.tried(path, machine=str(os.getpid()))
    if lease:
        number.write_text(str(int(number.read_text()) + 1))
        lease.release()
        done += 1
"""


def local_flock(descriptor: int, how: int) -> None:
    """Locks that count on one machine only, as another machine sees them."""


def leave_behind(path: Path, *, machine: str, seconds: float) -> None:
    """The lease of a process that died so long ago, as it lies there."""
    path.write_text(json.dumps({"machine": machine, "pid": 7, "locked": True}))
    moment = path.stat().st_mtime - seconds
    os.utime(path, (moment, moment))


def test_one_has_it_until_it_is_released(tmp_path: Path) -> None:
    path = tmp_path / "b.lock"
    first = Lease.tried(path)
    assert first is not None
    assert Lease.tried(path) is None
    assert list(tmp_path.iterdir()) == [path]
    first.release()
    assert list(tmp_path.iterdir()) == []
    second = Lease.tried(path)
    assert second is not None
    second.release()


@pytest.mark.parametrize("flock", [local_flock, no_flock, fcntl.flock])
def test_it_is_one_machines_whatever_locks_are_worth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flock: Callable[[int, int], None]
) -> None:
    monkeypatch.setattr(fcntl, "flock", flock)
    path = tmp_path / "b.lock"
    ours = Lease.tried(path, machine="one")
    assert ours is not None
    assert Lease.tried(path, machine="other") is None
    ours.release()
    theirs = Lease.tried(path, machine="other")
    assert theirs is not None
    theirs.release()


def test_a_killed_process_of_this_machine_has_nothing(tmp_path: Path) -> None:
    path = tmp_path / "b.lock"
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    assert Lease.tried(path) is None
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    holder.stdout.close()
    assert Lease.tried(path, machine="another one, which cannot know yet") is None
    taken = Lease.tried(path)
    assert taken is not None
    taken.release()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("flock", [local_flock, no_flock])
def test_a_dead_machine_has_it_until_it_was_not_touched_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flock: Callable[[int, int], None]
) -> None:
    monkeypatch.setattr(fcntl, "flock", flock)
    path = tmp_path / "b.lock"
    leave_behind(path, machine="dead", seconds=STALE_AFTER / 2)
    assert Lease.tried(path) is None
    leave_behind(path, machine="dead", seconds=STALE_AFTER + 1)
    taken = Lease.tried(path)
    assert taken is not None
    assert Lease.tried(path, machine="third") is None  # it is as good as a new one
    taken.release()


@pytest.mark.parametrize("hours", [-30, 30])
def test_a_clock_that_is_wrong_takes_nothing_over_and_waits_for_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hours: float
) -> None:
    monkeypatch.setattr(fcntl, "flock", local_flock)
    alive, dead = tmp_path / "alive.lock", tmp_path / "dead.lock"
    theirs = Lease.tried(alive, machine="other")
    assert theirs is not None
    leave_behind(dead, machine="other", seconds=STALE_AFTER + 1)
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + hours * 3600)
    assert Lease.tried(alive) is None
    taken = Lease.tried(dead)
    assert taken is not None
    taken.release()
    theirs.release()


def test_who_holds_it_touches_it(tmp_path: Path) -> None:
    path = tmp_path / "b.lock"
    often = "import evalguard.store.leases as leases\nleases.BEAT_SECONDS = 0.01\n"
    holder = subprocess.Popen(
        [sys.executable, "-c", often + HOLDER, str(path)], stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    deadline = time.monotonic() + 300
    os.utime(path, (0, 0))
    while path.stat().st_mtime == 0:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    holder.kill()
    holder.wait()
    holder.stdout.close()
    assert BEAT_SECONDS < STALE_AFTER / 4


def test_a_lease_that_was_taken_over_is_not_removed_by_who_had_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "flock", local_flock)
    path = tmp_path / "b.lock"
    asleep = Lease.tried(path, machine="asleep")
    assert asleep is not None
    os.utime(path, (0, 0))
    taken = Lease.tried(path, machine="other")
    assert taken is not None
    asleep.release()
    assert Lease.tried(path, machine="third") is None
    taken.release()
    assert not path.exists()


@pytest.mark.parametrize("flock", [NO_LOCKS, LOCAL_LOCKS])
def test_of_many_machines_without_locks_one_goes_in_at_a_time(tmp_path: Path, flock: str) -> None:
    path, number = tmp_path / "b.lock", tmp_path / "number"
    number.write_text("0")
    command = [sys.executable, "-c", COUNTER.format(flock=flock), str(path), str(number)]
    running = [subprocess.Popen(command) for _ in range(3)]
    assert [process.wait(timeout=500) for process in running] == [0, 0, 0]
    assert number.read_text() == "300"
    assert [one.name for one in tmp_path.iterdir()] == ["number"]


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    path, away = tmp_path / "b.lock", tmp_path / "precious"
    away.write_text("content")
    path.symlink_to(away)
    with pytest.raises(OSError):
        Lease.tried(path)
    assert away.read_text() == "content"
    assert {one.name for one in tmp_path.iterdir()} == {"b.lock", "precious"}


def test_a_server_whose_answer_was_lost_has_given_the_name_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def lost(source: Path, target: Path) -> None:
        link(source, target)
        raise FileExistsError(errno.EEXIST, "File exists")  # what the repeated question meets

    monkeypatch.setattr(os, "link", lost)
    lease = Lease.tried(tmp_path / "b.lock")
    assert lease is not None
    lease.release()
    assert list(tmp_path.iterdir()) == []
