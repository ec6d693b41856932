"""Answers to requests as columns of a parquet table; one finished block of them is one file."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
from numpy.typing import NDArray

from evalguard.core.generated_tokens import GeneratedTokens
from evalguard.core.scorer import Ending, Response
from evalguard.core.shown_tokens import TopLogprobs
from evalguard.store.damaged_files import DamagedBlockError
from evalguard.store.seal import UNSEALED
from evalguard.store.table_limits import read_table

if TYPE_CHECKING:
    import pyarrow as pa

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
    told = {
        field
        for field in dict.fromkeys(OPTIONAL_COLUMNS.values())
        if any(getattr(one, field) not in (None, "") for one in responses)
    }
    absent = [name for name, field in OPTIONAL_COLUMNS.items() if field not in told]
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
        "" if one is None else one.decode("utf-8", _SURROGATES) for one in columns["message"]
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
    return None if shown is None else json.dumps([dict(one) for one in shown]).encode()


def _read_shown(data: bytes | None) -> TopLogprobs | None:
    if data is None:
        return None
    return tuple(
        {str(label): float(value) for label, value in one.items()} for one in json.loads(data)
    )


def _as_float64(values: NDArray[np.float64] | None) -> NDArray[np.float64] | None:
    return None if values is None else np.asarray(values, dtype=np.float64)
