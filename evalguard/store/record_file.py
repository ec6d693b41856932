"""Records of scored positions (Divergence, Reference) as one parquet file: a row per request.

An array of shape (T,) or (T, k) is a list in its row; k, and whatever is not an array and the
same in all records, is in the file's metadata. Floats are stored split by byte, which compresses
them best.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from evalguard.store.damaged_files import DamagedBlockError
from evalguard.store.seal import UNSEALED
from evalguard.store.table_limits import read_table

if TYPE_CHECKING:
    import pyarrow as pa


R = TypeVar("R")
Facts = Mapping[str, str]


def records_to_bytes(records: Sequence[R | None], facts: Facts) -> memoryview:
    """Return the file of records of one class, unsealed; None is a row of nulls.

    Args:
        facts: what the file says of itself, which it must say when it is read.

    Raises:
        ValueError: for records that differ in what is not an array.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = records_to_table(records, {**facts, "seal": UNSEALED})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **parquet_options(table))
    return memoryview(sink.getvalue())


def records_from_bytes(
    kind: type[R], data: bytes, facts: Facts
) -> tuple[list[R | None], dict[str, str]]:
    """Read a file back.

    Returns:
        The records, and everything that the file says of itself.

    Raises:
        DamagedBlockError: it is of another format, or says other ``facts``.
    """
    table = read_table(data)
    said = read_table_facts(table)
    for name, value in facts.items():
        if said.get(name) != value:
            raise DamagedBlockError(f"it says {name} {said.get(name)!r}, not {value!r}")
    return records_from_table(kind, table), said


def records_to_table(records: Sequence[R | None], facts: Facts) -> pa.Table:
    """Return records as a table whose metadata holds ``facts`` and all that is not a column."""
    import pyarrow as pa

    shared: dict[str, Any] = {}
    widths: dict[str, int] = {}
    arrays = []
    present = [record for record in records if record is not None]
    for name in _field_names(present):
        first = getattr(present[0], name)
        if isinstance(first, np.ndarray):
            widths[name] = 0 if first.ndim == 1 else first.shape[1]
            arrays.append(list_column([None if r is None else getattr(r, name) for r in records]))
        elif any(getattr(record, name) != first for record in present):
            raise ValueError(f"records differ in {name}")
        else:
            shared[name] = first
    about = json.dumps({"rows": len(records), "shared": shared, "widths": widths})
    schema = pa.schema(
        [pa.field(name, array.type) for name, array in zip(widths, arrays, strict=True)],
        metadata={"records": about, **facts},
    )
    return pa.Table.from_arrays(arrays, schema=schema)


def records_from_table(kind: type[R], table: pa.Table) -> list[R | None]:
    """Read records back from what ``records_to_table`` made of them.

    Raises:
        DamagedBlockError: the table holds no such records.
    """
    try:
        about = json.loads(read_table_facts(table)["records"])
        widths, shared = about["widths"], about["shared"]
        columns = {
            name: read_list_column(table.column(name), width) for name, width in widths.items()
        }
        rows = range(int(about["rows"]))
        fields = [{name: column[row] for name, column in columns.items()} for row in rows]
        return [
            None if any(array is None for array in of.values()) or not of else kind(**shared, **of)
            for of in fields
        ]
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise DamagedBlockError("it does not hold the records that it says") from error


def parquet_options(table: pa.Table) -> dict[str, Any]:
    """How such tables are written: zstd; floats split by byte."""
    import pyarrow as pa

    floats = [
        f.name for f in table.schema if pa.types.is_floating(getattr(f.type, "value_type", f.type))
    ]
    return {
        "compression": "zstd",
        "use_dictionary": False,
        "use_byte_stream_split": [f"{name}.list.element" for name in floats],
    }


def read_table_facts(table: pa.Table) -> dict[str, str]:
    """What a file says of itself."""
    return {k.decode(): v.decode() for k, v in (table.schema.metadata or {}).items()}


def _field_names(records: Sequence[Any]) -> list[str]:
    return [field.name for field in dataclasses.fields(records[0])] if records else []


def list_column(values: Sequence[np.ndarray | None], kind: str = "float64") -> pa.Array:
    """Return arrays of any shape as a column of lists; None is null.

    Args:
        kind: dtype of the numbers, for where there may be no array at all.
    """
    import pyarrow as pa

    lengths = np.array([0 if value is None else value.size for value in values])
    ends = np.cumsum(lengths).tolist()
    starts = [None if v is None else end - v.size for v, end in zip(values, ends, strict=True)]
    flat = [value.ravel() for value in values if value is not None]
    offsets = pa.array([*starts, ends[-1]], pa.int32())
    joined = np.concatenate(flat) if flat else np.empty(0, dtype=kind)
    return pa.ListArray.from_arrays(offsets, pa.array(joined))


def read_list_column(column: pa.ChunkedArray, width: int) -> list[np.ndarray | None]:
    """Read arrays back: of shape (T,) for a width of 0, else (T, width)."""
    found: list[np.ndarray | None] = []
    for chunk in column.chunks:
        flat = chunk.values.to_numpy(zero_copy_only=False)
        offsets, valid = chunk.offsets.to_numpy(), chunk.is_valid().to_numpy(zero_copy_only=False)
        for row, there in enumerate(valid):
            part = flat[offsets[row] : offsets[row + 1]]
            found.append((part.reshape(-1, width) if width else part) if there else None)
    return found
