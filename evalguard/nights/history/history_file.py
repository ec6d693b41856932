"""HistoryFile: nights of comparisons in one sqlite3 file, for several processes at a time."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from evalguard.core.settings import Value
from evalguard.nights.document_scores import DocumentScores
from evalguard.nights.history.database import (
    PATIENCE,
    RESCUE,
    DamagedHistoryError,
    compact,
    connect,
    transaction,
    translate_errors,
)
from evalguard.nights.history.tables import (
    METRIC_COLUMNS,
    RUN_COLUMNS,
    SCHEMA_VERSION,
    VECTOR_COLUMNS,
    Numbers,
    checked_fields,
    documents_of,
    insert_metric,
    insert_run,
    metric_fields,
    metric_of,
    read_vector,
    run_of,
    select_columns,
)
from evalguard.nights.history_report import HistoryCheck, MetricKey, Night, NightMetric, NightRun
from evalguard.store.atomic_files import DamagedBlockError

_Made = TypeVar("_Made")
_RUNS = select_columns("runs", RUN_COLUMNS)
_METRICS = select_columns("metrics", METRIC_COLUMNS)
_WHERE_METRIC = "task = ? AND filter = ? AND metric = ?"
_MOST_SHOWN = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMetric:
    """A metric to be kept, with its documents where each of them has a score."""

    metric: NightMetric
    documents: DocumentScores | None = None


class HistoryFile:
    """A history, open. Numbers of runs are never used again.

    Every write is one transaction: a process that is killed leaves all of a run or nothing of it.

    Attributes:
        problems: rows that were left out so far, because they are not what was written, with the
            number of their run.

    Raises:
        UsageError: the file is none, damaged, or of a newer evalguard.
        StoreError: the disk refuses, or another process keeps writing.
    """

    def __init__(self, path: Path, *, create: bool = False, patience: float = PATIENCE) -> None:
        self.path = path
        self.problems: dict[str, int] = {}
        self._connection = connect(path, create=create, patience=patience)

    def add(
        self, run: NightRun, metrics: Sequence[StoredMetric], environment: Mapping[str, Value]
    ) -> int:
        """Keep a run; return its number.

        Args:
            run: its ``number`` does not count.
            environment: what ``run.environment`` is the digest of.

        Raises:
            StoreError: it could not be kept; the file is as it was.
            UsageError: the file is damaged.
        """
        content = json.dumps(dict(environment), sort_keys=True)
        connection = self._connection
        with translate_errors(self.path, "write"), transaction(connection):
            connection.execute(
                "INSERT OR IGNORE INTO environments VALUES (?, ?)", (run.environment, content)
            )
            number = insert_run(connection, run)
            for position, stored in enumerate(metrics):
                row = metric_fields(connection, number, position, stored.metric, stored.documents)
                insert_metric(connection, row)
        return number

    def runs(self, pair: tuple[str, str] | None = None) -> tuple[NightRun, ...]:
        """All runs, or those of a pair, the oldest first.

        Raises:
            UsageError: the file is damaged.
        """
        where, values = ("WHERE base = ? AND candidate = ?", pair) if pair else ("", ())
        query = f"SELECT {_RUNS} FROM runs {where} ORDER BY created, number"
        return tuple(self._sound(self._rows(query, values), run_of))

    def metrics(self, run: int) -> tuple[NightMetric, ...]:
        """The metrics of a run, in the order of its report."""
        query = f"SELECT {_METRICS} FROM metrics WHERE run = ? ORDER BY place"
        return tuple(self._sound(self._rows(query, (run,)), metric_of, f"run {run}, "))

    def nights(self, pair: tuple[str, str], key: MetricKey) -> tuple[Night, ...]:
        """One metric of all runs of a pair, the oldest first."""
        query = (
            f"SELECT {_RUNS}, {_METRICS} FROM metrics JOIN runs ON runs.number = metrics.run "
            f"WHERE {_WHERE_METRIC} AND runs.base = ? AND runs.candidate = ? "
            "ORDER BY runs.created, runs.number"
        )
        return tuple(self._sound(self._rows(query, (*key, *pair)), _night))

    def note_damage(self) -> None:
        """Put every row that is not what was written into ``problems``, whatever it is about.

        A damaged name or number takes its row out of what is asked for; no query would meet it.

        Raises:
            UsageError: the file is damaged.
        """
        runs = {number for (number,) in self._rows("SELECT number FROM runs", ())}
        fields_of = partial(checked_fields, METRIC_COLUMNS)
        for row in self._rows(f"SELECT {_METRICS} FROM metrics", ()):
            for fields in self._sound([row], fields_of, f"run {row[0]}, "):
                if fields["run"] not in runs:
                    self.problems[f"run {row[0]} is gone, and its metrics are not"] = row[0]

    def keys(self, pair: tuple[str, str]) -> tuple[MetricKey, ...]:
        """The metrics that runs of a pair have, those of the latest run first, in its order."""
        query = (
            "SELECT task, filter, metric FROM metrics JOIN runs ON runs.number = metrics.run "
            "WHERE runs.base = ? AND runs.candidate = ? "
            "GROUP BY task, filter, metric ORDER BY max(run) DESC, max(place)"
        )
        return tuple((task, name, metric) for task, name, metric in self._rows(query, pair))

    def check_writable(self) -> None:
        """Make sure that a run could be kept now.

        Raises:
            StoreError: it cannot be written to.
        """
        with translate_errors(self.path, "write"), transaction(self._connection):
            pass

    def documents(
        self, runs: Sequence[int], key: MetricKey, *, hashes: bool = False
    ) -> dict[int, DocumentScores]:
        """The documents of a metric in each of these runs that has them.

        Args:
            hashes: with their full hashes, which most questions do not need.

        Raises:
            UsageError: they are damaged.
        """
        query = f"SELECT {_METRICS} FROM metrics WHERE {_WHERE_METRIC} AND run = ?"
        known: dict[int, Numbers] = {}  # a base's scores serve many nights
        scores: dict[int, DocumentScores] = {}
        for run in runs:
            for row in self._rows(query, (*key, run)):
                with self._whole(run, key):
                    fields = checked_fields(METRIC_COLUMNS, row)
                    if fields["doc_ids"] is not None:
                        scores[run] = documents_of(self._connection, fields, known, hashes=hashes)
        return scores

    def environment(self, digest: str) -> dict[str, Any]:
        """The packages and machines that a run's digest stands for; {} where they are not kept."""
        query = "SELECT content FROM environments WHERE digest = ?"
        for (content,) in self._rows(query, (digest,)):
            with suppress(ValueError):
                decoded = json.loads(content)
                return decoded if isinstance(decoded, dict) else {}
        return {}

    def remove(self, numbers: Sequence[int]) -> None:
        """Remove runs with everything that no other run needs, in one transaction; then compact.

        Raises:
            UsageError: the file is damaged.
            StoreError: the disk refuses; the file is as it was, or only not compacted.
        """
        rows = [(number,) for number in numbers]
        used = " UNION ".join(
            f"SELECT {name} FROM metrics WHERE {name} IS NOT NULL" for name in VECTOR_COLUMNS
        )
        connection = self._connection
        with translate_errors(self.path, "write"):
            with transaction(connection):
                connection.executemany("DELETE FROM metrics WHERE run = ?", rows)
                connection.executemany("DELETE FROM runs WHERE number = ?", rows)
                connection.execute(f"DELETE FROM vectors WHERE id NOT IN ({used})")
                connection.execute(
                    "DELETE FROM environments WHERE digest NOT IN (SELECT environment FROM runs)"
                )
            compact(connection)

    def check(self) -> HistoryCheck:
        """Read every page, row and vector, to see whether they are what was written.

        Raises:
            UsageError: it cannot be read as a history at all.
            StoreError: the disk refuses.
        """
        with translate_errors(self.path, "read"), transaction(self._connection, writes=False):
            problems = list(self._page_problems())
            for work in (self.runs, self.note_damage, self._check_vectors):
                try:
                    work()
                except DamagedHistoryError as error:
                    problems.append(str(error))
            counts = [self._count(table) for table in ("runs", "metrics", "vectors")]
        return HistoryCheck(
            file=str(self.path),
            version=SCHEMA_VERSION,
            runs=counts[0],
            metrics=counts[1],
            vectors=counts[2],
            size=self.path.stat().st_size,
            problems=(*problems, *self.problems),
        )

    def close(self) -> None:
        """Close the file. May be called twice."""
        self._connection.close()

    def __enter__(self) -> HistoryFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _page_problems(self) -> Iterator[str]:
        """What sqlite3 itself finds: pages, indexes, rows without what they refer to."""
        connection = self._connection
        try:
            for (line,) in connection.execute(f"PRAGMA integrity_check({_MOST_SHOWN})"):
                if line != "ok":
                    yield str(line)
            for table, row, parent, _ in connection.execute("PRAGMA foreign_key_check"):
                yield f"{table}, row {row}: what it refers to in {parent} is gone"
        except sqlite3.DatabaseError as error:
            yield str(error)

    def _check_vectors(self) -> None:
        for (number,) in self._rows("SELECT id FROM vectors", ()):
            try:
                with translate_errors(self.path, "read"):
                    read_vector(self._connection, number)
            except DamagedBlockError as error:
                self.problems[f"vector {number}: {error}"] = 0

    def _count(self, table: str) -> int:
        with suppress(DamagedHistoryError):
            return int(self._rows(f"SELECT count(*) FROM {table}", ())[0][0])
        return 0

    def _sound(
        self, rows: Sequence[Any], made: Callable[[Any], _Made], where: str = ""
    ) -> Iterator[_Made]:
        """What rows say; those that are not what was written are left out, and noted."""
        for row in rows:
            try:
                yield made(row)
            except DamagedBlockError as error:
                names = " ".join(map(str, row[2:5])) if where else f"run {row[0]}"
                self.problems[f"{where}{names}: {error}"] = row[0]

    def _rows(self, query: str, values: Sequence[Any]) -> list[Any]:
        with translate_errors(self.path, "read"):
            return self._connection.execute(query, values).fetchall()

    @contextmanager
    def _whole(self, run: int, key: MetricKey) -> Iterator[None]:
        try:
            with translate_errors(self.path, "read"):
                yield
        except DamagedBlockError as error:
            raise DamagedHistoryError(
                f"the history {self.path} is damaged: documents of {' '.join(key)} in run {run}: "
                f"{error}",
                hint=RESCUE,
            ) from error


def _night(row: Sequence[Any]) -> Night:
    cut = len(RUN_COLUMNS) + 1
    return Night(run=run_of(row[:cut]), metric=metric_of(row[cut:]))
