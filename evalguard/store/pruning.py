"""Pruning: what is old, too much, left over or all of it goes; what is held stays."""

from __future__ import annotations

import contextlib
import math
import shutil
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from evalguard.core.reports.cache_listings import CachePruning, RemovedItem
from evalguard.store.cache_items import (
    CacheItem,
    find_items,
)
from evalguard.store.cache_layout import ABOUT_FILE, BLOCK_KINDS
from evalguard.store.file_lock import FileLock
from evalguard.store.folder_description import read_description
from evalguard.store.leases import Lease

# Floors took long to measure; another token budget of a device makes other blocks.
_NEVER_AGED = ("floors", "devices")
# Writing takes seconds: what is older and without a lock was left by a process that was killed.
_ABANDONED = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneRules:
    """What is to go; without any rule, only what killed processes left.

    Attributes:
        older_than: seconds since it was last used; floors and what was measured of devices stay.
        max_size: bytes that may stay; the least recently used goes first, the same stay.
        everything: all, but floors and what was measured of devices.
        measured: these, too.
        used_before: what was used later stays, in seconds since 1970.
        of_runs: only blocks that were kept for one run alone.
    """

    older_than: float | None = None
    max_size: int | None = None
    everything: bool = False
    measured: bool = False
    used_before: float = math.inf
    of_runs: bool = False


def prune(cache_dir: Path, rules: PruneRules, *, now: float) -> CachePruning:
    """Remove what the rules say from a cache folder.

    Args:
        now: seconds since 1970.
    """
    items = list(find_items(cache_dir))
    work = _Removal(now=now)
    for item, why in choose_items(items, rules, now=now):
        work.remove(item, why)
    _remove_empty({item.folder for item in items if item.kind in BLOCK_KINDS})
    return CachePruning(
        folder=str(cache_dir),
        removed=tuple(work.removed),
        left=sum(item.size for item in items) - sum(item.size for item in work.removed),
        in_use=work.in_use,
        failed=tuple(work.failed),
    )


def choose_items(
    items: Sequence[CacheItem], rules: PruneRules, *, now: float
) -> list[tuple[CacheItem, str]]:
    """Return what is to go and why, the least recently used first."""
    found = {item.path: (item, "left over") for item in items if item.state == "leftover"}
    within = list(items)
    if rules.of_runs:
        blocks = {item.folder for item in within if item.kind in BLOCK_KINDS}
        theirs = {folder for folder in blocks if read_description(folder).model.get("run")}
        within = [item for item in within if item.folder in theirs]
    older_than = math.inf if rules.older_than is None else rules.older_than
    for item in within:
        if rules.everything and (rules.measured or item.kind not in _NEVER_AGED):
            found[item.path] = (item, "asked for")
        elif item.kind not in _NEVER_AGED and item.used < now - older_than:
            found[item.path] = (item, "old")
    if rules.max_size is not None:
        left = [item for item in items if item.path not in found]
        for item in _items_beyond_size(left, rules.max_size, {item.path for item in within}, rules):
            found[item.path] = (item, "beyond the size")
    return sorted(found.values(), key=lambda of: of[0].used)


def _items_beyond_size(
    items: Iterable[CacheItem], most: int, within: set[Path], rules: PruneRules
) -> Iterable[CacheItem]:
    oldest_first = sorted(items, key=lambda item: item.used)
    size = sum(item.size for item in oldest_first)
    for item in oldest_first:
        if size <= most:
            return
        if item.path in within and item.kind not in _NEVER_AGED and item.used < rules.used_before:
            size -= item.size
            yield item


@dataclass(slots=True, kw_only=True)
class _Removal:
    now: float
    removed: list[RemovedItem] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    in_use: int = 0

    def remove(self, item: CacheItem, why: str) -> None:
        """Remove an item, unless somebody holds it, or may be writing it."""
        with ExitStack() as stack:
            if not self._claimed(item, stack):
                self.in_use += 1
                return
            try:
                self._unlink(item)
            except OSError as error:
                self.failed.append(f"{item.path} cannot be removed: {error.strerror or error}")
                return
            done = RemovedItem(kind=item.kind, path=str(item.path), size=item.size, why=why)
            self.removed.append(done)

    def _claimed(self, item: CacheItem, stack: ExitStack) -> bool:
        """Take an item's locks, if nobody holds them; else whether it is too old to be written."""
        abandoned = item.state != "leftover" or self.now - item.used >= _ABANDONED
        if not item.locks:
            return abandoned
        take = _take_lease if item.kind in BLOCK_KINDS else _take_lock
        try:
            return all(take(path, stack) for path in item.locks)
        except OSError:  # no locks here, or none can be made: age decides
            return abandoned

    def _unlink(self, item: CacheItem) -> None:
        if item.path in item.locks:  # a lock goes when it is released
            return
        if item.path.is_dir() and not item.path.is_symlink():
            shutil.rmtree(item.path)
            for beside in (".log", ".used", ".sha256"):
                with contextlib.suppress(OSError):
                    item.path.with_name(f"{item.path.name}{beside}").unlink()
        else:
            item.path.unlink(missing_ok=True)


def _take_lease(path: Path, stack: ExitStack) -> bool:
    lease = Lease.tried(path)
    if lease is not None:
        stack.callback(lease.release)
    return lease is not None


def _take_lock(path: Path, stack: ExitStack) -> bool:
    """Take the lock of a build; builders wait for it under its name, so it has to stay."""
    lock = FileLock.tried(path)
    if lock is not None:
        stack.callback(lock.release, remove=False)
    return lock is not None


def _remove_empty(folders: Iterable[Path]) -> None:
    for folder in folders:
        with contextlib.suppress(OSError):
            if [path.name for path in folder.iterdir()] == [ABOUT_FILE]:
                (folder / ABOUT_FILE).unlink()
            folder.rmdir()
