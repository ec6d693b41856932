"""The parquet files of a finished run folder, read back."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from evalguard.errors import StoreError
from evalguard.store.damaged_files import DamagedBlockError
from evalguard.store.table_limits import check_size

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq


_DAMAGED = (OSError, ValueError, TypeError, MemoryError, RecursionError, DamagedBlockError)


def sample_files(folder: Path) -> dict[str, Path]:
    """Return the file of each task's documents in a run folder, in the order of their names.

    Raises:
        StoreError: a file there is not as evalguard writes it.
    """
    return _by_task(sorted((folder / "samples").glob("*.parquet")))


def token_files(folder: Path) -> dict[str, Path]:
    """Return the file of each task's scored tokens, likewise."""
    return _by_task(sorted(folder.glob("tokens-*.parquet")))


def sample_column_names(file: Path) -> list[str]:
    """Return the names of the columns that ``RunFolder.write_samples`` was given.

    Raises:
        StoreError: the file is damaged.
    """
    with _open_table(file) as opened:
        names: list[str] = opened.schema_arrow.names
    return names


def read_samples(file: Path, names: Collection[str] | None = None) -> dict[str, list[Any]]:
    """Return the columns that ``RunFolder.write_samples`` was given, as Python's own values.

    Args:
        names: those that are wanted, of which the file may lack some; None: all.

    Raises:
        StoreError: the file is damaged.
    """
    table = _read_columns(file, names)
    with _damage_as_error(file):
        return {
            field.name: _column_values(table.column(field.name), field) for field in table.schema
        }


class SampleColumns(Mapping[str, Sequence[Any]]):
    """The columns that ``RunFolder.write_samples`` was given, read when asked for.

    Raises:
        StoreError: the file is damaged, when it is opened or when a column is asked for.
    """

    def __init__(self, file: Path, picked: pa.Table | None = None) -> None:
        self._file, self._picked = file, picked
        if picked is None:
            with _open_table(file) as opened:
                self._schema = opened.schema_arrow
        else:
            self._schema = picked.schema
        self._made: dict[str, list[Any]] = {}

    def __getitem__(self, name: str) -> list[Any]:
        if name not in self._made:
            if name not in self._schema.names:
                raise KeyError(name)
            table = self._picked
            if table is None:
                table = _read_columns(self._file, [name])
            with _damage_as_error(self._file):
                self._made[name] = _column_values(table.column(name), table.schema.field(name))
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        names: list[str] = self._schema.names
        return iter(names)

    def __len__(self) -> int:
        return len(self._schema.names)

    def pick(self, positions: Sequence[int]) -> SampleColumns:
        """All columns of the documents at these positions, which ascend."""
        import pyarrow as pa

        chosen, first = np.asarray(positions, dtype=np.int64), 0
        columns: dict[str, list[pa.Array]] = {name: [] for name in self._schema.names}
        with _open_table(self._file) as opened:
            check_size(opened.metadata, range(opened.num_row_groups))
            for number in range(opened.num_row_groups):
                rows = opened.metadata.row_group(number).num_rows
                own = chosen[(chosen >= first) & (chosen < first + rows)] - first
                taken = pa.Array.from_buffers(pa.int64(), own.size, [None, pa.py_buffer(own)])
                for name, parts in columns.items():  # one at a time, which takes least memory
                    group = opened.read_row_group(number, columns=[name], use_threads=False)
                    parts += group.take(taken).column(name).chunks
                first += rows
        pa.default_memory_pool().release_unused()
        arrays = [
            pa.chunked_array(parts, field.type)
            for field, parts in zip(self._schema, columns.values(), strict=True)
        ]
        return SampleColumns(self._file, pa.Table.from_arrays(arrays, schema=self._schema))


def read_sample_facts(file: Path) -> dict[str, Any]:
    """Return what ``RunFolder.write_samples`` was told of all documents; {} for an older file.

    Raises:
        StoreError: the file is damaged.
    """
    with _open_table(file) as opened:
        metadata: Mapping[bytes, bytes] = opened.schema_arrow.metadata or {}
        found = json.loads(metadata.get(b"facts", b"{}"))
        if not isinstance(found, dict):
            raise DamagedBlockError("its facts are none")
        return found


def read_tokens(file: Path) -> dict[str, NDArray[Any]]:
    """Return the columns that ``RunFolder.write_tokens`` was given.

    Raises:
        StoreError: the file is damaged.
    """
    table = _read_columns(file)
    with _damage_as_error(file):
        return {name: table.column(name).to_numpy() for name in table.column_names}


def _column_values(column: pa.ChunkedArray, field: pa.Field) -> list[Any]:
    values: list[Any] = column.to_pylist()
    if (field.metadata or {}).get(b"json"):
        return [None if text is None else json.loads(text) for text in values]
    return values


def _by_task(files: list[Path]) -> dict[str, Path]:
    found = {}
    for path in files:
        with _open_table(path) as file:
            metadata: Mapping[bytes, bytes] = file.schema_arrow.metadata or {}
        found[metadata.get(b"task", path.stem.encode()).decode("utf-8", "replace")] = path
    return found


def _read_columns(path: Path, names: Collection[str] | None = None) -> pa.Table:
    with _open_table(path) as file:
        check_size(file.metadata, range(file.num_row_groups))
        columns = None
        if names is not None:
            columns = [name for name in file.schema_arrow.names if name in names]
        return file.read(columns=columns, use_threads=False)


@contextmanager
def _open_table(path: Path) -> Iterator[pq.ParquetFile]:
    import pyarrow.parquet as pq

    with _damage_as_error(path), pq.ParquetFile(path) as file:
        yield file


@contextmanager
def _damage_as_error(path: Path) -> Iterator[None]:
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, *_DAMAGED) as error:
        raise StoreError(
            f"{path} is damaged: {error or type(error).__name__}",
            hint="compare again, or remove the file to do without it",
        ) from error
