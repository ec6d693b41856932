"""Baseline: what ``--baseline`` names, a run folder or a history, as the base of a comparison."""

from __future__ import annotations

from pathlib import Path

from evalguard.errors import UsageError
from evalguard.pipeline.baseline.from_history import base_of_history
from evalguard.pipeline.baseline.from_run import base_of_run
from evalguard.pipeline.baseline.kept_run import KeptRun

_SQLITE = b"SQLite format 3\x00"


def read_baseline(path: Path, *, base: str, candidate: str) -> KeptRun:
    """Read the stored base.

    Args:
        path: of a run folder, its result.json, or a history.
        base: name of the model that is meant, where there are several; "" for the obvious one.
        candidate: what it will be compared with.

    Raises:
        UsageError: there is nothing of the kind, or it kept too little.
        StoreError: it is damaged.
        MisalignedRunsError: its files are not of one run.
    """
    path = path.expanduser()
    if not path.exists():
        raise UsageError(
            f"--baseline: there is no {path}",
            hint="give a run folder (reports/<time>-<base>-vs-<cand>) or a history file",
        )
    if path.is_file() and _is_sqlite(path):
        return base_of_history(path, base, candidate)
    return base_of_run(path, base)


def _is_sqlite(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(_SQLITE)) == _SQLITE
    except OSError as error:
        raise UsageError(f"--baseline: {path} cannot be read: {error.strerror}") from error
