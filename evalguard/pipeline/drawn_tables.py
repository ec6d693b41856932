"""Drawn tables: what a stored run says of the documents that a sequential run has drawn."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from evalguard.document_fields import DocumentFields
from evalguard.harness import TaskScores
from evalguard.pairing.rows import picked
from evalguard.pipeline.draw import Draw, Tables
from evalguard.pipeline.scored import Scored
from evalguard.pipeline.sources import StoredSource
from evalguard.scores import NotCompared, ScoreTable

SideTables = tuple[tuple[ScoreTable, ...], tuple[NotCompared, ...], Mapping[str, DocumentFields]]


def of_run(source: StoredSource, draw: Draw) -> SideTables:
    """A finished run's scores of the documents drawn so far."""
    tables = tuple(_picked(table, draw) for table in of_task(source, draw.task))
    left_out = tuple(left for left in source.run.not_compared if left.task == draw.task)
    fields = {task: of for task, of in source.run.fields.items() if task == draw.task}
    return tables, left_out, fields


def of_task(source: StoredSource, task: str) -> tuple[ScoreTable, ...]:
    """A finished run's scores of a task."""
    return tuple(table for table in source.run.tables if table.task == task)


def drawn_only(side: Scored, draws: Mapping[str, Draw]) -> Scored:
    """A finished run's side, with the documents that the other side was asked."""
    tables = tuple(
        _picked(table, draws[table.task]) if table.task in draws else table for table in side.tables
    )
    samples = {
        task: _picked_samples(of, draws[task]) if task in draws else of
        for task, of in side.samples.items()
    }
    return replace(side, tables=tables, samples=samples)


def _picked_samples(of: TaskScores, draw: Draw) -> TaskScores:
    if draw.complete:
        return of
    drawn = set(draw.drawn)
    return replace(
        of,
        tables=tuple(_picked(table, draw) for table in of.tables),
        samples=tuple(row for row in of.samples if row["doc_id"] in drawn),
    )


def _picked(table: ScoreTable, draw: Draw) -> ScoreTable:
    if draw.complete:
        return table
    return picked(table, np.flatnonzero(np.isin(table.doc_ids, np.asarray(draw.drawn))))


def by_key(tables: Iterable[ScoreTable]) -> Tables:
    """Tables by task, filter and metric."""
    return {table.key: table for table in tables}
