"""The cache, looked into, checked and cleared out."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path

from evalguard.core.reports.cache_listings import CacheCheck, CacheListing, CachePruning
from evalguard.errors import EXIT_PASSED, EXIT_REGRESSED, UsageError
from evalguard.report.cache_terminal import cache_document, cache_text
from evalguard.run.cache_check import check_cache
from evalguard.store.cache_folder import default_cache_dir
from evalguard.store.cache_inventory import take_inventory
from evalguard.store.pruning import PruneRules, prune


@dataclass(frozen=True, slots=True)
class CacheResult:
    """What was found or done, for a person and for a program."""

    found: CacheListing | CacheCheck | CachePruning

    @property
    def exit_code(self) -> int:
        """1 where something is damaged, or could not be removed."""
        odd = isinstance(self.found, CacheCheck) and self.found.problems
        odd = odd or (isinstance(self.found, CachePruning) and self.found.failed)
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


def verify_cache(cache_dir: Path | None) -> CacheResult:
    """Read all that is kept; what is damaged is set aside.

    Raises:
        UsageError: for a folder that is not there.
    """
    return CacheResult(check_cache(_cache_folder(cache_dir)))


def prune_cache(cache_dir: Path | None, rules: PruneRules, *, dry_run: bool) -> CacheResult:
    """Remove what the rules say.

    Raises:
        UsageError: for a folder that is not there.
    """
    return CacheResult(prune(_cache_folder(cache_dir), rules, now=time.time(), dry_run=dry_run))


def prune_rules(
    *,
    older_than: float | None = None,
    max_size: int | None = None,
    model: str | None = None,
    damaged: bool = False,
    everything: bool = False,
) -> PruneRules:
    """Return rules of what is to go; see ``PruneRules``."""
    return PruneRules(
        older_than=older_than,
        max_size=max_size,
        model=model or "",
        damaged=damaged,
        everything=everything,
    )


def _cache_folder(cache_dir: Path | None) -> Path:
    folder = (cache_dir or default_cache_dir()).expanduser().absolute()
    if cache_dir is not None and not folder.is_dir():
        raise UsageError(f"there is no cache folder {folder}", hint="--cache-dir names one")
    return folder
