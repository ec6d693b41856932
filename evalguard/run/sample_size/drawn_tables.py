"""What a stored run says of the documents that a sequential run has drawn."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from evalguard.core.document_fields import DocumentFields
from evalguard.core.score_rows import pick_rows
from evalguard.core.scores import NotCompared, ScoreTable
from evalguard.harness.score_tables import TaskScores
from evalguard.run.sample_size.draws import TablesByKey, TaskSample
from evalguard.run.scoring.scored_side import ScoredSide
from evalguard.run.sources import StoredSource

SideTables = tuple[tuple[ScoreTable, ...], tuple[NotCompared, ...], Mapping[str, DocumentFields]]


def tables_of_run(source: StoredSource, draw: TaskSample) -> SideTables:
    """A finished run's scores of the documents drawn so far."""
    tables = tuple(_pick_rows(table, draw) for table in tables_of_task(source, draw.task))
    left_out = tuple(left for left in source.run.not_compared if left.task == draw.task)
    fields = {task: of for task, of in source.run.fields.items() if task == draw.task}
    return tables, left_out, fields


def tables_of_task(source: StoredSource, task: str) -> tuple[ScoreTable, ...]:
    """A finished run's scores of a task."""
    return tuple(table for table in source.run.tables if table.task == task)


def only_sampled(side: ScoredSide, draws: Mapping[str, TaskSample]) -> ScoredSide:
    """A finished run's side, with the documents that the other side was asked."""
    tables = tuple(
        _pick_rows(table, draws[table.task]) if table.task in draws else table
        for table in side.tables
    )
    samples = {
        task: _pick_samples(of, draws[task]) if task in draws else of
        for task, of in side.samples.items()
    }
    return replace(side, tables=tables, samples=samples)


def _pick_samples(of: TaskScores, draw: TaskSample) -> TaskScores:
    if draw.complete:
        return of
    drawn = set(draw.drawn)
    return replace(
        of,
        tables=tuple(_pick_rows(table, draw) for table in of.tables),
        samples=tuple(row for row in of.samples if row["doc_id"] in drawn),
    )


def _pick_rows(table: ScoreTable, draw: TaskSample) -> ScoreTable:
    if draw.complete:
        return table
    return pick_rows(table, np.flatnonzero(np.isin(table.doc_ids, np.asarray(draw.drawn))))


def index_tables(tables: Iterable[ScoreTable]) -> TablesByKey:
    """Tables by task, filter and metric."""
    return {table.key: table for table in tables}
