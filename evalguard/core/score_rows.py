"""Rows of a score table: checked, sorted, picked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from evalguard.core.scores import ScoreTable
from evalguard.errors import MisalignedRunsError

_Field = TypeVar("_Field", str, bool)
_WEIGHTED = frozenset({"weighted_perplexity", "bits_per_byte"})


def order_rows(table: ScoreTable, name: str) -> ScoreTable:
    """Return the table in ascending doc_id; the same object where it already is.

    Raises:
        MisalignedRunsError: for a malformed table or a doc_id that occurs twice.
    """
    _check_shapes(table, name)
    order = np.argsort(table.doc_ids, kind="stable")
    if not np.array_equal(order, np.arange(table.n)):
        table = pick_rows(table, order)
    repeated = np.flatnonzero(table.doc_ids[1:] == table.doc_ids[:-1])
    if repeated.size:
        raise MisalignedRunsError(
            f"{name} has {repeated.size:,} repeated doc_ids (first: {table.doc_ids[repeated[0]]})",
            of=f"{table.task} ({table.filter}) {table.metric}",
            hint="average repeated runs of a document before they are paired",
        )
    return table


def pick_rows(table: ScoreTable, rows: NDArray[np.int64]) -> ScoreTable:
    """Return the table's rows at these positions, in this order."""

    def pick(fields: Sequence[_Field]) -> tuple[_Field, ...]:
        return tuple(fields[row] for row in rows) if fields else ()

    return replace(
        table,
        doc_ids=table.doc_ids[rows],
        values=table.values[rows],
        weights=None if table.weights is None else table.weights[rows],
        rescoring=None if table.rescoring is None else table.rescoring.picked(rows),
        doc_hashes=pick(table.doc_hashes),
        prompt_hashes=pick(table.prompt_hashes),
        target_hashes=pick(table.target_hashes),
        asked_hashes=pick(table.asked_hashes),
        token_hashes=pick(table.token_hashes),
        each_answer=None if table.each_answer is None else table.each_answer[rows],
        answers=pick(table.answers),
        clusters=pick(table.clusters),
        cut=pick(table.cut),
    )


def finite_rows(base: ScoreTable, candidate: ScoreTable) -> tuple[ScoreTable, ScoreTable]:
    """Return two tables of the same documents without those that lack a finite score on a side.

    The same objects where there is nothing to leave out, or the documents are not the same.
    """
    if not np.array_equal(base.doc_ids, candidate.doc_ids):
        return base, candidate
    finite = np.isfinite(base.values) & np.isfinite(candidate.values)
    if bool(finite.all()):
        return base, candidate
    rows = np.flatnonzero(finite)
    return pick_rows(base, rows), pick_rows(candidate, rows)


def _check_shapes(table: ScoreTable, name: str) -> None:
    n = table.n
    problems = []
    if table.doc_ids.shape != (n,):
        problems.append(f"doc_ids of shape {table.doc_ids.shape}")
    if table.values.shape != (n,):
        problems.append(f"values of shape {table.values.shape}")
    if table.weights is not None and table.weights.shape != (n,):
        problems.append(f"weights of shape {table.weights.shape}")
    if (table.rescoring is not None) != (table.aggregation == "other"):
        problems.append(f"aggregation {table.aggregation} and rescoring {table.rescoring}")
    elif table.rescoring is not None and len(table.rescoring.items) != n:
        problems.append(f"{len(table.rescoring.items)} items to rescore")
    if table.each_answer is not None and table.each_answer.shape[0] != n:
        problems.append(f"single answers of shape {table.each_answer.shape}")
    for field in ("doc_hashes", "prompt_hashes", "target_hashes"):
        if len(getattr(table, field)) != n:
            problems.append(f"{len(getattr(table, field))} {field}")
    for field in ("asked_hashes", "token_hashes", "answers", "clusters", "cut"):
        if len(getattr(table, field)) not in (0, n):
            problems.append(f"{len(getattr(table, field))} {field}")
    if (table.weights is not None) != (table.aggregation in _WEIGHTED):
        found = "no weights" if table.weights is None else "weights, which have no use"
        problems.append(f"{found} for {table.aggregation}")
    if problems:
        raise MisalignedRunsError(
            f"{name} has a malformed score table of {n:,} documents with {', '.join(problems)}",
            of=f"{table.task} ({table.filter}) {table.metric}",
        )
