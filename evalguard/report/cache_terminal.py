"""The score cache for a person and a program: what it holds, and what was removed."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from datetime import datetime, timezone
from typing import Any

from rich.text import Text

from evalguard.core.amounts import size_text
from evalguard.core.reports.cache_listings import (
    SCHEMA,
    CacheListing,
    CachePruning,
    KeptFolder,
)
from evalguard.report.table import Table
from evalguard.report.terminal_page import render_page, wrap_prose
from evalguard.report.words.plain_text import fit_text, printable
from evalguard.report.words.rounding import format_count

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
