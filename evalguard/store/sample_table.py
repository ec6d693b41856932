"""Per-document samples as a compressed columnar file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from evalguard.core.documents.columns import Column, Lists, Numbers, Texts

if TYPE_CHECKING:
    import pyarrow as pa


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
