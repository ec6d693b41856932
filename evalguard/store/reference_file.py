"""A reference file: what was kept of a base on all its tasks, in one parquet file.

A row is a request: its task, the digest of its block, the base's answer and the reference. A
block is a row group, so that a file of any size is written and read block by block. The file is
sealed: the smallest change shows before it is parsed. Numbers that were float32 are stored as
such.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalguard.errors import UsageError
from evalguard.store.answer_table import OPTIONAL_COLUMNS, written_before
from evalguard.store.damaged_files import DamagedBlockError
from evalguard.store.reference_rows import ReferenceRows, column_name, read_rows, row_schema
from evalguard.store.reference_writer import REFERENCE_FORMAT
from evalguard.store.seal import read_seal
from evalguard.store.table_limits import check_size

if TYPE_CHECKING:
    import pyarrow as pa


_OPTIONAL = frozenset(map(column_name, OPTIONAL_COLUMNS))
_REMAKE_HINT = "give another file, or remove this one: the base is then scored and it is made anew"


class ReferenceFile:
    """A reference file, read block by block.

    Attributes:
        path: where it is.
        digest: SHA-256 of its content.
        facts: what it says of the base.
        tasks: the tasks that it has blocks of.

    Raises:
        UsageError: it cannot be read, is cut, or is something else.
    """

    def __init__(self, path: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self.path, self.digest = path, _read_digest(path)
        self._reading = threading.Lock()
        try:
            self._file = pq.ParquetFile(path, page_checksum_verification=True)
            schema = self._file.schema_arrow
            said = {k.decode(): v.decode() for k, v in (schema.metadata or {}).items()}
        except (pa.ArrowException, OSError, ValueError) as error:
            raise UsageError(f"{path} cannot be read as parquet", hint=_REMAKE_HINT) from error
        wanted = written_before(row_schema(), schema, _OPTIONAL)
        if said.get("format") != REFERENCE_FORMAT or not schema.equals(wanted):
            found = said.get("format", "another parquet file")
            other = f"but {found}" if found != REFERENCE_FORMAT else "of this version"
            raise UsageError(f"{path} is not an {REFERENCE_FORMAT} {other}", hint=_REMAKE_HINT)
        self.facts = self._facts(said)
        self._groups = {
            (task, block): group
            for group in range(self._file.num_row_groups)
            for task, block in [self._name(group)]
        }
        self.tasks = tuple(dict.fromkeys(task for task, _ in self._groups))

    def get(self, task: str, block: str) -> ReferenceRows | None:
        """Return the base's answers to a block and what was kept of them; None: not there.

        Raises:
            UsageError: the file is damaged.
        """
        if (task, block) not in self._groups:
            return None
        group = self._groups[task, block]
        try:
            with self._reading:  # threads of several workers ask
                rows = self._group(group, None)
            return read_rows(rows)
        except DamagedBlockError as error:
            raise self._damaged(group, f": {error}") from error

    def close(self) -> None:
        """Close the file. May be called twice."""
        self._file.close()

    def _facts(self, said: Mapping[str, str]) -> dict[str, Any]:
        try:
            facts = json.loads(said.get("facts", ""))
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{self.path} says nothing of its base", hint=_REMAKE_HINT) from error
        if not isinstance(facts, dict):
            raise UsageError(f"{self.path} says nothing of its base", hint=_REMAKE_HINT)
        return facts

    def _name(self, group: int) -> tuple[str, str]:
        names = self._group(group, ["task", "block"]).slice(0, 1)
        if not names.num_rows:
            raise self._damaged(group)
        return names.column("task")[0].as_py(), names.column("block")[0].as_py()

    def _group(self, group: int, columns: list[str] | None) -> pa.Table:
        import pyarrow as pa

        try:
            check_size(self._file.metadata, [group])
            return self._file.read_row_group(group, columns=columns, use_threads=False)
        except DamagedBlockError as error:
            raise self._damaged(group, f": {error}") from error
        except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
            raise self._damaged(group) from error

    def _damaged(self, group: int, why: str = " cannot be read") -> UsageError:
        return UsageError(
            f"{self.path} is damaged: its block {group + 1} of {self._file.num_row_groups}{why}",
            hint=_REMAKE_HINT,
        )


def _read_digest(path: Path) -> str:
    """The digest of a file that is whole and unchanged since it was written."""
    try:
        digest = read_seal(path)
    except FileNotFoundError as error:
        raise UsageError(f"there is no reference {path}") from error
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror or error}", hint=_REMAKE_HINT
        ) from error
    if digest is None:
        raise UsageError(
            f"{path} is not a whole reference: it was not made by evalguard, or was changed since",
            hint=_REMAKE_HINT,
        )
    return digest
