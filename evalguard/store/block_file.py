"""One finished block of responses as one parquet file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from evalguard.scorer import Response
from evalguard.store.damage import DamagedBlockError
from evalguard.store.parquet_limits import read_table
from evalguard.store.seal import UNSEALED

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT = "evalguard.scores/1"
# Text is kept as bytes: generated text may hold lone surrogates, which parquet strings cannot.
_SURROGATES = "surrogatepass"


def to_bytes(key: str, block: str, responses: Sequence[Response]) -> memoryview:
    """Return the unsealed file of ``responses``; numbers keep their bits (NaN and -0.0 too)."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    facts = {"format": FORMAT, "key": key, "block": block, "seal": UNSEALED}
    table = pa.Table.from_arrays(answer_columns(responses), schema=answer_schema(facts))
    sink = pa.BufferOutputStream()
    # Dictionary pages may merge NaNs of different bits, so no column gets one.
    pq.write_table(table, sink, compression="zstd", use_dictionary=False)
    return memoryview(sink.getvalue())


def from_bytes(data: bytes, key: str, block: str) -> list[Response]:
    """Read a file back.

    Raises:
        DamagedBlockError: it is of another format, or another block's.
    """
    table = read_table(data)
    facts = {k.decode(): v.decode() for k, v in (table.schema.metadata or {}).items()}
    if facts.get("format") != FORMAT:
        raise DamagedBlockError("it is not a block of scores of this version")
    if (facts.get("key"), facts.get("block")) != (key, block):
        raise DamagedBlockError("it belongs to another model or other requests")
    if not table.schema.equals(answer_schema(None)):
        raise DamagedBlockError("it does not hold the answers that it says")
    return answers_of(table)


def _doubles(values: NDArray[np.float64] | None) -> NDArray[np.float64] | None:
    return None if values is None else np.asarray(values, dtype=np.float64)


def answer_schema(facts: dict[str, str] | None) -> pa.Schema:
    """Columns of responses."""
    import pyarrow as pa

    fields = [
        ("loglikelihood", pa.float64()),
        ("is_greedy", pa.bool_()),
        ("text", pa.binary()),
        ("token_logprobs", pa.list_(pa.float64())),
        ("token_hash", pa.string()),
        ("n_tokens", pa.int64()),
        ("truncated", pa.bool_()),
    ]
    return pa.schema(fields, metadata=facts)


def answer_columns(responses: Sequence[Response]) -> list[pa.Array]:
    """Return responses as the columns of ``answer_schema``."""
    import pyarrow as pa

    texts = [None if r.text is None else r.text.encode("utf-8", _SURROGATES) for r in responses]
    values: list[list[Any]] = [
        [r.loglikelihood for r in responses],
        [None if r.is_greedy is None else bool(r.is_greedy) for r in responses],
        texts,
        [_doubles(r.token_logprobs) for r in responses],
        [r.token_hash for r in responses],
        [int(r.n_tokens) for r in responses],
        [bool(r.truncated) for r in responses],
    ]
    types = answer_schema(None).types
    return [pa.array(column, kind) for column, kind in zip(values, types, strict=True)]


def answers_of(table: pa.Table) -> list[Response]:
    """Read responses back from a table with these columns only."""
    columns = {name: table.column(name).to_pylist() for name in table.column_names}
    logprobs = (
        None if values is None else np.array(values, dtype=np.float64)
        for values in columns.pop("token_logprobs")
    )
    texts = (
        None if text is None else text.decode("utf-8", _SURROGATES) for text in columns.pop("text")
    )
    names = ("loglikelihood", "is_greedy", "token_hash", "n_tokens", "truncated")
    rest = zip(*(columns[name] for name in names), strict=True)
    return [
        Response(
            text=text,
            token_logprobs=scores,
            loglikelihood=loglikelihood,
            is_greedy=is_greedy,
            token_hash=token_hash,
            n_tokens=n_tokens,
            truncated=truncated,
        )
        for text, scores, (loglikelihood, is_greedy, token_hash, n_tokens, truncated) in zip(
            texts, logprobs, rest, strict=True
        )
    ]
