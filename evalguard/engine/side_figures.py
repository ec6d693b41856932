"""Figures of generated answers that the gate names, as score tables of both sides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from evalguard.answers.compared_generations import pair_answers
from evalguard.answers.figure_tables import (
    EXPECTED,
    Answered,
    answers_by_document,
    figure_tables,
    with_paired_figures,
)
from evalguard.core.expected_answers import ExpectedAnswer
from evalguard.core.figures import figures_of_task
from evalguard.core.gate import Gate
from evalguard.core.scores import ScoreTable
from evalguard.engine.scored_side import ScoredSide
from evalguard.harness.score_tables import TaskScores

Samples = Mapping[str, TaskScores]


def with_named_figures(
    sides: tuple[ScoredSide, ScoredSide],
    gate: Gate,
    expected: Mapping[str, ExpectedAnswer],
) -> tuple[ScoredSide, ScoredSide]:
    """Give both sides the tables of the figures that a gate names, and no other figure's.

    Whoever made a side may have been asked for others, or for none: a finished run's are computed
    from the answers that it keeps.

    Args:
        expected: by task, structure that all of its answers must have, as a guard file says.

    Raises:
        StoreError: samples that were kept are damaged.
    """
    names = gate.figure_names
    base, candidate = (_with_own_figures(side, names, expected) for side in sides)
    ours, theirs = with_both_answers(
        (base.tables, candidate.tables), (base.samples, candidate.samples)
    )
    idle = _unknown_keys(ours, gate) | _unknown_keys(theirs, gate)
    ours, theirs = (tuple(table for table in of if table.key not in idle) for of in (ours, theirs))
    return replace(base, tables=ours), replace(candidate, tables=theirs)


def _unknown_keys(tables: Sequence[ScoreTable], gate: Gate) -> set[tuple[str, str, str]]:
    """Figures that no answer shows, and that are gated only where one does.

    One that is asked for in any other way, of its task or of every task ("cut"), is missed.
    """
    missed = replace(gate, figures_where_known=()).figure_names
    return {
        table.key
        for table in tables
        if table.figure and np.isnan(table.values).all() and not _is_named(table, missed)
    }


def with_both_answers(
    tables: tuple[Sequence[ScoreTable], Sequence[ScoreTable]], samples: tuple[Samples, Samples]
) -> tuple[tuple[ScoreTable, ...], tuple[ScoreTable, ...]]:
    """Both sides' tables, filled in where a figure is of both models' answers."""

    def answers(task: str) -> tuple[Answered, Answered]:
        if any(task not in side for side in samples):
            return {}, {}
        base, candidate = (side[task].samples for side in samples)
        pairs = [*pair_answers(task, base, candidate)]
        return {doc: answer for doc, answer, _ in pairs}, {doc: answer for doc, _, answer in pairs}

    return with_paired_figures(*tables, answers)


def _with_own_figures(
    side: ScoredSide, names: Sequence[str], expected: Mapping[str, ExpectedAnswer]
) -> ScoredSide:
    tables = [
        table
        for table in side.tables
        if not table.figure or (_is_named(table, names) and _is_of(table, expected))
    ]
    for task in dict.fromkeys((*side.samples, *(table.task for table in side.tables))):
        wanted = figures_of_task(names, task)
        own = [table for table in tables if table.task == task]
        known = {table.metric for table in own if table.figure}
        missing = [figure.name for figure in wanted if figure.name not in known]
        if missing and own and task in side.samples:
            answers = answers_by_document(task, side.samples[task].samples)
            largest = max(own, key=lambda table: table.n)
            tables += figure_tables(largest, answers, missing, expected.get(task))
    return replace(side, tables=tuple(tables))


def _is_of(table: ScoreTable, expected: Mapping[str, ExpectedAnswer]) -> bool:
    """Whether a figure was judged by what the guard file says now, if it says anything."""
    own = expected.get(table.task)
    if own is None or table.metric not in own.figures:
        return True
    return table.run.get(EXPECTED) == own.document


def _is_named(table: ScoreTable, names: Sequence[str]) -> bool:
    return any(figure.name == table.metric for figure in figures_of_task(names, table.task))
