"""HistoryFile: nights of comparisons in one sqlite3 file, for several processes at a time."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from evalguard.history import DocumentScores, MetricKey, Night, NightMetric, NightRun
from evalguard.settings import Value
from evalguard.store.damage import DamagedBlockError
from evalguard.store.history.database import PATIENCE, connect
from evalguard.store.history.failures import RESCUE, DamagedHistoryError, told
from evalguard.store.history.rows import (
    METRIC_COLUMNS,
    RUN_COLUMNS,
    VECTOR_COLUMNS,
    metric_of,
    metric_values,
    run_of,
    run_values,
)
from evalguard.store.history.vectors import VectorReader, keep_documents

_RUNS = ", ".join(f"runs.{name}" for name in RUN_COLUMNS)
_METRICS = ", ".join(f"metrics.{name}" for name in METRIC_COLUMNS)
_VECTORS = ", ".join(VECTOR_COLUMNS)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptMetric:
    """A metric to be kept, with its documents where each of them has a score."""

    metric: NightMetric
    documents: DocumentScores | None = None


class HistoryFile:
    """A history, open. Numbers of runs are never used again.

    Every write is one transaction: a process that is killed leaves all of a run or nothing of it.

    Raises:
        UsageError: the file is none, damaged, or of a newer evalguard.
        StoreError: the disk refuses, or another process keeps writing.
    """

    def __init__(self, path: Path, *, create: bool = False, patience: float = PATIENCE) -> None:
        self.path = path
        self._connection = connect(path, create=create, patience=patience)

    def add(
        self, run: NightRun, metrics: Sequence[KeptMetric], environment: Mapping[str, Value]
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
        with told(self.path, "write"), self._transaction() as connection:
            connection.execute(
                "INSERT OR IGNORE INTO environments VALUES (?, ?)", (run.environment, content)
            )
            marks = ", ".join("?" * len(RUN_COLUMNS[1:]))
            added = connection.execute(
                f"INSERT INTO runs ({', '.join(RUN_COLUMNS[1:])}) VALUES ({marks})", run_values(run)
            )
            number = int(added.lastrowid or 0)
            for place, kept in enumerate(metrics):
                self._add_metric(number, place, kept)
        return number

    def runs(self, pair: tuple[str, str] | None = None) -> tuple[NightRun, ...]:
        """All runs, or those of a pair, the oldest first.

        Raises:
            UsageError: the file is damaged.
        """
        where, values = ("WHERE base = ? AND candidate = ?", pair) if pair else ("", ())
        query = f"SELECT {_RUNS} FROM runs {where} ORDER BY created, number"
        return tuple(run_of(row) for row in self._rows(query, values))

    def metrics(self, run: int) -> tuple[NightMetric, ...]:
        """The metrics of a run, in the order of its report."""
        query = f"SELECT {_METRICS} FROM metrics WHERE run = ? ORDER BY place"
        return tuple(metric_of(row) for row in self._rows(query, (run,)))

    def nights(self, pair: tuple[str, str], key: MetricKey) -> tuple[Night, ...]:
        """One metric of all runs of a pair, the oldest first."""
        query = (
            f"SELECT {_RUNS}, {_METRICS} FROM metrics JOIN runs ON runs.number = metrics.run "
            "WHERE task = ? AND filter = ? AND metric = ? AND runs.base = ? AND runs.candidate = ? "
            "ORDER BY runs.created, runs.number"
        )
        cut = len(RUN_COLUMNS)
        return tuple(
            Night(run=run_of(row[:cut]), metric=metric_of(row[cut:]))
            for row in self._rows(query, (*key, *pair))
        )

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
        with told(self.path, "write"), self._transaction():
            pass

    def documents(self, runs: Sequence[int], key: MetricKey) -> dict[int, DocumentScores]:
        """The documents of a metric in each of these runs that has them.

        Raises:
            UsageError: they are damaged.
        """
        query = (
            f"SELECT run, aggregation, higher_is_better, {_VECTORS} FROM metrics "
            "WHERE task = ? AND filter = ? AND metric = ? AND run = ? AND doc_ids IS NOT NULL"
        )
        reader = VectorReader(self._connection, {})
        found: dict[int, DocumentScores] = {}
        for run in runs:
            for _, aggregation, higher, *ids in self._rows(query, (*key, run)):
                with self._whole(run, key):
                    found[run] = reader.documents(
                        tuple(ids), aggregation, higher_is_better=bool(higher)
                    )
        return found

    def environment(self, digest: str) -> dict[str, Any]:
        """The packages and machines that a run's digest stands for; {} where they are not kept."""
        query = "SELECT content FROM environments WHERE digest = ?"
        for (content,) in self._rows(query, (digest,)):
            with suppress(ValueError):
                found = json.loads(content)
                return found if isinstance(found, dict) else {}
        return {}

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

    def _add_metric(self, run: int, place: int, kept: KeptMetric) -> None:
        values: dict[str, Any] = {"run": run, "place": place}
        values |= dict(zip(METRIC_COLUMNS, metric_values(kept.metric), strict=True))
        if kept.documents is not None:
            values["aggregation"] = kept.documents.aggregation
            values |= keep_documents(self._connection, kept.documents)
        marks = ", ".join("?" * len(values))
        self._connection.execute(
            f"INSERT INTO metrics ({', '.join(values)}) VALUES ({marks})", list(values.values())
        )

    def _rows(self, query: str, values: Sequence[Any]) -> list[Any]:
        with told(self.path, "read"):
            return self._connection.execute(query, values).fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield self._connection
            self._connection.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")
            raise

    @contextmanager
    def _whole(self, run: int, key: MetricKey) -> Iterator[None]:
        try:
            yield
        except DamagedBlockError as error:
            raise DamagedHistoryError(
                f"the history {self.path} is damaged: documents of {' '.join(key)} in run {run}: "
                f"{error}",
                hint=RESCUE,
            ) from error
