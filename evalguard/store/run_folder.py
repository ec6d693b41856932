"""The folder of one run: result.json and the samples, there as a whole or not at all."""

from __future__ import annotations

import hashlib
import json
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, NoReturn

from numpy.typing import NDArray

from evalguard.core.checksum import checksum_fault
from evalguard.errors import LaterVersionError, StoreError, UsageError
from evalguard.regular_file import open_regular
from evalguard.store.atomic_files import (
    disk_error,
    fill_atomically,
    make_folder,
    number_names,
    safe_name,
    write_atomically,
)
from evalguard.store.cache_folder import remove_unfinished_runs
from evalguard.store.run_tables import tokens_to_parquet, write_sample_table

_RESULT_NAME = "result.json"
NIGHT_RESULT = "night.json"  # of a night's folder, below which its pairs' run folders lie
_RESULT_HINT = (
    "give the run folder of an `evalguard compare`, such as reports/<time>-<base>-vs-<cand>"
)
LATER_HINT = "it was written by a later evalguard: update evalguard"
# Far above what evalguard writes: a thousand tasks have some megabytes.
MOST_BYTES = 256 * 2**20


def holds_result(path: Path) -> bool:
    """Whether a folder is that of a run that wrote its result."""
    return (path / _RESULT_NAME).exists()


def read_result(path: Path, *, schema: str, hint: str = _RESULT_HINT) -> dict[str, Any]:
    """Return the document of a run folder (or of its result.json).

    Args:
        schema: name and number of the contract that it must follow.
        hint: what to give instead of something else.

    Raises:
        UsageError: if there is none, or it is something else.
        StoreError: it was changed since it was written, by its checksum.
    """
    return read_document(path, schemas=(schema,), hint=hint)


def read_document(
    path: Path, *, schemas: tuple[str, ...], hint: str = _RESULT_HINT
) -> dict[str, Any]:
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
    schema = content.get("schema") if isinstance(content, dict) else None
    if schema not in schemas:
        named = " or ".join(schemas)
        text = f"{file} is not an {named} document (schema: {schema!r})"
        if is_later(schema, schemas):
            raise LaterVersionError(text, hint=LATER_HINT)
        raise UsageError(text, hint=hint)
    _check_unchanged(file, content)
    return dict(content)


def is_later(found: object, schemas: tuple[str, ...]) -> bool:
    """Whether it is one of these contracts, with a higher number."""
    name, _, number = str(found).rpartition("/")
    known = [
        int(schema.rpartition("/")[2]) for schema in schemas if schema.rpartition("/")[0] == name
    ]
    return bool(known) and number.isdecimal() and int(number) > max(known)


def _check_unchanged(file: Path, content: dict[str, Any]) -> None:
    try:
        fault = checksum_fault(content)
    except RecursionError as error:
        raise UsageError(f"{file} is not JSON: nested too deeply", hint=_RESULT_HINT) from error
    if fault:
        raise StoreError(
            f"{file} is not as evalguard wrote it: {fault}",
            hint="take the file from where it was made, or compare again; do not edit it",
        )


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number in JSON")


def _build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys are there once each: of two, nobody knows which one counts."""
    members = dict(pairs)
    if len(members) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in members if keys.count(key) > 1)
        raise ValueError(f"the key {twice[:40]!r} is there twice in one object")
    return members


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
    expected = digests.get(file.relative_to(folder).as_posix())
    if expected is None:
        raise StoreError(
            f"{file} is not of this run: its result.json names no such file", hint=_DIGEST_HINT
        )
    try:
        actual = digest_file(file)
    except OSError as error:
        raise StoreError(f"{file} cannot be read: {error.strerror}", hint=_DIGEST_HINT) from error
    if actual != expected:
        raise StoreError(
            f"{file} is not as evalguard wrote it: its SHA-256 is '{actual[:16]}'..., and "
            f"result.json says '{expected[:16]}'...",
            hint=_DIGEST_HINT,
        )


def digest_file(file: Path) -> str:
    """SHA-256 of a file, in hexadecimal digits.

    Raises:
        OSError: it cannot be read.
    """
    digest = hashlib.sha256()
    with open_regular(file) as opened:
        while chunk := opened.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


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
        path = self.partial / "result.json"
        with self._discarded_where_it_fails(path):
            write_atomically(path, text.encode())

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
        self._write_table(
            f"samples/{name}.parquet", lambda file: write_sample_table(file, task, columns, facts)
        )

    def write_tokens(self, task: str, columns: Mapping[str, NDArray[Any]]) -> None:
        """Write tokens-<task>.parquet: one row per scored token, ``columns`` of equal length.

        Raises:
            StoreError: it cannot be written; nothing of the run folder stays.
            ValueError: for columns of different lengths.
        """
        stem = f"tokens-{safe_name(task)}"
        name = next(n for n in number_names(stem) if n.casefold() not in self._tokens)
        self._tokens.add(name.casefold())
        self._write_table(
            f"{name}.parquet", lambda file: file.write(tokens_to_parquet(task, columns))
        )

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

    def _write_table(self, name: str, write: Callable[[BinaryIO], object]) -> None:
        """Write a table into the file as it is made: a whole one beside it takes much memory."""
        path = self.partial / name
        with self._discarded_where_it_fails(path):
            fill_atomically(path, write)
            self.digests[name] = digest_file(path)

    @contextmanager
    def _discarded_where_it_fails(self, path: Path) -> Iterator[None]:
        try:
            make_folder(path.parent)
            yield
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
