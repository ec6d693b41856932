"""A reference file: what was kept of a base on all its tasks, in one parquet file.

A row is a request: its task, the digest of its block, the base's answer and the reference. A block
is a row group, so that a file of any size is written and read block by block. Every page has a
checksum. Numbers that were float32 are stored as such.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from evalguard.errors import UsageError
from evalguard.reference import Reference
from evalguard.scorer import Response
from evalguard.store.block_file import answer_columns, answer_schema, answers_of
from evalguard.store.disk import HalfFile, refusal
from evalguard.store.record_file import arrays_of, list_column

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT = "evalguard.reference/1"

# A reference's arrays as they are stored; several numbers a position: the k tokens, the m draws.
_TYPES = {
    "token_ids": "int32",
    "top_ids": "int32",
    "top_logprobs": "float32",
    "tail_mass": "float64",
    "full_support": "bool",
    "sample_ids": "int32",
    "sample_logprobs": "float32",
}
_SEVERAL = frozenset({"top_ids", "top_logprobs", "sample_ids", "sample_logprobs"})
_HINT = "--reference FILE names another place"
_ANEW = "give another file, or remove this one: the base is then scored and it is made anew"


class ReferenceWriter:
    """Writes a reference file block by block; it appears when it is whole.

    Leaving a ``with`` block by an exception, or without any block, leaves nothing behind.

    Args:
        facts: what the file says of the base, as plain JSON values.
    """

    def __init__(self, path: Path, facts: Mapping[str, Any]) -> None:
        self._file = HalfFile(path)
        self._facts = dict(facts)
        self._writer: Any = None

    def add(
        self,
        task: str,
        block: str,
        responses: Sequence[Response],
        references: Sequence[Reference | None],
    ) -> None:
        """Write one block.

        Raises:
            StoreError: the disk refuses.
        """
        import pyarrow as pa

        columns: list[Any] = [pa.array([name] * len(responses)) for name in (task, block)]
        columns += answer_columns([replace(r, token_logprobs=None) for r in responses])
        columns.append(_scores(responses))
        sizes = [None if r is None else r.vocabulary_size for r in references]
        columns.append(pa.array(sizes, pa.int64()))
        columns += [_stored(name, references) for name in _TYPES]
        try:
            self._open().write_table(pa.Table.from_arrays(columns, schema=_schema()))
        except OSError as error:
            raise refusal("write the reference", self._file.path, error, hint=_HINT) from error

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
            if self._writer is None or kind is not None:
                self._file.discard()
            else:
                self._file.commit()
        except OSError as failure:
            self._file.discard()
            raise refusal("write the reference", self._file.path, failure, hint=_HINT) from failure

    def _open(self) -> Any:
        import pyarrow.parquet as pq

        if self._writer is None:
            floats = ["loglikelihood", "scores", "top_logprobs", "tail_mass", "sample_logprobs"]
            self._writer = pq.ParquetWriter(
                self._file.open(),
                _schema().with_metadata({"format": FORMAT, "facts": json.dumps(self._facts)}),
                compression="zstd",
                use_dictionary=["task", "block"],
                use_byte_stream_split=[
                    name if name == "loglikelihood" else f"{name}.list.element" for name in floats
                ],
                write_page_checksum=True,
            )
        return self._writer


class ReferenceFile:
    """A reference file, read block by block.

    Attributes:
        path: where it is.
        facts: what it says of the base.
        tasks: the tasks that it has blocks of.

    Raises:
        UsageError: it cannot be read, is cut, or is something else.
    """

    def __init__(self, path: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self.path = path
        try:
            self._file = pq.ParquetFile(path, page_checksum_verification=True)
            schema = self._file.schema_arrow
            said = {k.decode(): v.decode() for k, v in (schema.metadata or {}).items()}
        except FileNotFoundError as error:
            raise UsageError(f"there is no reference {path}") from error
        except (pa.ArrowException, OSError, ValueError) as error:
            raise UsageError(
                f"{path} is no whole reference: it cannot be read as parquet", hint=_ANEW
            ) from error
        if said.get("format") != FORMAT or not schema.equals(_schema()):
            found = said.get("format", "another parquet file")
            raise UsageError(f"{path} is no {FORMAT} but {found}", hint=_ANEW)
        self.facts: dict[str, Any] = json.loads(said["facts"])
        self._groups = {
            (task, block): group
            for group in range(self._file.num_row_groups)
            for task, block in [self._name(group)]
        }
        self.tasks = tuple(dict.fromkeys(task for task, _ in self._groups))

    def get(self, task: str, block: str) -> tuple[list[Response], list[Reference | None]] | None:
        """Return the base's answers to a block and what was kept of them; None: not there.

        Raises:
            UsageError: the file is damaged.
        """
        if (task, block) not in self._groups:
            return None
        return _read(self._group(self._groups[task, block], None))

    def close(self) -> None:
        """Close the file. May be called twice."""
        self._file.close()

    def _name(self, group: int) -> tuple[str, str]:
        names = self._group(group, ["task", "block"]).slice(0, 1)
        return names.column("task")[0].as_py(), names.column("block")[0].as_py()

    def _group(self, group: int, columns: list[str] | None) -> pa.Table:
        import pyarrow as pa

        try:
            return self._file.read_row_group(group, columns=columns, use_threads=False)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise UsageError(
                f"{self.path} is damaged: its block {group + 1} of {self._file.num_row_groups} "
                "cannot be read",
                hint=_ANEW,
            ) from error


def _read(table: pa.Table) -> tuple[list[Response], list[Reference | None]]:
    responses = answers_of(table.select(answer_schema(None).names))
    scores = arrays_of(table.column("scores"), 0)
    sizes = table.column("vocabulary_size").to_pylist()
    columns = {name: arrays_of(table.column(name), 0) for name in _TYPES}
    references = [
        None if size is None else _reference(size, own, {n: c[row] for n, c in columns.items()})
        for row, (size, own) in enumerate(zip(sizes, scores, strict=True))
    ]
    told = [
        response if own is None else replace(response, token_logprobs=own.astype(np.float64))
        for response, own in zip(responses, scores, strict=True)
    ]
    return told, references


def _reference(size: int, scores: Any, arrays: Mapping[str, Any]) -> Reference:
    positions = scores.shape[0]
    shaped = {
        name: array.reshape(positions, -1) if name in _SEVERAL else array
        for name, array in arrays.items()
    }
    return Reference(
        **{**shaped, "token_ids": shaped["token_ids"].astype(np.int64)},
        token_logprobs=scores.astype(np.float64),
        vocabulary_size=size,
    )


def _scores(responses: Sequence[Response]) -> pa.Array:
    """Log-probabilities of the scored tokens, as the model gave them."""
    told = [response.token_logprobs for response in responses]
    return list_column([None if t is None else t.astype(np.float32) for t in told], "float32")


def _stored(name: str, references: Sequence[Reference | None]) -> pa.Array:
    kind = _TYPES[name]
    return list_column(
        [None if r is None else getattr(r, name).astype(kind) for r in references], kind
    )


def _schema() -> pa.Schema:
    import pyarrow as pa

    types = {"scores": "float32", **_TYPES}
    lists = [
        pa.field(name, pa.list_(pa.bool_() if kind == "bool" else getattr(pa, kind)()))
        for name, kind in types.items()
    ]
    names = [pa.field(name, pa.string()) for name in ("task", "block")]
    size = pa.field("vocabulary_size", pa.int64())
    return pa.schema([*names, *answer_schema(None), lists[0], size, *lists[1:]])
