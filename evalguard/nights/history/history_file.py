"""HistoryFile: nights of comparisons in one sqlite3 file, for several processes at a time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from evalguard.core.settings import Value
from evalguard.nights.document_scores import HASH_FIELDS, DocumentScores
from evalguard.nights.history.database import PATIENCE, connect, transaction
from evalguard.nights.history.night_rows import (
    METRIC_COLUMNS,
    RUN_COLUMNS,
    VECTOR_COLUMNS,
    metric_of,
    metric_values,
    run_of,
    run_values,
    seal_of,
    select_columns,
)
from evalguard.nights.history.sqlite_errors import RESCUE, DamagedHistoryError, translate_errors
from evalguard.nights.history.vectors import VectorReader, requests_text, store_documents
from evalguard.nights.history_report import MetricKey, Night, NightMetric, NightRun
from evalguard.store.atomic_files import DamagedBlockError

_Made = TypeVar("_Made")
_RUNS = select_columns("runs", RUN_COLUMNS)
_METRICS = select_columns("metrics", METRIC_COLUMNS)
_WHERE_METRIC = "task = ? AND filter = ? AND metric = ?"
_VECTORS = [METRIC_COLUMNS.index(name) for name in VECTOR_COLUMNS]
_AGGREGATION = METRIC_COLUMNS.index("aggregation")
_HASHES = {name: METRIC_COLUMNS.index(name) for name in HASH_FIELDS}
_REQUESTS = METRIC_COLUMNS.index("asked")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMetric:
    """A metric to be kept, with its documents where each of them has a score."""

    metric: NightMetric
    documents: DocumentScores | None = None


class HistoryFile:
    """A history, open. Numbers of runs are never used again.

    Every write is one transaction: a process that is killed leaves all of a run or nothing of it.

    Attributes:
        problems: rows that were left out so far, because they are not what was written.

    Raises:
        UsageError: the file is none, damaged, or of a newer evalguard.
        StoreError: the disk refuses, or another process keeps writing.
    """

    def __init__(self, path: Path, *, create: bool = False, patience: float = PATIENCE) -> None:
        self.path = path
        self.problems: dict[str, None] = {}
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
            values = run_values(run)
            added = connection.execute(
                f"INSERT INTO runs ({', '.join(RUN_COLUMNS[1:])}) "
                f"VALUES ({', '.join('?' * len(values))})",
                values,
            )
            number = int(added.lastrowid or 0)
            seal = (seal_of((number, *values)), number)
            connection.execute("UPDATE runs SET seal = ? WHERE number = ?", seal)
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
        for row in self._rows(f"SELECT {_METRICS} FROM metrics", ()):
            if next(self._sound([row], metric_of, f"run {row[0]}, "), None) and row[0] not in runs:
                self.problems.setdefault(f"run {row[0]} is gone, and its metrics are not")

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
        reader = VectorReader(self._connection, {})
        found: dict[int, DocumentScores] = {}
        for run in runs:
            for row in self._rows(query, (*key, run)):
                with self._whole(run, key):
                    metric = metric_of(row)
                    if row[_VECTORS[0]] is None:
                        continue
                    scores = reader.documents(
                        tuple(row[place] for place in _VECTORS),
                        row[_AGGREGATION],
                        higher_is_better=metric.higher_is_better,
                    )
                    if hashes:
                        ids = {name: row[place] for name, place in _HASHES.items()}
                        scores = replace(scores, hashes=reader.hashes(ids, row[_REQUESTS]))
                    found[run] = scores
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

    def _add_metric(self, run: int, place: int, kept: StoredMetric) -> None:
        values = dict.fromkeys(METRIC_COLUMNS) | metric_values(kept.metric)
        values |= {"run": run, "place": place, "asked": ""}
        if kept.documents is not None:
            values["aggregation"] = kept.documents.aggregation
            values["asked"] = requests_text(kept.documents.hashes)
            values |= store_documents(self._connection, kept.documents)
        row = [values[name] for name in METRIC_COLUMNS]
        self._connection.execute(
            f"INSERT INTO metrics ({', '.join(METRIC_COLUMNS)}, seal) "
            f"VALUES ({', '.join('?' * len(row))}, ?)",
            (*row, seal_of(row)),
        )

    def _sound(
        self, rows: Sequence[Any], made: Callable[[Any], _Made], where: str = ""
    ) -> Iterator[_Made]:
        """What rows say; those that are not what was written are left out, and noted."""
        for row in rows:
            try:
                yield made(row)
            except DamagedBlockError as error:
                names = " ".join(map(str, row[2:5])) if where else f"run {row[0]}"
                self.problems.setdefault(f"{where}{names}: {error}")

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
