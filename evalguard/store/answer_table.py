"""Answers to requests as columns of a parquet table; one finished block of them is one file.

An array of shape (T,) or (T, k) is a list in its row; k, and whatever is not an array and the
same in all records, is in the file's metadata. Floats are stored split by byte, which compresses
them best.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from evalguard.core.scorer import Ending, Response
from evalguard.core.shown_tokens import GeneratedTokens, TopLogprobs
from evalguard.store.atomic_files import DamagedBlockError
from evalguard.store.sealed_files import UNSEALED

if TYPE_CHECKING:
    import pyarrow as pa

# 128 documents of 65,000 tokens with 64 kept ones each are 2**29 values.
MOST_VALUES, MOST_BYTES = 2**29, 2**34


def read_table(data: bytes) -> pa.Table:
    """Read a small parquet file in one go.

    Raises:
        DamagedBlockError: it is none, or says that it is larger than a block can be.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(pa.BufferReader(data))
        check_size(file.metadata, range(file.num_row_groups))
        return file.read(use_threads=False)
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        raise DamagedBlockError("it cannot be read as parquet") from error


def check_size(metadata: Any, groups: Iterable[int]) -> None:
    """Refuse row groups that say they are too large, before memory is taken for them.

    Args:
        metadata: pyarrow's FileMetaData.

    Raises:
        DamagedBlockError: so they say.
    """
    values = size = 0
    for number in groups:
        group = metadata.row_group(number)
        of_columns = [group.column(column).num_values for column in range(group.num_columns)]
        values += max(group.num_rows, *of_columns, 0)
        size += group.total_byte_size
    if values > MOST_VALUES or size > MOST_BYTES:
        raise DamagedBlockError("it says that it is larger than a block can be")


SCORES_FORMAT = "evalguard.scores/1"
# Text is kept as bytes: generated text may hold lone surrogates, which parquet strings cannot.
_SURROGATES = "surrogatepass"
# Few models have these, and files from before they were kept have none.
# Each with the field of ``Response`` that it is of.
OPTIONAL_COLUMNS: Mapping[str, str] = {
    "top_logprobs": "top_logprobs",
    "ended": "ended",
    "generated_ids": "generated",
    "generated_margins": "generated",
    "generated_others": "generated",
    "message": "message",
}


