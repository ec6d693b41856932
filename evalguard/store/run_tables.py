"""The parquet files of a finished run folder, read back."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from numpy.typing import NDArray

from evalguard.core.checksum import checksum_fault
from evalguard.errors import StoreError, UsageError
from evalguard.regular_file import open_regular
from evalguard.store.files import DamagedBlockError
from evalguard.store.record_file import check_size

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq


_DAMAGED = (OSError, ValueError, TypeError, MemoryError, RecursionError, DamagedBlockError)


def sample_files(folder: Path) -> dict[str, Path]:
    """Return the file of each task's documents in a run folder, in the order of their names.

    Raises:
        StoreError: a file there is not as evalguard writes it.
    """
    return _by_task(sorted((folder / "samples").glob("*.parquet")))


def token_files(folder: Path) -> dict[str, Path]:
    """Return the file of each task's scored tokens, likewise."""
    return _by_task(sorted(folder.glob("tokens-*.parquet")))


def sample_column_names(file: Path) -> list[str]:
    """Return the names of the columns that ``RunFolder.write_samples`` was given.

    Raises:
        StoreError: the file is damaged.
    """
    with _open_table(file) as opened:
        names: list[str] = opened.schema_arrow.names
    return names


def read_samples(file: Path, names: Collection[str] | None = None) -> dict[str, list[Any]]:
    """Return the columns that ``RunFolder.write_samples`` was given, as Python's own values.

    Args:
        names: those that are wanted, of which the file may lack some; None: all.

    Raises:
        StoreError: the file is damaged.
    """
    table = _read_columns(file, names)
    with _damage_as_error(file):
        return {
            field.name: _column_values(table.column(field.name), field) for field in table.schema
        }


class SampleColumns(Mapping[str, Sequence[Any]]):
    """The columns that ``RunFolder.write_samples`` was given, made Python's own when asked for.

    Raises:
        StoreError: the file is damaged, when it is opened or when a column is asked for.
    """

    def __init__(self, file: Path) -> None:
        self._file, self._table = file, _read_columns(file)
        self._made: dict[str, list[Any]] = {}

    def __getitem__(self, name: str) -> list[Any]:
        if name not in self._made:
            self._made[name] = self._values(name, self._table)
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        names: list[str] = self._table.column_names
        return iter(names)

    def __len__(self) -> int:
        return int(self._table.num_columns)

    def pick(self, positions: Sequence[int]) -> dict[str, Sequence[Any]]:
        """All columns of the documents at these positions."""
        table = self._table.take(list(positions))
        return {name: self._values(name, table) for name in self}

    def _values(self, name: str, table: pa.Table) -> list[Any]:
        if name not in table.column_names:
            raise KeyError(name)
        with _damage_as_error(self._file):
            return _column_values(table.column(name), table.schema.field(name))


def read_sample_facts(file: Path) -> dict[str, Any]:
    """Return what ``RunFolder.write_samples`` was told of all documents; {} for an older file.

    Raises:
        StoreError: the file is damaged.
    """
    with _open_table(file) as opened:
        metadata: Mapping[bytes, bytes] = opened.schema_arrow.metadata or {}
        found = json.loads(metadata.get(b"facts", b"{}"))
        if not isinstance(found, dict):
            raise DamagedBlockError("its facts are none")
        return found


def read_tokens(file: Path) -> dict[str, NDArray[Any]]:
    """Return the columns that ``RunFolder.write_tokens`` was given.

    Raises:
        StoreError: the file is damaged.
    """
    table = _read_columns(file)
    with _damage_as_error(file):
        return {name: table.column(name).to_numpy() for name in table.column_names}


def _column_values(column: pa.ChunkedArray, field: pa.Field) -> list[Any]:
    values: list[Any] = column.to_pylist()
    if (field.metadata or {}).get(b"json"):
        return [None if text is None else json.loads(text) for text in values]
    return values


def _by_task(files: list[Path]) -> dict[str, Path]:
    found = {}
    for path in files:
        with _open_table(path) as file:
            metadata: Mapping[bytes, bytes] = file.schema_arrow.metadata or {}
        found[metadata.get(b"task", path.stem.encode()).decode("utf-8", "replace")] = path
    return found


def _read_columns(path: Path, names: Collection[str] | None = None) -> pa.Table:
    with _open_table(path) as file:
        check_size(file.metadata, range(file.num_row_groups))
        columns = None
        if names is not None:
            columns = [name for name in file.schema_arrow.names if name in names]
        return file.read(columns=columns, use_threads=False)


