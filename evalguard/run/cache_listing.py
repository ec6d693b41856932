"""The cache, looked into and cleared out."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path

from evalguard.core.reports.cache_listings import CacheListing, CachePruning
from evalguard.errors import EXIT_PASSED, EXIT_REGRESSED, UsageError
from evalguard.report.cache_terminal import cache_document, cache_text
from evalguard.store.cache_folder import default_cache_dir
from evalguard.store.cache_inventory import take_inventory
from evalguard.store.pruning import PruneRules, prune


@dataclass(frozen=True, slots=True)
class CacheResult:
    """What was found or done, for a person and for a program."""

    found: CacheListing | CachePruning

    @property
    def exit_code(self) -> int:
        """1 where something could not be removed."""
        odd = isinstance(self.found, CachePruning) and self.found.failed
        return EXIT_REGRESSED if odd else EXIT_PASSED

    def to_json(self) -> str:
        """Return one JSON document."""
        return json.dumps(cache_document(self.found), indent=2)

    def render(self, *, width: int, color: bool) -> str:
        """Return text for a terminal."""
        return cache_text(self.found, width=width, color=color)


def list_cache(cache_dir: Path | None) -> CacheResult:
    """Return what lies in the cache.

    Raises:
        UsageError: for a folder that is not there.
    """
    return CacheResult(take_inventory(_cache_folder(cache_dir)))


def clear_cache(cache_dir: Path | None, *, measured: bool) -> CacheResult:
    """Remove what lies in the cache and no process uses.

    Args:
        measured: measured floors and token budgets, too.

    Raises:
        UsageError: for a folder that is not there.
    """
    rules = PruneRules(everything=True, measured=measured)
    return CacheResult(prune(_cache_folder(cache_dir), rules, now=time.time()))


def _cache_folder(cache_dir: Path | None) -> Path:
    folder = (cache_dir or default_cache_dir()).expanduser().absolute()
    if cache_dir is not None and not folder.is_dir():
        raise UsageError(f"there is no cache folder {folder}", hint="--cache-dir names one")
    return folder
