"""Score tables of figures of generated answers, of those that a gate names."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from evalguard.core.answer_figures import FIGURES, AnswerFigure
from evalguard.core.documents.columns import Rows
from evalguard.core.expected_answers import ExpectedAnswer
from evalguard.core.figure_names import WHOLE_TEXT, figures_of_task
from evalguard.core.score_rows import pick_rows
from evalguard.core.scores import ScoreTable, Uninformative
from evalguard.harness.read_answers import read_answers
from evalguard.stats.answers.document_answers import (
    OF_CALLS,
    DocumentAnswers,
    figure_of_each,
    figure_value,
    has_calls,
    paired_figure_value,
    structure_verdicts,
    verdict_of_each,
)
from evalguard.stats.answers.first_difference import judged_documents, shows_odds
from evalguard.stats.answers.repeats import mean
from evalguard.stats.answers.structure import STRUCTURES, describe_kinds
from evalguard.stats.answers.uninformative import WITHOUT_ANSWER, with_uninformative

EXPECTED = "answers"
"""Key of a table's ``run``: what structure a guard file says that answers must have."""
Answered = Mapping[int, DocumentAnswers]
_OfEach = Mapping[int, "tuple[float, ...]"]
_OF_ODDS = "first_difference_beyond_ties"
# What texts of white space alone do not make good: they neither loop nor differ.
_SAY_SOMETHING_OF_EMPTY = ("tokens", "cut", "empty", "no_answer", "refused")


def answers_by_document(task: str, rows: Rows) -> dict[int, DocumentAnswers]:
    """What was generated for a task's documents, by doc_id."""
    return {one.doc_id: one.answers for one in read_answers(task, rows) if one is not None}


def figure_tables(
    template: ScoreTable,
    answers: Answered,
    names: Sequence[str],
    expected: ExpectedAnswer | None = None,
) -> tuple[ScoreTable, ...]:
    """Make the tables of a task's figures, one per figure and, where it is of one, filter.

    A document of which a figure is not known has NaN. So have all of them in a figure that is
    known beside the other model's answers only, until ``with_paired_figures`` has these.

    Args:
        template: a table of the task and the model, with its documents and their hashes.
        answers: what was generated; {}: the task generates nothing, and has no figure.
        names: as a gate has them: "loops", "gsm8k/loops", "no_answer,strict-match".
        expected: structure that all of the task's answers must have; None: each document says its
            own, if any. Tables of structure keep it in their ``run``.
    """
    if not answers:
        return ()
    if expected is not None:
        answers = {doc: replace(one, expected=expected) for doc, one in answers.items()}
    blank = _without_scores(template, answers)
    own = {doc_id: answers[doc_id] for doc_id in blank.doc_ids.tolist()}
    empty = _nearly_all_empty(own)
    tables: list[ScoreTable] = []
    for figure in figures_of_task(names, template.task):
        if figure.per_filter:
            of_filters = _missing_by_filter(answers) or {WHOLE_TEXT: {}}
            tables += [
                _figure_table(blank, figure, name, of, own) for name, of in of_filters.items()
            ]
            continue
        if figure.name in STRUCTURES:
            table = _structure_table(blank, figure, own)
        else:
            values = {} if figure.paired else _values(figure.name, own)
            table = _figure_table(blank, figure, WHOLE_TEXT, values, own)
        if expected is not None and figure.name in expected.figures:
            table = replace(table, run={**table.run, EXPECTED: expected.document})
        says_something = figure.name in _SAY_SOMETHING_OF_EMPTY
        tables.append(table if says_something else with_uninformative(table, empty))
    return tuple(tables)


def _structure_table(blank: ScoreTable, figure: AnswerFigure, answers: Answered) -> ScoreTable:
    """The table of a figure of structure, with what is wrong as a caveat."""
    verdicts = {doc_id: structure_verdicts(figure.name, of) for doc_id, of in answers.items()}
    values = {doc_id: verdict_of_each(of) for doc_id, of in verdicts.items()}
    wrong = describe_kinds(chain.from_iterable(verdicts.values()))
    table = _figure_table(blank, figure, WHOLE_TEXT, values, answers)
    return replace(table, caveats=(*table.caveats, wrong)) if wrong else table


def _values(name: str, answers: Answered) -> _OfEach:
    return {doc_id: figure_of_each(name, of) for doc_id, of in answers.items()}


