"""The cache and the environments of models, as ``evalguard cache`` and ``envs`` list them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from rich.text import Text

from evalguard.core.amounts import size_text
from evalguard.core.result import Result
from evalguard.errors import EXIT_PASSED, EXIT_REGRESSED, UsageError
from evalguard.page.rounding import format_count
from evalguard.page.safe_text import fit_text, printable
from evalguard.page.table import Table
from evalguard.page.terminal import render_page, wrap_prose
from evalguard.store.cache_folder import (
    SCHEMA,
    CacheListing,
    CachePruning,
    KeptFolder,
    PruneRules,
    default_cache_dir,
    prune,
    take_inventory,
)
from evalguard.worker.environments import KeptEnvironment, list_environments, remove_environments

_HEADER = ("model", "kind", "size", "blocks", "last used", "key", "tasks")
_WIDEST_NAME, _SHORT_KEY = 28, 8
_MOST_SHOWN = 20


def cache_document(found: CacheListing | CachePruning) -> dict[str, Any]:
    """Return the JSON document of ``evalguard cache ls`` or ``clear``."""
    if isinstance(found, CacheListing):
        return _listing_document(found)
    return {"schema": SCHEMA, **asdict(found), "freed": found.freed}


def cache_text(found: CacheListing | CachePruning, *, width: int, color: bool) -> str:
    """Return the same for a terminal of a width."""
    if isinstance(found, CacheListing):
        blocks = _listing_blocks(found, width)
    else:
        blocks = _pruning_blocks(found, width)
    return render_page(blocks, width, color=color)


def _listing_document(listing: CacheListing) -> dict[str, Any]:
    entries = [{**asdict(entry), "last_used": _when(entry.last_used)} for entry in listing.entries]
    return {"schema": SCHEMA, "folder": listing.folder, "size": listing.size, "entries": entries}


def _listing_blocks(listing: CacheListing, width: int) -> list[list[Text]]:
    title = f"{listing.folder}: {size_text(listing.size)}"
    rows = [_row(entry) for entry in listing.entries]
    tasks = len(_HEADER) - 1
    table = Table(headings=_HEADER, rows=rows, giving_way=tasks, least=len(_HEADER[tasks]))
    blocks = [
        wrap_prose(title, width),
        table.lines(width, ["bold", *[""] * len(rows)])
        if rows
        else wrap_prose("It is empty.", width),
    ]
    odd = _leftover_text(listing)
    return [*blocks, *([wrap_prose(odd, width)] if odd else [])]


def _pruning_blocks(pruning: CachePruning, width: int) -> list[list[Text]]:
    number = len(pruning.removed)
    files = f"{format_count(number)} {'file' if number == 1 else 'files'} removed"
    summary = f"{pruning.folder}: {files}, {size_text(pruning.freed)}; "
    summary += f"{size_text(pruning.left)} left."
    if pruning.in_use:
        summary += f" {format_count(pruning.in_use)} in use by another process stay."
    why = Counter((item.kind, item.why) for item in pruning.removed)
    lines = [f"{kind}: {format_count(number)} ({reason})" for (kind, reason), number in why.items()]
    blocks: list[list[Text]] = [[Text(fit_text(line, width)) for line in lines]] if lines else []
    blocks += [wrap_prose(printable(failure), width) for failure in pruning.failed[:_MOST_SHOWN]]
    return [*blocks, wrap_prose(summary, width)]


def _row(entry: KeptFolder) -> tuple[str, ...]:
    return (
        fit_text(printable(entry.name) or "-", _WIDEST_NAME),
        entry.kind,
        size_text(entry.size),
        format_count(entry.files),
        (_when(entry.last_used) or "never")[:10],
        entry.key[:_SHORT_KEY],
        printable(", ".join(entry.tasks)),
    )


def _leftover_text(listing: CacheListing) -> str:
    damaged = sum(entry.damaged for entry in listing.entries)
    leftovers = sum(entry.leftovers for entry in listing.entries)
    parts = [
        f"{format_count(damaged)} damaged files were set aside" if damaged else "",
        f"{format_count(leftovers)} files were left by killed runs" if leftovers else "",
    ]
    text = "; ".join(filter(None, parts))
    return f"{text} (evalguard cache clear removes all)" if text else ""


def _when(seconds: float) -> str | None:
    if not seconds:
        return None
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="seconds")


@dataclass(frozen=True, slots=True)
class CacheResult(Result[CacheListing | CachePruning]):
    """What was found in the cache, or removed from it."""

    @property
    def exit_code(self) -> int:
        """1 where something could not be removed."""
        odd = isinstance(self.report, CachePruning) and self.report.failed
        return EXIT_REGRESSED if odd else EXIT_PASSED

    def to_dict(self) -> dict[str, Any]:
        """Return the listing, or what was removed, as plain data."""
        return cache_document(self.report)

    def render(
        self,
        *,
        width: int = 80,
        color: bool = False,
        verbose: bool = False,  # noqa: ARG002 - all is shown already
    ) -> str:
        """Return text for a terminal."""
        return cache_text(self.report, width=width, color=color)


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


__all__ = ["KeptEnvironment", "drop_environments", "find_environments", "render_environments"]


def find_environments(cache_dir: Path | None) -> list[KeptEnvironment]:
    """Return the environments that were made for models, the most recently used first."""
    return list_environments(cache_dir or default_cache_dir())


def drop_environments(
    cache_dir: Path | None, names: Sequence[str], *, older_than: float | None = None
) -> list[KeptEnvironment]:
    """Remove environments; return those that are gone.

    Raises:
        UsageError: a name that is none's.
    """
    return remove_environments(cache_dir or default_cache_dir(), names, older_than=older_than)


def render_environments(found: Sequence[KeptEnvironment]) -> str:
    """Return environments as text, two lines each."""
    lines = []
    for entry in found:
        lines += [
            f"{Path(entry.path).name[:16]}  Python {entry.python}, {size_text(entry.size)}",
            f"  {', '.join(entry.requirements)}",
        ]
    return "\n".join(lines) or "There are none."
