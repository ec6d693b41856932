"""Where nights lie: one folder each, and which of them are finished."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from evalguard.core.reports.night_report import SCHEMA, PairNight
from evalguard.core.settings import Value
from evalguard.errors import StoreError
from evalguard.regular_file import read_regular_text
from evalguard.run.nightly.pair_record import read_pair
from evalguard.store.night_journal import NightJournal

JOURNAL_SCHEMA = "evalguard.night-journal/1"
NIGHT_RESULT = "night.json"
_FOLDER_TIME = "%Y%m%dT%H%M%SZ"


def new_night_folder(root: Path, now: datetime) -> Path:
    """A folder for a night that begins now; it is not made yet."""
    name = now.astimezone(timezone.utc).strftime(_FOLDER_TIME)
    place, number = root / name, 1
    while place.exists():
        number += 1
        place = root / f"{name}-{number}"
    return place


def find_unfinished_night(root: Path, head: Mapping[str, Value], *, since: datetime) -> Path | None:
    """The latest night of the same kind that began since then and was never finished.

    Args:
        head: what its journal has to begin with, but for the time.
    """
    for folder in reversed(list(_night_folders(root))):
        if (folder / NIGHT_RESULT).exists():
            continue
        found = NightJournal(folder).head
        same = {name: found.get(name) for name in head} == dict(head)
        if same and str(found.get("created", "")) >= since.isoformat(timespec="seconds"):
            return folder
    return None


def latest_night_name(root: Path) -> str:
    """Name of the night that is the latest by its name, finished or not; "" for none."""
    return max((folder.name for folder in _night_folders(root)), default="")


def read_last_night(
    root: Path, guard: str, *, before: Path
) -> tuple[str, tuple[PairNight, ...]] | None:
    """When the night before was, and what its pairs came to; None for the first one."""
    for folder in reversed(list(_night_folders(root))):
        if folder.name >= before.name:
            continue
        document = _read_result(folder / NIGHT_RESULT)
        if document is not None and document.get("guard") == guard:
            try:
                return str(document["created"]), tuple(map(read_pair, document["pairs"]))
            except (StoreError, TypeError, KeyError):
                continue
    return None


def list_unfinished_nights(root: Path, guard: str, *, before: Path) -> tuple[dict[str, Any], ...]:
    """Records of the nights directly before that their process did not live to finish.

    Args:
        guard: digest of the guard files: where they changed, what died may be mended.
    """
    found: list[dict[str, Any]] = []
    for folder in reversed(list(_night_folders(root))):
        if folder.name >= before.name:
            continue
        journal = NightJournal(folder)
        if journal.head.get("guard") != guard:
            continue
        if (folder / NIGHT_RESULT).exists():
            break
        found += journal.records
    return tuple(found)


def hours_ago(hours: float) -> datetime:
    """The time so many hours ago."""
    return datetime.now(timezone.utc) - timedelta(hours=hours)


def _night_folders(root: Path) -> Iterator[Path]:
    """Folders of nights, the oldest first: they are named by their time."""
    for folder in sorted(root.glob("[0-9]*T[0-9]*Z*")):
        if folder.is_dir() and not folder.is_symlink():
            yield folder


def _read_result(path: Path) -> dict[str, Any] | None:
    try:
        document = json.loads(read_regular_text(path))
    except (OSError, ValueError, RecursionError):
        return None
    known = isinstance(document, dict) and document.get("schema") == SCHEMA
    return document if known else None