def _missing_by_filter(answers: Answered) -> dict[str, _OfEach]:
    names = {
        name: None for of in answers.values() if of.known is not None for name in of.known.missing
    }
    return {name: {doc_id: of.missing_in(name) for doc_id, of in answers.items()} for name in names}


def _without_scores(template: ScoreTable, answers: Answered) -> ScoreTable:
    """A table's documents that have answers, with nothing of its metric."""
    there = np.isin(template.doc_ids, np.fromiter(answers, dtype=np.int64, count=len(answers)))
    table = template if there.all() else pick_rows(template, np.flatnonzero(there))
    return replace(
        table,
        aggregation="mean",
        values=np.full(table.n, math.nan),
        weights=None,
        rescoring=None,
        answers=(),
        uninformative=None,
        figure=True,
    )


def _figure_table(
    blank: ScoreTable,
    figure: AnswerFigure,
    filter_name: str,
    values: _OfEach,
    answers: Answered,
) -> ScoreTable:
    """The table of a figure; ``values``: of each answer, () where that of any is not known."""
    return replace(
        blank,
        filter=filter_name,
        metric=figure.name,
        higher_is_better=figure.worse == "fewer",
        directed=figure.worse is not None,
        values=_in_order(blank, {doc: mean(of) for doc, of in values.items() if of}),
        each_answer=_each_answer(blank, values, answers),
    )


def _each_answer(
    blank: ScoreTable, values: _OfEach, answers: Answered
) -> NDArray[np.float64] | None:
    """A figure of every answer, where these are several or sampled; NaN where it is not known."""
    counts = {len(of) for of in values.values() if of}
    if len(counts) != 1:
        return None
    (repeats,) = counts
    if repeats == 1 and not any(of.drawn for of in answers.values()):
        return None
    unknown = (math.nan,) * repeats
    return np.array([values.get(doc_id) or unknown for doc_id in blank.doc_ids.tolist()])


def _in_order(table: ScoreTable, values: Mapping[int, float]) -> NDArray[np.float64]:
    """Values in the order of a table's documents, NaN where there is none."""
    return np.array([values.get(doc_id, math.nan) for doc_id in table.doc_ids.tolist()])


def _nearly_all_empty(answers: Answered) -> Uninformative | None:
    blank = [figure_value("empty", of) == 1.0 for of in answers.values()]
    n = len(blank)
    if not n or sum(blank) < WITHOUT_ANSWER * n:
        return None
    return Uninformative(kind="empty", documents=sum(blank), n=n)


def with_paired_figures(
    base: Sequence[ScoreTable],
    candidate: Sequence[ScoreTable],
    answers: Callable[[str], tuple[Answered, Answered]],
) -> tuple[tuple[ScoreTable, ...], tuple[ScoreTable, ...]]:
    """Fill in the figures that are of both models' answers.

    The base's table has what its answers are beside themselves where the figure of a document is
    known.

    Args:
        answers: of a task, both models' answers to the documents that both were asked.
    """
    theirs = {table.key: table for table in candidate}
    wanted = [
        table.key
        for table in base
        if table.figure and FIGURES[table.metric].paired and table.key in theirs
    ]
    if not wanted:
        return tuple(base), tuple(candidate)
    values: dict[tuple[str, str, str], dict[int, float]] = {}
    shown: dict[str, tuple[Answered, Answered]] = {}
    for key in wanted:
        task, _, name = key
        if task not in shown:
            shown[task] = answers(task)
        ours, others = shown[task]
        found = {
            doc: paired_figure_value(name, ours[doc], others[doc]) for doc in ours if doc in others
        }
        odds: dict[int, bool] = {}
        if name == _OF_ODDS:
            differing = [doc for doc in found if ours[doc].texts != others[doc].texts]
            odds = {doc: shows_odds(ours[doc].tokens, others[doc].tokens) for doc in differing}
        values[key] = judged_documents(found, odds)
        if name == OF_CALLS and not any(map(has_calls, (*ours.values(), *others.values()))):
            values[key] = {}  # nobody calls anything, and nothing is known of calls
    own = {key: dict.fromkeys(of, FIGURES[key[2]].of_base) for key, of in values.items()}
    return _filled(base, own), _filled(candidate, values)


def _filled(
    tables: Sequence[ScoreTable], values: Mapping[tuple[str, str, str], Mapping[int, float]]
) -> tuple[ScoreTable, ...]:
    return tuple(
        replace(table, values=_in_order(table, values[table.key])) if table.key in values else table
        for table in tables
    )
