"""Inventory: what lies in a cache folder, by model and kind."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from evalguard.cache_report import CacheListing, KeptFolder
from evalguard.store.about import read_about
from evalguard.store.cache_items import Item, items_of
from evalguard.store.layout import BLOCKS


def inventory(cache_dir: Path) -> CacheListing:
    """Return what lies in a cache folder, the most recently used first."""
    by_folder: dict[tuple[str, Path], list[Item]] = defaultdict(list)
    for item in items_of(cache_dir):
        by_folder[item.kind, _group(item, cache_dir)].append(item)
    entries = [_entry(kind, folder, items) for (kind, folder), items in by_folder.items()]
    return CacheListing(
        folder=str(cache_dir),
        entries=tuple(sorted(entries, key=lambda e: (-e.last_used, e.kind, e.key))),
    )


def _group(item: Item, cache_dir: Path) -> Path:
    """The folder that an item is listed under: a floor lies deeper than its model."""
    if item.kind != "floors":
        return item.folder
    floors = cache_dir / "floors"
    return floors / item.folder.relative_to(floors).parts[0]


def _entry(kind: str, folder: Path, items: Sequence[Item]) -> KeptFolder:
    kept = [item for item in items if item.state == "kept"]
    about = read_about(folder)
    return KeptFolder(
        kind=kind,
        key=folder.name,
        path=str(folder),
        name=about.name if kind in BLOCKS else "",
        tasks=about.tasks,
        model=about.model,
        created=about.created,
        files=len(kept),
        size=sum(item.size for item in items),
        last_used=max((item.used for item in kept), default=0.0),
        damaged=sum(item.state == "damaged" for item in items),
        leftovers=sum(item.state == "leftover" for item in items),
    )
