"""Every scored token of one task as a compressed columnar file."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

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