@contextmanager
def _open_table(path: Path) -> Iterator[pq.ParquetFile]:
    import pyarrow.parquet as pq

    with _damage_as_error(path), pq.ParquetFile(path) as file:
        yield file


@contextmanager
def _damage_as_error(path: Path) -> Iterator[None]:
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, *_DAMAGED) as error:
        raise StoreError(
            f"{path} is damaged: {error or type(error).__name__}",
            hint="compare again, or remove the file to do without it",
        ) from error


# result.json of a finished run, read back: strict JSON that is as it was written, or refused.


_RESULT_NAME = "result.json"
_HINT = "give the run folder of an `evalguard compare`, such as reports/<time>-<base>-vs-<cand>"
# Far above what evalguard writes: a thousand tasks have some megabytes.
MOST_BYTES = 256 * 2**20


def read_result(path: Path, *, schema: str, hint: str = _HINT) -> dict[str, Any]:
    """Return the document of a run folder (or of its result.json).

    Args:
        schema: name and number of the contract that it must follow.
        hint: what to give instead of something else.

    Raises:
        UsageError: if there is none, or it is something else.
        StoreError: it was changed since it was written, by its checksum.
    """
    return read_document(path, schemas=(schema,), hint=hint)


def read_document(path: Path, *, schemas: tuple[str, ...], hint: str = _HINT) -> dict[str, Any]:
    """The same, of a document that follows one of several contracts."""
    file = path / _RESULT_NAME if path.is_dir() else path
    try:
        with open_regular(file) as opened:
            data = opened.read(MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}", hint=hint) from error
    if len(data) > MOST_BYTES:
        raise UsageError(f"{file} is larger than {MOST_BYTES // 2**20} MiB", hint=hint)
    try:
        content = json.loads(data, parse_constant=_refuse_constant, object_pairs_hook=_build_object)
    except RecursionError as error:
        raise UsageError(f"{file} is not JSON: nested too deeply", hint=hint) from error
    except ValueError as error:
        raise UsageError(f"{file} is not JSON: {error}", hint=hint) from error
    found = content.get("schema") if isinstance(content, dict) else None
    if found not in schemas:
        named = " or ".join(schemas)
        raise UsageError(f"{file} is not an {named} document (schema: {found!r})", hint=hint)
    _check_unchanged(file, content)
    return dict(content)


def _check_unchanged(file: Path, content: dict[str, Any]) -> None:
    try:
        fault = checksum_fault(content)
    except RecursionError as error:
        raise UsageError(f"{file} is not JSON: nested too deeply", hint=_HINT) from error
    if fault:
        raise StoreError(
            f"{file} is not as evalguard wrote it: {fault}",
            hint="take the file from where it was made, or compare again; do not edit it",
        )


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number in JSON")


def _build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys are there once each: of two, nobody knows which one counts."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in found if keys.count(key) > 1)
        raise ValueError(f"the key {twice[:40]!r} is there twice in one object")
    return found


# The files beside a result.json, held against the digests that it names.


_CHUNK = 2**20
_DIGEST_HINT = (
    "take the whole run folder from where it was made, or compare again; do not edit its files"
)


def check_run_file(folder: Path, file: Path, digests: Mapping[str, str] | None) -> None:
    """Refuse a file of a run folder that is not what it was when the result was written.

    Args:
        digests: SHA-256 in hexadecimal digits, by a file's path in ``folder``; None where the
            result names none: an earlier version wrote it, and nothing is checked.

    Raises:
        StoreError: the file has another digest, or none, or cannot be read.
    """
    if digests is None:
        return
    told = digests.get(file.relative_to(folder).as_posix())
    if told is None:
        raise StoreError(
            f"{file} is not of this run: its result.json names no such file", hint=_DIGEST_HINT
        )
    found = _digest(file)
    if found != told:
        raise StoreError(
            f"{file} is not as evalguard wrote it: its SHA-256 is '{found[:16]}'..., and "
            f"result.json says '{told[:16]}'...",
            hint=_DIGEST_HINT,
        )


def _digest(file: Path) -> str:
    digest = hashlib.sha256()
    try:
        with open_regular(file) as opened:
            while chunk := opened.read(_CHUNK):
                digest.update(chunk)
    except OSError as error:
        raise StoreError(f"{file} cannot be read: {error.strerror}", hint=_DIGEST_HINT) from error
    return digest.hexdigest()
