"""Everything that is kept is read, and what is not whole is set aside."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from evalguard.conversion.build_digests import changed_since_build
from evalguard.core.reports.cache_listings import CacheCheck
from evalguard.errors import UsageError
from evalguard.run.floor.stored_floors import read_floor
from evalguard.store.block_cache import BlockCache
from evalguard.store.cache_items import CacheItem, find_items
from evalguard.store.damaged_files import set_aside
from evalguard.store.fact_cache import FactCache
from evalguard.store.file_lock import FileLock
from evalguard.store.floor_store import FloorStore
from evalguard.store.kept_answers import DivergenceCache, ReferenceCache, ScoreCache
from evalguard.store.token_budgets import BudgetStore

_BLOCKS: Mapping[str, type[BlockCache[Any]]] = {
    "scores": ScoreCache,
    "references": ReferenceCache,
    "divergences": DivergenceCache,
}


def check_cache(folder: Path) -> CacheCheck:
    """Read all that a cache folder holds but logs, which nothing relies on."""
    blocks = {kind: cache(folder / kind) for kind, cache in _BLOCKS.items()}
    for cache in blocks.values():
        cache.problems.clear()  # who may write into the cache is no damage
    read = others = in_use = 0
    problems: list[str] = []
    for item in find_items(folder):
        cache = blocks.get(item.kind)  # type: ignore[assignment]
        if item.state != "kept":
            continue
        if cache is not None and item.folder.parent == cache.current:
            read += 1
            whole = cache.get(item.folder.name, item.path.stem, mark=False) is not None
            in_use += not whole and not cache.problems and item.path.exists()
            problems += cache.problems
            cache.problems.clear()
        elif item.kind in _CHECKS_BY_KIND:
            reason = _CHECKS_BY_KIND[item.kind](item, folder)
            others += reason is not None
            if reason:
                problems.append(f"{item.path} ({item.kind}): {_set_aside(item, reason)}")
    return CacheCheck(
        folder=str(folder), checked=read, others=others, problems=tuple(problems), in_use=in_use
    )


def _check_fact(item: CacheItem, folder: Path) -> str | None:
    facts = FactCache(folder / "facts")
    if item.folder.parent != facts.current:
        return None  # of another version
    whole = facts.get(item.folder.name, item.path.stem) is not None or not item.path.exists()
    return "" if whole else "it is not what was written"


def _check_budget(item: CacheItem, folder: Path) -> str | None:
    whole = BudgetStore(folder / "devices").is_whole(item.path)
    return "" if whole else "it does not hold what its name says"


def _check_floor(item: CacheItem, folder: Path) -> str | None:
    model, task = item.path.parent.parent.name, item.path.parent.name
    store = FloorStore(folder / "floors")
    content = store.get(model, task, item.path.stem)
    try:
        read_floor(content or {}, str(item.path))
    except UsageError as error:
        return "; ".join(store.problems) or str(error)
    return ""


def _check_build(item: CacheItem, folder: Path) -> str | None:  # noqa: ARG001 - as the others
    changed = changed_since_build(item.path)
    return None if changed is None else "it was changed since it was built" if changed else ""


def _set_aside(item: CacheItem, reason: str) -> str:
    """Set a damaged file or build aside, unless somebody uses it; say what was done."""
    with ExitStack() as stack:
        for path in item.locks:
            with contextlib.suppress(OSError):  # no locks here: then nobody is known to use it
                lock = FileLock.tried(path)
                if lock is None:
                    return f"{reason}; it stays where it is: another process uses it"
                stack.callback(lock.release, remove=False)
        return f"{reason}; {set_aside(item.path)}"


# What is wrong with it; "": nothing; None: it is not known what it should be.
_CHECKS_BY_KIND: Mapping[str, Callable[[CacheItem, Path], str | None]] = {
    "facts": _check_fact,
    "devices": _check_budget,
    "floors": _check_floor,
    "builds": _check_build,
}
