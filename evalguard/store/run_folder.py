"""The folder of one run: result.json and the samples, there as a whole or not at all."""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from numpy.typing import NDArray

from evalguard.store.atomic_files import (
    disk_error,
    fill_atomically,
    make_folder,
    write_atomically,
)
from evalguard.store.leftovers import remove_unfinished_runs
from evalguard.store.run_digests import digest_file
from evalguard.store.safe_names import number_names, safe_name
from evalguard.store.sample_table import write_sample_table
from evalguard.store.token_table import tokens_to_parquet

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
