"""The things in a cache folder that can be removed one by one, told apart by their names alone.

Links are not followed, and what evalguard did not name is not among them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from evalguard.store.cache_layout import ABOUT_FILE, BLOCK_KINDS, BLOCK_SUFFIX
from evalguard.store.damaged_files import DAMAGED_SUFFIX

ItemState = Literal["kept", "damaged", "leftover"]

# Only names that evalguard itself gives: a folder may hold anything.
HALF_FILE = re.compile(r"\.(.+)\.\d+-[0-9a-f]{8}\.partial")
LOG_FILE = re.compile(r"(worker|server)-\d+-.*\.log")
_DIGEST = re.compile(r"[0-9A-Za-z_-]{1,128}")
_HALF_BUILD = re.compile(r"\.([0-9a-f]+)-[^/]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheItem:
    """A file or folder.

    Attributes:
        kind: as of ``KeptFolder``.
        folder: what it belongs to.
        used: when it was last written or read, in seconds since 1970.
        locks: lock files of whoever makes or uses it.
    """

    kind: str
    folder: Path
    path: Path
    size: int
    used: float
    state: ItemState = "kept"
    locks: tuple[Path, ...] = ()


def find_items(cache_dir: Path) -> Iterator[CacheItem]:
    """Yield everything in a cache folder that evalguard may have put there."""
    for kind in BLOCK_KINDS:
        for layout in list_folders(cache_dir / kind):
            for folder in list_folders(layout):
                yield from _of_blocks(kind, folder)
    yield from _of_builds(cache_dir / "builds")
    for folder in list_folders(cache_dir / "floors"):
        yield from _files("floors", folder, re.compile(r".+\.json"))
    for layout in list_folders(cache_dir / "facts"):
        for folder in list_folders(layout):
            yield from _files("facts", folder, re.compile(r".+\.json"))
    yield from _files("devices", cache_dir / "devices", re.compile(r".+\.json"))
    yield from _files("answers", cache_dir / "answers", re.compile(r"[0-9a-f]+\.jsonl"))
    logs = cache_dir / "logs"
    if logs.is_dir() and not logs.is_symlink():
        yield from _files("logs", logs, LOG_FILE)


def list_folders(parent: Path) -> list[Path]:
    """Return the folders in a folder, without links; none where it is a link or not there."""
    return [Path(entry) for entry in list_entries(parent) if entry.is_dir(follow_symlinks=False)]


def _of_blocks(kind: str, folder: Path) -> Iterator[CacheItem]:
    for entry in list_entries(folder):
        state, locks = _of_block(entry.name, folder)
        if state is not None:
            yield _item(kind, folder, entry, state, locks)


def _of_block(name: str, folder: Path) -> tuple[ItemState | None, tuple[Path, ...]]:
    """What a name in a folder of blocks stands for, and the lock of the block it belongs to."""
    half = HALF_FILE.fullmatch(name)
    block = (half[1] if half else name).partition(".")[0]
    if not _DIGEST.fullmatch(block):
        return None, ()
    lock = (folder / f"{block}.lock",)
    if half:
        return "leftover", lock if half[1] != ABOUT_FILE else ()
    if name == f"{block}.lock":
        return "leftover", lock
    if name.endswith(DAMAGED_SUFFIX) and name.startswith(f"{block}{BLOCK_SUFFIX}."):
        return "damaged", lock
    return ("kept", lock) if name == f"{block}{BLOCK_SUFFIX}" else (None, ())


def _of_builds(builds: Path) -> Iterator[CacheItem]:
    for entry in list_entries(builds):
        half = _HALF_BUILD.fullmatch(entry.name)
        if not entry.is_dir(follow_symlinks=False):
            continue
        if half:
            yield _item("builds", builds, entry, "leftover", (builds / f"{half[1]}.lock",))
            continue
        digest, dot, _ = entry.name.partition(".")
        if _DIGEST.fullmatch(digest) and (not dot or entry.name.endswith(DAMAGED_SUFFIX)):
            locks = (builds / f"{digest}.lock", builds / f"{digest}.used")
            yield _item("builds", Path(entry), entry, "damaged" if dot else "kept", locks)


def _files(kind: str, folder: Path, names: re.Pattern[str]) -> Iterator[CacheItem]:
    for entry in list_entries(folder):
        if entry.is_dir(follow_symlinks=False):
            yield from _files(kind, Path(entry), names)
        elif HALF_FILE.fullmatch(entry.name):
            yield _item(kind, folder, entry, "leftover", ())
        elif names.fullmatch(entry.name):
            yield _item(kind, folder, entry, "kept", ())
        elif entry.name.endswith(DAMAGED_SUFFIX) and names.match(entry.name):
            yield _item(kind, folder, entry, "damaged", ())


def _item(
    kind: str, folder: Path, entry: os.DirEntry[str], state: ItemState, locks: tuple[Path, ...]
) -> CacheItem:
    found = entry.stat(follow_symlinks=False)
    size = found.st_size
    if entry.is_dir(follow_symlinks=False):
        size = sum(file.lstat().st_size for file in Path(entry).rglob("*"))
    return CacheItem(
        kind=kind,
        folder=folder,
        path=Path(entry),
        size=size,
        used=found.st_mtime,
        state=state,
        locks=locks,
    )


def list_entries(folder: Path) -> list[os.DirEntry[str]]:
    """Return what is in a folder, by name; nothing where it is a link or cannot be read."""
    try:
        if folder.is_symlink():
            return []
        with os.scandir(folder) as found:
            return sorted(found, key=lambda entry: entry.name)
    except OSError:
        return []