def block_to_bytes(key: str, block: str, responses: Sequence[Response]) -> memoryview:
    """Return the unsealed file of ``responses``; numbers keep their bits (NaN and -0.0 too)."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    facts = {"format": SCORES_FORMAT, "key": key, "block": block, "seal": UNSEALED}
    # Files of models without them stay, to the byte, as they were.
    present = {
        field
        for field in dict.fromkeys(OPTIONAL_COLUMNS.values())
        if any(getattr(response, field) not in (None, "") for response in responses)
    }
    absent = [name for name, field in OPTIONAL_COLUMNS.items() if field not in present]
    table = answers_to_table(responses).drop_columns(absent).replace_schema_metadata(facts)
    sink = pa.BufferOutputStream()
    # Dictionary pages may merge NaNs of different bits, so no column gets one.
    pq.write_table(table, sink, compression="zstd", use_dictionary=False)
    return memoryview(sink.getvalue())


def block_from_bytes(data: bytes, key: str, block: str) -> list[Response]:
    """Read a file back.

    Raises:
        DamagedBlockError: it is of another format, or another block's.
    """
    table = read_table(data)
    facts = {k.decode(): v.decode() for k, v in (table.schema.metadata or {}).items()}
    if facts.get("format") != SCORES_FORMAT:
        raise DamagedBlockError("it is not a block of scores of this version")
    if (facts.get("key"), facts.get("block")) != (key, block):
        raise DamagedBlockError("it belongs to another model or other requests")
    if not has_answers(table.schema):
        raise DamagedBlockError("it does not hold the answers that it says")
    return answers_from_table(table)


def answer_schema() -> pa.Schema:
    """A column for every field of ``Response``."""
    import pyarrow as pa

    return pa.schema(
        [
            ("loglikelihood", pa.float64()),
            ("is_greedy", pa.bool_()),
            ("text", pa.binary()),
            ("token_logprobs", pa.list_(pa.float64())),
            ("token_hash", pa.string()),
            ("n_tokens", pa.int64()),
            ("truncated", pa.bool_()),
            # As JSON, whose numbers come back to the last bit, and which can say any text.
            ("top_logprobs", pa.binary()),
            ("ended", pa.string()),
            ("generated_ids", pa.list_(pa.int32())),
            ("generated_margins", pa.list_(pa.float32())),
            ("generated_others", pa.list_(pa.int32())),
            ("message", pa.binary()),
        ]
    )


def has_answers(schema: pa.Schema) -> bool:
    """Whether these are the columns of answers, and no others; later ones may be missing."""
    return bool(schema.equals(written_before(answer_schema(), schema)))


def written_before(
    wanted: pa.Schema, found: pa.Schema, optional: Collection[str] = OPTIONAL_COLUMNS.keys()
) -> pa.Schema:
    """A schema without the columns that a file may lack, and does."""
    import pyarrow as pa

    lacking = {name for name in optional if name not in found.names}
    return pa.schema([field for field in wanted if field.name not in lacking])


def answers_to_table(responses: Sequence[Response]) -> pa.Table:
    """Return responses as a table with all columns of ``answer_schema``, a row each."""
    import pyarrow as pa

    values: Mapping[str, list[Any]] = {
        "loglikelihood": [r.loglikelihood for r in responses],
        "is_greedy": [None if r.is_greedy is None else bool(r.is_greedy) for r in responses],
        "text": [
            None if r.text is None else r.text.encode("utf-8", _SURROGATES) for r in responses
        ],
        "token_logprobs": [_as_float64(r.token_logprobs) for r in responses],
        "token_hash": [r.token_hash for r in responses],
        "n_tokens": [int(r.n_tokens) for r in responses],
        "truncated": [bool(r.truncated) for r in responses],
        "top_logprobs": [_shown_bytes(r.top_logprobs) for r in responses],
        "ended": [r.ended for r in responses],
        "message": [r.message.encode("utf-8", _SURROGATES) for r in responses],
        **{
            f"generated_{name}": [
                None if r.generated is None else getattr(r.generated, name) for r in responses
            ]
            for name in ("ids", "margins", "others")
        },
    }
    schema = answer_schema()
    columns = [pa.array(values[field.name], field.type) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def answers_from_table(table: pa.Table) -> list[Response]:
    """Read responses back from a table of which ``has_answers`` holds.

    Raises:
        DamagedBlockError: a value is none of the field's.
    """
    columns = {name: table.column(name).to_pylist() for name in table.column_names}
    for name in OPTIONAL_COLUMNS:
        columns.setdefault(name, ["" if name == "ended" else None] * len(table))
    if not set(columns["ended"]) <= set(get_args(Ending)):
        raise DamagedBlockError("it does not hold the answers that it says")
    columns["text"] = [
        None if text is None else text.decode("utf-8", _SURROGATES) for text in columns["text"]
    ]
    columns["token_logprobs"] = [
        None if values is None else np.array(values, dtype=np.float64)
        for values in columns["token_logprobs"]
    ]
    columns["top_logprobs"] = [_read_shown(shown) for shown in columns["top_logprobs"]]
    columns["message"] = [
        "" if message is None else message.decode("utf-8", _SURROGATES)
        for message in columns["message"]
    ]
    columns["generated"] = _read_generated(columns)
    return [
        Response(**dict(zip(columns, row, strict=True)))
        for row in zip(*columns.values(), strict=True)
    ]


def _read_generated(columns: dict[str, list[Any]]) -> list[GeneratedTokens | None]:
    """Take the columns of generated tokens out of ``columns``."""
    parts = [columns.pop(f"generated_{name}") for name in ("ids", "margins", "others")]
    try:
        return [
            None if ids is None else GeneratedTokens.of(ids, margins, others)
            for ids, margins, others in zip(*parts, strict=True)
        ]
    except ValueError as error:
        raise DamagedBlockError("it does not hold the answers that it says") from error


def _shown_bytes(shown: TopLogprobs | None) -> bytes | None:
    return (
        None
        if shown is None
        else json.dumps([dict(alternatives) for alternatives in shown]).encode()
    )


def _read_shown(data: bytes | None) -> TopLogprobs | None:
    if data is None:
        return None
    return tuple(
        {str(label): float(value) for label, value in alternatives.items()}
        for alternatives in json.loads(data)
    )


def _as_float64(values: NDArray[np.float64] | None) -> NDArray[np.float64] | None:
    return None if values is None else np.asarray(values, dtype=np.float64)


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
    stored_facts = read_table_facts(table)
    for name, value in facts.items():
        if stored_facts.get(name) != value:
            raise DamagedBlockError(f"it says {name} {stored_facts.get(name)!r}, not {value!r}")
    return records_from_table(kind, table), stored_facts


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
    arrays: list[np.ndarray | None] = []
    for chunk in column.chunks:
        flat = chunk.values.to_numpy(zero_copy_only=False)
        offsets, valid = chunk.offsets.to_numpy(), chunk.is_valid().to_numpy(zero_copy_only=False)
        for row, there in enumerate(valid):
            part = flat[offsets[row] : offsets[row + 1]]
            arrays.append((part.reshape(-1, width) if width else part) if there else None)
    return arrays
