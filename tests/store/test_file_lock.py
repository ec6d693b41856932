"""A lock is held by one, freed by death, and leaves nothing behind."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from evalguard.store.leases import FileLock

HOLDER = """
import sys, time
from pathlib import Path
from evalguard.store.leases import FileLock
lock = FileLock.tried(Path(sys.argv[1]))
print("held" if lock else "not", flush=True)
time.sleep(120)
"""

# Each adds to a number in a file, which comes out right only if one does so at a time.
COUNTER = """
import sys
from pathlib import Path
from evalguard.store.leases import FileLock
lock, number = Path(sys.argv[1]), Path(sys.argv[2])
done = 0
while done < 300:
    held = FileLock.tried(lock)
    if held:
        number.write_text(str(int(number.read_text()) + 1))
        held.release()
        done += 1
"""


def test_one_holds_it_until_it_is_released(tmp_path: Path) -> None:
    path = tmp_path / "b.lock"
    first = FileLock.tried(path)
    assert first is not None
    assert FileLock.tried(path) is None
    first.release()
    assert list(tmp_path.iterdir()) == []
    second = FileLock.tried(path)
    assert second is not None
    second.release()


def test_a_killed_holder_holds_nothing(tmp_path: Path) -> None:
    path = tmp_path / "b.lock"
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    assert FileLock.tried(path) is None
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    holder.stdout.close()
    taken = FileLock.tried(path)
    assert taken is not None
    taken.release()
    assert not path.exists()


def test_of_many_that_try_one_goes_in_at_a_time(tmp_path: Path) -> None:
    lock, number = tmp_path / "b.lock", tmp_path / "number"
    number.write_text("0")
    command = [sys.executable, "-c", COUNTER, str(lock), str(number)]
    running = [subprocess.Popen(command) for _ in range(3)]
    assert [process.wait(timeout=500) for process in running] == [0, 0, 0]
    assert number.read_text() == "900"
    assert not lock.exists()


def test_a_file_that_was_replaced_meanwhile_is_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, real, calls = tmp_path / "b.lock", fcntl.flock, []

    def flock(descriptor: int, how: int) -> None:
        calls.append(how)
        if len(calls) == 1:
            path.unlink()  # its holder released it after it was opened here
        real(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    lock = FileLock.tried(path)
    assert lock is not None
    assert len(calls) == 2
    assert path.exists()
    lock.release()


@pytest.mark.parametrize("planted", ["link", "pipe"])
def test_what_somebody_put_in_its_place_is_not_followed(tmp_path: Path, planted: str) -> None:
    path, away = tmp_path / "b.lock", tmp_path / "precious"
    away.write_text("content")
    if planted == "link":
        path.symlink_to(away)
        with pytest.raises(OSError):
            FileLock.tried(path)
    else:
        os.mkfifo(path)
        lock = FileLock.tried(path)  # it does not wait for somebody at the other end
        assert lock is not None
        lock.release()
    assert away.read_text() == "content"
