"""The things in a cache folder that can be removed one by one, told apart by their names alone.

Links are not followed, and what evalguard did not name is not among them.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

from evalguard.core.reports.cache_listings import CacheListing, KeptFolder
from evalguard.core.settings import Value
from evalguard.store.files import DAMAGED_SUFFIX, write_atomically

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


# about.json: what a folder of blocks is of, for people; nothing else reads it.


_DESCRIPTION_FORMAT = "evalguard.about/1"
_LARGEST_DESCRIPTION = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderDescription:
    """Attributes as in ``KeptFolder``."""

    name: str = ""
    tasks: tuple[str, ...] = ()
    model: Mapping[str, Value] = field(default_factory=dict)
    created: str = ""


def read_description(folder: Path) -> FolderDescription:
    """Return what is written there; nothing where it cannot be read."""
    path = folder / ABOUT_FILE
    try:
        if path.is_symlink() or path.stat().st_size > _LARGEST_DESCRIPTION:
            return FolderDescription()
        said = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return FolderDescription()
    if not isinstance(said, dict) or said.get("format") != _DESCRIPTION_FORMAT:
        return FolderDescription()
    tasks, model = said.get("tasks"), said.get("model")
    return FolderDescription(
        name=_text(said.get("name")),
        tasks=tuple(_text(task) for task in tasks) if isinstance(tasks, list) else (),
        model=model if isinstance(model, dict) else {},
        created=_text(said.get("created")),
    )


def write_description(folder: Path, *, name: str, task: str, model: Mapping[str, Value]) -> None:
    """Write down what a folder that is there is of; a disk that refuses changes nothing.

    The name is the last one used. Two processes may write at a time: one's task may then be missing
    until it is used again.
    """
    before = read_description(folder)
    now = FolderDescription(
        name=name,
        tasks=tuple(sorted({*before.tasks, task})),
        model=dict(model),
        created=before.created or datetime.now(timezone.utc).isoformat(timespec="seconds"),
    )
    if now == before:
        return
    text = json.dumps({"format": _DESCRIPTION_FORMAT, **asdict(now)}, indent=2)
    with contextlib.suppress(OSError):
        if folder.is_dir() and not folder.is_symlink():
            write_atomically(folder / ABOUT_FILE, text.encode())


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


# Inventory: what lies in a cache folder, by model and kind.


def take_inventory(cache_dir: Path) -> CacheListing:
    """Return what lies in a cache folder, the most recently used first."""
    by_folder: dict[tuple[str, Path], list[CacheItem]] = defaultdict(list)
    for item in find_items(cache_dir):
        by_folder[item.kind, _group(item, cache_dir)].append(item)
    entries = [_entry(kind, folder, items) for (kind, folder), items in by_folder.items()]
    return CacheListing(
        folder=str(cache_dir),
        entries=tuple(sorted(entries, key=lambda e: (-e.last_used, e.kind, e.key))),
    )


def _group(item: CacheItem, cache_dir: Path) -> Path:
    """The folder that an item is listed under: a floor lies deeper than its model."""
    if item.kind != "floors":
        return item.folder
    floors = cache_dir / "floors"
    return floors / item.folder.relative_to(floors).parts[0]


def _entry(kind: str, folder: Path, items: Sequence[CacheItem]) -> KeptFolder:
    kept = [item for item in items if item.state == "kept"]
    about = read_description(folder)
    return KeptFolder(
        kind=kind,
        key=folder.name,
        path=str(folder),
        name=about.name if kind in BLOCK_KINDS else "",
        tasks=about.tasks,
        model=about.model,
        created=about.created,
        files=len(kept),
        size=sum(item.size for item in items),
        last_used=max((item.used for item in kept), default=0.0),
        damaged=sum(item.state == "damaged" for item in items),
        leftovers=sum(item.state == "leftover" for item in items),
    )


# Names of what lies in a cache folder.


BLOCK_KINDS = ("scores", "references", "divergences")
"""Kinds of blocks, each in a folder of its own."""

LAYOUT = "v1"
"""The number of the layout: a later one gets a folder of its own beside this one."""

BLOCK_SUFFIX = ".parquet"
ABOUT_FILE = "about.json"
