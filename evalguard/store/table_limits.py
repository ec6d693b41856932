"""Limits of what a parquet file may unpack to: a small one can say that it holds gigabytes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from evalguard.store.damaged_files import DamagedBlockError

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
