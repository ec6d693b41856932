"""The folder of one run: result.json and the samples, there as a whole or not at all."""

from __future__ import annotations

import hashlib
import json
import secrets
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from evalguard.core.documents.columns import Column, Lists, Numbers, Texts
from evalguard.store.files import disk_error, make_folder, number_names, safe_name, write_atomically
from evalguard.store.pruning import remove_unfinished_runs

if TYPE_CHECKING:
    import pyarrow as pa


_HINT = "--output-path FOLDER writes the results elsewhere"


@dataclass(slots=True, kw_only=True)
class RunFolder:
    """A run folder being written.

    Everything goes into a hidden folder beside ``path``; ``commit`` renames it to ``path``. Any
    failure, and leaving a ``with`` block without a commit, removes the hidden folder.

    Attributes:
        path: where the finished folder will be; the name is reserved from ``create`` on.
        partial: the hidden folder.
        digests: SHA-256 of the samples and tokens written so far, by their path in the folder.
    """

    path: Path
    partial: Path
    committed: bool = False
    digests: dict[str, str] = field(default_factory=dict)
    _samples: set[str] = field(default_factory=set)
    _tokens: set[str] = field(default_factory=set)

    @classmethod
    def create(cls, root: Path, base: str, candidate: str, when: datetime) -> RunFolder:
        """Reserve ``<root>/<UTC time>-<base>-vs-<candidate>``, with -2, -3 ... if it is taken.

        Args:
            when: time of the run; taken as local time if it has no time zone.

        Raises:
            StoreError: the folder cannot be made.
        """
        time = when.astimezone(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
        try:
            make_folder(root)
            remove_unfinished_runs(root)
            for name in number_names(f"{time}-{safe_name(base)}-vs-{safe_name(candidate)}"):
                partial = root / f".{name}.partial"
                if cls._reserve(partial, root / name):
                    return cls(path=root / name, partial=partial)
        except OSError as error:
            raise disk_error("make a run folder in", root, error, hint=_HINT) from error
        raise AssertionError("names do not run out")

    @staticmethod
    def _reserve(partial: Path, path: Path) -> bool:
        try:
            partial.mkdir()
        except FileExistsError:
            return False
        # Looked at after the hidden folder is ours: another run may have committed in between.
        if path.exists():
            partial.rmdir()
            return False
        return True

    def write_result(self, document: Mapping[str, Any]) -> None:
        """Write result.json.

        Raises:
            StoreError: it cannot be written; nothing of the run folder stays.
            ValueError: the document holds NaN or an infinity, which JSON has not.
        """
        text = json.dumps(document, allow_nan=False, indent=2) + "\n"
        self._write(self.partial / "result.json", text.encode())

    def write_samples(
        self,
        task: str,
        columns: Mapping[str, Sequence[Any]],
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        """Write samples/<task>.parquet: one row per document, ``columns`` of equal length.

        Args:
            facts: what is true of all documents, as plain JSON values.

        Raises:
            StoreError: it cannot be written; nothing of the run folder stays.
            ValueError: for columns of different lengths.
        """
        name = next(n for n in number_names(safe_name(task)) if n.casefold() not in self._samples)
        self._samples.add(name.casefold())
        self._write_table(f"samples/{name}.parquet", samples_to_parquet(task, columns, facts))

    def write_tokens(self, task: str, columns: Mapping[str, NDArray[Any]]) -> None:
        """Write tokens-<task>.parquet: one row per scored token, ``columns`` of equal length.

        Raises:
            StoreError: it cannot be written; nothing of the run folder stays.
            ValueError: for columns of different lengths.
        """
        stem = f"tokens-{safe_name(task)}"
        name = next(n for n in number_names(stem) if n.casefold() not in self._tokens)
        self._tokens.add(name.casefold())
        self._write_table(f"{name}.parquet", tokens_to_parquet(task, columns))

    def commit(self) -> Path:
        """Make the finished folder appear under its name, and return its path.

        Raises:
            StoreError: it cannot be renamed; nothing of the run folder stays.
        """
        try:
            self.partial.rename(self.path)
        except OSError as error:
            self.discard()
            raise disk_error("make the run folder", self.path, error, hint=_HINT) from error
        self.committed = True
        return self.path

    def discard(self) -> None:
        """Remove the hidden folder; a committed run folder stays."""
        if not self.committed:
            shutil.rmtree(self.partial, ignore_errors=True)

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.discard()

    def _write_table(self, name: str, data: memoryview) -> None:
        self._write(self.partial / name, data)
        self.digests[name] = hashlib.sha256(data).hexdigest()

    def _write(self, path: Path, data: bytes | memoryview) -> None:
        try:
            make_folder(path.parent)
            write_atomically(path, data)
        except OSError as error:
            self.discard()
            raise disk_error("write", self.path / path.name, error, hint=_HINT) from error


def write_document(folder: Path, name: str, document: Mapping[str, Any]) -> None:
    """Write a JSON document into a finished run folder; it replaces one that is there as a whole.

    Raises:
        StoreError: it cannot be written; what was there before is still there.
        ValueError: the document holds NaN or an infinity, which JSON has not.
    """
    write_text(folder, name, json.dumps(document, allow_nan=False, indent=2) + "\n")


def write_text(folder: Path, name: str, text: str) -> None:
    """Write a text into a finished run folder, likewise.

    Raises:
        StoreError: it cannot be written; what was there before is still there.
    """
    try:
        write_atomically(folder / name, text.encode())
    except OSError as error:
        raise disk_error("write", folder / name, error, hint=_HINT) from error


def check_writable(root: Path) -> None:
    """Make sure that run folders can be written into ``root``, before anything long runs.

    Creates the folder if it is missing.

    Raises:
        StoreError: it cannot be made or written to.
    """
    probe = root / f".evalguard-{secrets.token_hex(4)}"
    try:
        make_folder(root)
        write_atomically(probe, b"evalguard can write here\n")
        probe.unlink()
    except OSError as error:
        raise disk_error("write results to", root, error, hint=_HINT) from error


# Per-document samples as a compressed columnar file.


SAMPLES_FORMAT = "evalguard.samples/1"


def samples_to_parquet(
    task: str, columns: Mapping[str, Sequence[Any]], facts: Mapping[str, Any] | None = None
) -> memoryview:
    """Return ``columns`` (name to one value per document) as a zstd-compressed parquet file.

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
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_arrays(arrays, schema=schema), sink, compression="zstd")
    return memoryview(sink.getvalue())


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


# Every scored token of one task as a compressed columnar file.


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
