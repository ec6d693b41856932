"""Writes a reference file: a row group per block, in an order that does not depend on the run."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from evalguard.core.reference import Reference
from evalguard.core.scorer import Response
from evalguard.store.atomic_files import HalfFile, disk_error
from evalguard.store.reference_rows import FLOAT_COLUMNS, row_schema, row_table
from evalguard.store.seal import UNSEALED, seal

REFERENCE_FORMAT = "evalguard.reference/1"
_HINT = "--save-reference FILE names another place"

BlockPosition = tuple[int, ...]


class ReferenceWriter:
    """Writes a reference file block by block; it appears when it is whole.

    Blocks come as they are finished, and one that another process was scoring comes late; in the
    end they stand in the order of their places, so that every run writes the same file. Leaving a
    ``with`` block by an exception, or without any block, leaves nothing behind.

    Args:
        facts: what the file says of the base, as plain JSON values.
    """

    def __init__(self, path: Path, facts: Mapping[str, Any]) -> None:
        self._file = HalfFile(path)
        self._facts = dict(facts)
        self._writer: Any = None
        self._sink: BinaryIO | None = None
        self._places: list[BlockPosition] = []

    def add(
        self,
        task: str,
        block: str,
        responses: Sequence[Response],
        references: Sequence[Reference | None],
        *,
        place: BlockPosition = (),
    ) -> None:
        """Write one block; ``place``: where it belongs among the others.

        Raises:
            StoreError: the disk refuses.
        """
        table = row_table(task, block, responses, references)
        try:
            if self._writer is None:
                self._sink = self._file.open()
                self._writer = self._opened(self._sink)
            self._writer.write_table(table)
        except OSError as error:
            raise disk_error("write the reference", self._file.path, error, hint=_HINT) from error
        self._places.append(place)

    def give_up(self) -> None:
        """Leave nothing behind, and write nothing more."""
        with contextlib.suppress(OSError, ValueError):
            if self._writer is not None:
                self._writer.close()
        self._writer = self._sink = None
        self._file.discard()

    def __enter__(self) -> ReferenceWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if self._writer is not None:
                self._writer.close()
            if self._sink is None or kind is not None:
                self._file.discard()
            else:
                seal(self._in_order(self._sink))
                self._file.commit()
        except OSError as failure:
            self._file.discard()
            raise disk_error(
                "write the reference", self._file.path, failure, hint=_HINT
            ) from failure

    def _in_order(self, arrived: BinaryIO) -> BinaryIO:
        """The file with its blocks in order: itself, or another one that takes its place."""
        import pyarrow.parquet as pq

        order = sorted(range(len(self._places)), key=self._places.__getitem__)
        if order == list(range(len(order))):
            return arrived
        first, self._file = self._file, HalfFile(self._file.path)
        try:
            sink = self._file.open()
            groups = pq.ParquetFile(arrived)
            with self._opened(sink) as writer:
                for group in order:
                    writer.write_table(groups.read_row_group(group, use_threads=False))
        finally:
            first.discard()
        return sink

    def _opened(self, sink: BinaryIO) -> Any:
        import pyarrow.parquet as pq

        about = {"format": REFERENCE_FORMAT, "facts": json.dumps(self._facts), "seal": UNSEALED}
        return pq.ParquetWriter(
            sink,
            row_schema().with_metadata(about),
            compression="zstd",
            use_dictionary=["task", "block"],
            use_byte_stream_split=[
                name if name == "loglikelihood" else f"{name}.list.element"
                for name in FLOAT_COLUMNS
            ],
            write_page_checksum=True,
        )
