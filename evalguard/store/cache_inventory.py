"""Inventory: what lies in a cache folder, by model and kind."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from evalguard.core.reports.cache_listings import CacheListing, KeptFolder
from evalguard.store.cache_items import CacheItem, find_items
from evalguard.store.cache_layout import BLOCK_KINDS
from evalguard.store.folder_description import read_description


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
