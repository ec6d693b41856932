"""The parquet files of a finished run folder, written and read back."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from evalguard.core.document_columns import Column, Lists, Numbers, Texts
from evalguard.errors import StoreError
from evalguard.store.answer_table import check_size
from evalguard.store.atomic_files import DamagedBlockError

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
        facts = json.loads(metadata.get(b"facts", b"{}"))
        if not isinstance(facts, dict):
            raise DamagedBlockError("its facts are none")
        return facts


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
    by_task = {}
    for path in files:
        with _open_table(path) as file:
            metadata: Mapping[bytes, bytes] = file.schema_arrow.metadata or {}
        by_task[metadata.get(b"task", path.stem.encode()).decode("utf-8", "replace")] = path
    return by_task


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


SAMPLES_FORMAT = "evalguard.samples/1"


def write_sample_table(
    file: BinaryIO,
    task: str,
    columns: Mapping[str, Sequence[Any]],
    facts: Mapping[str, Any] | None = None,
) -> None:
    """Write ``columns`` (name to one value per document) as a zstd-compressed parquet file.

    ``facts``, what is true of all documents, are in the file's metadata, as JSON.

    Booleans, integers, floats and strings, and lists of them, become columns of that type. A column
    with anything else in it, or a mixture, holds JSON text, as its field metadata says.

    Raises:
        ValueError: for columns of different lengths.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"sample columns of '{task}' differ in length: {lengths}")
    arrays, fields = [], []
    for name, values in columns.items():
        array, is_json = _build_column(values)
        arrays.append(array)
        fields.append(pa.field(name, array.type, metadata={"json": "1"} if is_json else None))
    metadata = {"format": SAMPLES_FORMAT, "task": _encodable(task)}
    if facts is not None:
        metadata["facts"] = json.dumps(_plain(facts))
    schema = pa.schema(fields, metadata=metadata)
    table = pa.Table.from_arrays(arrays, schema=schema)
    pq.write_table(table, file, compression="zstd", row_group_size=_GROUP)
    pa.default_memory_pool().release_unused()


_GROUP = 16_384  # documents that are packed, and read, together


def _build_column(values: Sequence[Any]) -> tuple[pa.Array, bool]:
    """Return a column and whether it had to become JSON text."""
    import pyarrow as pa

    if isinstance(values, Column):
        packed = _pack_column(values)
        if packed is not None:
            return packed, False
        values = list(values)
    kind = _type_of(values)
    if kind is not None:
        try:
            return pa.array(values if _is_plain(values) else _plain(values), kind), False
        except (OverflowError, pa.ArrowException):
            pass  # an integer beyond 64 bits: JSON keeps it
        except UnicodeEncodeError:
            return pa.array(_plain(values), kind), False
    texts = [None if value is None else json.dumps(_plain(value)) for value in values]
    return pa.array(texts, pa.string()), True


def _pack_column(column: Column) -> pa.Array | None:
    """A column as it lies in memory; None for texts that UTF-8 cannot hold, or too many of them."""
    import pyarrow as pa

    if isinstance(column, Lists):
        items = _pack_column(column.items)
        if items is None or len(items) > _MOST_AT_ONCE:
            return None
        bounds = pa.py_buffer(column.bounds.astype(np.int32))
        kind = pa.list_(items.type)
        return pa.Array.from_buffers(kind, len(column), [None, bounds], children=[items])
    if not isinstance(column, (Texts, Numbers)):
        return None
    if not len(column) or (column.known is not None and not column.known.any()):
        return pa.nulls(len(column))
    known = _packed_flags(column.known)
    if isinstance(column, Numbers):
        values, kind = column.values, pa.from_numpy_dtype(column.values.dtype)
        data = _packed_flags(values) if values.dtype == np.bool_ else pa.py_buffer(values)
        return pa.Array.from_buffers(kind, len(column), [known, data])
    if not column.is_utf8 or len(column.data) > _MOST_AT_ONCE:
        return None
    buffers = [known, pa.py_buffer(column.bounds.astype(np.int32)), pa.py_buffer(column.data)]
    return pa.Array.from_buffers(pa.string(), len(column), buffers)


_MOST_AT_ONCE = 2**31 - 1  # bytes or items in one arrow array


def _packed_flags(flags: NDArray[Any] | None) -> pa.Buffer | None:
    import pyarrow as pa

    return None if flags is None else pa.py_buffer(np.packbits(flags, bitorder="little"))


def _is_plain(values: Sequence[Any]) -> bool:
    """Whether values are Python's own, one deep or two, so that arrow takes them as they are."""
    kinds = set(map(type, values)) - {type(None)}
    if kinds == {list}:
        kinds = set(map(type, chain.from_iterable(filter(None, values)))) - {type(None)}
    return kinds <= _PLAIN_TYPES


def _type_of(values: Sequence[Any]) -> pa.DataType | None:
    """Return the arrow type that holds every value, or None if there is no such type."""
    import pyarrow as pa

    kinds = {_kind(kind) for kind in set(map(type, values)) - {type(None)}}
    if not kinds:
        return pa.null()
    if kinds == {list}:
        present = (value for value in values if value is not None)
        inner = _type_of(list(chain.from_iterable(present)))
        return None if inner is None else pa.list_(inner)
    if kinds == {int, float}:
        return pa.float64()
    types = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string()}
    return types.get(kinds.pop()) if len(kinds) == 1 else None


def _kind(kind: type) -> type:
    """The Python type that values of this type become."""
    if issubclass(kind, (list, tuple, np.ndarray)):
        return list
    if issubclass(kind, np.str_):
        return str
    if issubclass(kind, np.generic):
        return type(kind(0).item()) if issubclass(kind, (np.number, np.bool_)) else kind
    return kind


_PLAIN_TYPES = frozenset({bool, int, float, str})


def _plain(value: Any) -> Any:
    """Return ``value`` in plain Python: lists, and text that UTF-8 can hold."""
    if isinstance(value, str):
        return _encodable(value)
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {_encodable(str(key)): _plain(item) for key, item in value.items()}
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return _encodable(str(value))


def _encodable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


TOKENS_FORMAT = "evalguard.tokens/1"


def tokens_to_parquet(task: str, columns: Mapping[str, NDArray[np.generic]]) -> memoryview:
    """Return ``columns`` (name to one number or text per token) as a zstd-compressed parquet file.

    Raises:
        ValueError: for columns of different lengths.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    lengths = {name: values.shape[0] for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"token columns of '{task}' differ in length: {lengths}")
    name = task.encode("utf-8", "backslashreplace").decode()
    table = pa.table(
        {name: pa.array(_encodable_tokens(values)) for name, values in columns.items()}
    )
    table = table.replace_schema_metadata({"format": TOKENS_FORMAT, "task": name})
    sink = pa.BufferOutputStream()
    floats = [name for name, values in columns.items() if values.dtype.kind == "f"]
    pq.write_table(
        table,
        sink,
        compression="zstd",
        use_dictionary=[name for name in columns if name not in floats],
        use_byte_stream_split=floats,
    )
    return memoryview(sink.getvalue())


def _encodable_tokens(values: NDArray[np.generic]) -> NDArray[np.generic] | list[str]:
    """Texts that UTF-8 can hold; numbers as they are."""
    if values.dtype.kind != "O":
        return values
    return [text.encode("utf-8", "backslashreplace").decode() for text in values.tolist()]
