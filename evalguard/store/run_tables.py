"""The parquet files of a finished run folder, read back."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from evalguard.errors import StoreError
from evalguard.store.damage import DamagedBlockError
from evalguard.store.parquet_limits import check_size

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq


def sample_files(folder: Path) -> dict[str, Path]:
    """Return the file of each task's documents in a run folder, in the order of their names.

    Raises:
        StoreError: a file there is not as evalguard writes it.
    """
    return _by_task(sorted((folder / "samples").glob("*.parquet")))


def token_files(folder: Path) -> dict[str, Path]:
    """Return the file of each task's scored tokens, likewise."""
    return _by_task(sorted(folder.glob("tokens-*.parquet")))


def read_samples(file: Path) -> dict[str, list[Any]]:
    """Return the columns that ``RunFolder.write_samples`` was given, as Python's own values.

    Raises:
        StoreError: the file is damaged.
    """
    return {
        name: [None if text is None else json.loads(text) for text in column]
        if (field.metadata or {}).get(b"json")
        else column
        for field, name, column in _columns(_table(file))
    }


def read_tokens(file: Path) -> dict[str, NDArray[Any]]:
    """Return the columns that ``RunFolder.write_tokens`` was given.

    Raises:
        StoreError: the file is damaged.
    """
    table = _table(file)
    with _refusing(file):
        return {name: table.column(name).to_numpy() for name in table.column_names}


def _columns(table: pa.Table) -> Iterator[tuple[pa.Field, str, list[Any]]]:
    for field in table.schema:
        yield field, field.name, table.column(field.name).to_pylist()


def _by_task(files: list[Path]) -> dict[str, Path]:
    found = {}
    for path in files:
        with _opened(path) as file:
            metadata: Mapping[bytes, bytes] = file.schema_arrow.metadata or {}
        found[metadata.get(b"task", path.stem.encode()).decode("utf-8", "replace")] = path
    return found


def _table(path: Path) -> pa.Table:
    with _opened(path) as file:
        check_size(file.metadata, range(file.num_row_groups))
        return file.read(use_threads=False)


@contextmanager
def _opened(path: Path) -> Iterator[pq.ParquetFile]:
    import pyarrow.parquet as pq

    with _refusing(path), pq.ParquetFile(path) as file:
        yield file


@contextmanager
def _refusing(path: Path) -> Iterator[None]:
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, ValueError, MemoryError, DamagedBlockError) as error:
        raise StoreError(
            f"{path} is damaged: {error or type(error).__name__}",
            hint="compare again, or remove the file to do without it",
        ) from error
