"""Leftovers: what killed processes left half-written, removed once it is surely nobody's."""

from __future__ import annotations

import contextlib
import re
import shutil
import time
from collections.abc import Iterable
from pathlib import Path

# Writing takes seconds. A process's number says nothing: it may be of another machine (a shared
# disk) or container, or be used again; so age decides.
_ABANDONED = 24 * 3600.0
_OLD_LOG = 30 * 24 * 3600.0

# Only names that evalguard itself gives: a folder of results may hold anything.
_HALF_FILE = re.compile(r"\..+\.\d+-[0-9a-f]{8}\.partial")
_HALF_RUN = re.compile(r"\.\d{8}T\d{6}Z-.+-vs-.+\.partial")
_PROBE = re.compile(r"\.evalguard-[0-9a-f]{8}")
_LOG = re.compile(r"worker-\d+-.*\.log")


def remove_from_reports(root: Path) -> None:
    """Remove run folders that were never finished, and what went into them."""
    _remove(root.glob(".*"), (_HALF_RUN, _HALF_FILE, _PROBE), older=_ABANDONED)


def remove_from_cache(cache_dir: Path) -> None:
    """Remove half-written blocks and floors, and logs of workers that nobody will read."""
    for kept in ("scores", "divergences", "references", "floors"):
        _remove((cache_dir / kept).glob("*/*/.*"), (_HALF_FILE,), older=_ABANDONED)
    _remove((cache_dir / "logs").glob("worker-*"), (_LOG,), older=_OLD_LOG)


def _remove(paths: Iterable[Path], names: Iterable[re.Pattern[str]], *, older: float) -> None:
    # Tidying is not worth an error: what cannot be looked at or removed stays.
    with contextlib.suppress(OSError):
        for path in paths:
            if any(name.fullmatch(path.name) for name in names):
                _remove_if_old(path, older)


def _remove_if_old(path: Path, older: float) -> None:
    with contextlib.suppress(OSError):
        if time.time() - path.lstat().st_mtime < older:
            return
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()
