"""Leftovers: what killed processes left half-written, removed once it is surely nobody's."""

from __future__ import annotations

import contextlib
import re
import shutil
import time
from collections.abc import Iterable
from pathlib import Path

from evalguard.store.cache_items import (
    HALF_FILE,
    LOG_FILE,
    list_entries,
    list_folders,
)
from evalguard.store.cache_layout import BLOCK_KINDS
from evalguard.store.leases import Lease

# Writing takes seconds. A process's number says nothing: it may be of another machine (a shared
# disk) or container, or be used again; so age decides.
_ABANDONED_AFTER = 24 * 3600.0
_OLD_LOG = 30 * 24 * 3600.0

# Only names that evalguard itself gives: a folder of results may hold anything.
_HALF_RUN = re.compile(r"\.\d{8}T\d{6}Z-.+-vs-.+\.partial")
_PROBE = re.compile(r"\.evalguard-[0-9a-f]{8}")


def remove_unfinished_runs(root: Path) -> None:
    """Remove run folders that were never finished, and what went into them."""
    _remove(root.glob(".*"), (_HALF_RUN, HALF_FILE, _PROBE), older=_ABANDONED_AFTER)


def remove_leftovers(cache_dir: Path) -> None:
    """Remove half-written files, locks of nobody, and logs of workers that nobody will read.

    Links are not followed.
    """
    for kind in (*BLOCK_KINDS, "floors", "facts"):
        for folder in (
            inner for outer in list_folders(cache_dir / kind) for inner in list_folders(outer)
        ):
            found = list_entries(folder)
            hidden = (Path(entry) for entry in found if entry.name.startswith("."))
            _remove(hidden, (HALF_FILE,), older=_ABANDONED_AFTER)
            for lock in (Path(entry) for entry in found if entry.name.endswith(".lock")):
                _remove_dead_lock(lock)
    _remove(map(Path, list_entries(cache_dir / "logs")), (LOG_FILE,), older=_OLD_LOG)


def _remove_dead_lock(lock: Path) -> None:
    """Remove the lock of a process that was killed."""
    with contextlib.suppress(OSError):
        held = Lease.tried(lock) if _is_old(lock, _ABANDONED_AFTER) else None
        if held is not None:
            held.release()


def _remove(paths: Iterable[Path], names: Iterable[re.Pattern[str]], *, older: float) -> None:
    # Tidying is not worth an error: what cannot be looked at or removed stays.
    with contextlib.suppress(OSError):
        for path in paths:
            if any(name.fullmatch(path.name) for name in names):
                _remove_if_old(path, older)


def _remove_if_old(path: Path, older: float) -> None:
    with contextlib.suppress(OSError):
        if not _is_old(path, older):
            return
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()


def _is_old(path: Path, older: float) -> bool:
    return time.time() - path.lstat().st_mtime >= older
