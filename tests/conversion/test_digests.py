"""Digests of files: the same for the same bytes, and each file read once while it stands still."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from evalguard.conversion import observed_reads as digests
from evalguard.conversion.observed_reads import digest_path

BIG = 2**20
LONG_AGO = 1_600_000_000


class Known:
    """Digests in memory, which say what they were asked for."""

    def __init__(self) -> None:
        self.kept: dict[str, tuple[tuple[int, ...], str]] = {}
        self.hits = 0

    def get(self, path: str, state: Sequence[int]) -> str | None:
        found = self.kept.get(path)
        if found is None or found[0] != tuple(state):
            return None
        self.hits += 1
        return found[1]

    def put(self, path: str, state: Sequence[int], digest: str) -> None:
        self.kept[path] = (tuple(state), digest)


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every file be older than the clocks of file systems are coarse."""
    now = digests.time.time_ns
    monkeypatch.setattr(digests.time, "time_ns", lambda: now() + 10**11)


def big(path: Path, byte: bytes) -> str:
    path.write_bytes(byte * BIG)
    return hashlib.sha256(byte * BIG).hexdigest()


def a_tick_later(path: Path) -> None:
    """Wait until the file system's clock, which may be coarse, is past a file's times."""
    probe = path.with_name(".probe")
    while True:
        probe.touch()
        if probe.stat().st_ctime_ns > path.stat().st_ctime_ns:
            return
        time.sleep(0.001)


@pytest.mark.usefixtures("settled")
def test_a_big_file_is_read_once_and_known_from_then_on(tmp_path: Path) -> None:
    known, path = Known(), tmp_path / "weights"
    expected = big(path, b"a")
    assert [digest_path(path, known) for _ in range(3)] == [expected] * 3
    assert known.hits == 2
    assert digest_path(path) == expected


@pytest.mark.usefixtures("settled")
def test_a_known_digest_is_believed_only_as_long_as_the_file_stands_still(tmp_path: Path) -> None:
    known, path = Known(), tmp_path / "weights"
    big(path, b"a")
    digest_path(path, known)
    expected = big(path, b"b")
    os.utime(path, (LONG_AGO, LONG_AGO))  # as a copy with the old times would have it
    assert digest_path(path, known) == expected
    replaced = tmp_path / "other"
    newest = big(replaced, b"c")
    os.utime(replaced, (LONG_AGO, LONG_AGO))
    replaced.replace(path)
    assert digest_path(path, known) == newest
    assert known.hits == 0


def test_a_file_that_was_just_written_is_digested_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, path = Known(), tmp_path / "weights"
    expected = big(path, b"a")
    now = path.stat().st_ctime_ns
    monkeypatch.setattr(digests.time, "time_ns", lambda: now)
    assert digest_path(path, known) == digest_path(path, known) == expected
    assert known.kept == {}
    # Rewritten within one tick of a coarse clock: size, times and inode are the same.
    before = path.stat().st_mtime_ns
    with path.open("r+b") as file:
        file.write(b"b" * BIG)
    os.utime(path, ns=(before, before))
    assert digest_path(path) == hashlib.sha256(b"b" * BIG).hexdigest()


@pytest.mark.usefixtures("settled")
def test_small_files_are_read_every_time(tmp_path: Path) -> None:
    known = Known()
    (tmp_path / "config.json").write_text("{}")
    big(tmp_path / "weights", b"a")
    first = digest_path(tmp_path, known)
    assert list(known.kept) == [str((tmp_path / "weights").resolve())]
    assert digest_path(tmp_path, known) == first == digest_path(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    assert digest_path(tmp_path, known) != first


@pytest.mark.usefixtures("settled")
def test_a_file_that_changes_while_it_is_read_is_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, path = Known(), tmp_path / "weights"
    big(path, b"a")

    class Sha256:
        """Somebody writes to the file while it is being digested."""

        def __init__(self) -> None:
            self.digest = hashlib.sha256()

        def update(self, block: bytes) -> None:
            self.digest.update(block)
            a_tick_later(path)
            big(path, b"b")

        def hexdigest(self) -> str:
            return self.digest.hexdigest()

    monkeypatch.setattr(digests, "hashlib", SimpleNamespace(sha256=Sha256))
    digest_path(path, known)
    assert known.kept == {}


def test_a_linked_folder_counts_by_its_files_and_a_circle_ends(tmp_path: Path) -> None:
    model, beside = tmp_path / "model", tmp_path / "beside"
    model.mkdir()
    beside.mkdir()
    (beside / "tokenizer.json").write_text("a")
    (model / "tokenizer").symlink_to(beside)
    (beside / "again").symlink_to(model)
    first = digest_path(model)
    (beside / "tokenizer.json").write_text("b")
    assert digest_path(model) != first
    copied = tmp_path / "copied"
    (copied / "tokenizer").mkdir(parents=True)
    (copied / "tokenizer" / "tokenizer.json").write_text("b")
    assert digest_path(model) == digest_path(copied)


@pytest.mark.usefixtures("settled")
def test_a_link_that_is_pointed_elsewhere_is_another_folder(tmp_path: Path) -> None:
    known, link = Known(), tmp_path / "model"
    digests = []
    for byte in (b"a", b"b", b"a"):
        folder = tmp_path / f"of-{byte.decode()}"
        folder.mkdir(exist_ok=True)
        big(folder / "weights", byte)
        link.unlink(missing_ok=True)
        link.symlink_to(folder)
        digests.append(digest_path(link, known))
    assert digests[0] == digests[2] != digests[1]


@pytest.mark.usefixtures("settled")
def test_a_change_through_another_name_of_the_file_is_seen(tmp_path: Path) -> None:
    known, path, other = Known(), tmp_path / "weights", tmp_path / "hard-link"
    big(path, b"a")
    os.link(path, other)
    digest_path(path, known)
    before = other.stat()
    a_tick_later(path)
    expected = big(other, b"b")
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert digest_path(path, known) == expected
