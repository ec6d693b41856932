"""A base that is not run: what a run folder, or a history, kept of its scores."""

from __future__ import annotations

from pathlib import Path

from evalguard import tools
from evalguard.comparison.stored_sides import read_base_of_run
from evalguard.engine.sources import BaselineScores
from evalguard.errors import UsageError
from evalguard.regular_file import open_regular

_SQLITE_HEADER = b"SQLite format 3\x00"
_PARQUET_HEADER = b"PAR1"
_RESULT = "result.json"


def is_stored_base(path: Path) -> bool:
    """Whether a base's scores are there: in a run folder, its result.json, or a history."""
    try:
        if path.is_dir():
            return (path / _RESULT).is_file()
        return path.is_file() and (path.name == _RESULT or _is_sqlite(path))
    except OSError:
        return False


def read_baseline(path: Path, *, base: str, candidate: str) -> BaselineScores:
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
    if path.is_file() and _is_sqlite(path):
        stored: BaselineScores = tools.fetch("read_base_of_history")(path, base, candidate)
        return stored
    return read_base_of_run(path, base)


def is_parquet(path: Path) -> bool:
    """Whether a parquet file is there, as references are."""
    try:
        return path.is_file() and _begins_with(path, _PARQUET_HEADER)
    except OSError:
        return False


def _is_sqlite(path: Path) -> bool:
    return _begins_with(path, _SQLITE_HEADER)


def _begins_with(path: Path, header: bytes) -> bool:
    try:
        with open_regular(path) as file:
            return file.read(len(header)) == header
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
