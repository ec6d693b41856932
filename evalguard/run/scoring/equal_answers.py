"""Equal answers of models that differ: few documents do not show that they always agree."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from evalguard.core.documents.columns import pair_columns
from evalguard.core.scores import ScoreTable
from evalguard.core.settings import Value
from evalguard.harness.read_answers import read_request
from evalguard.run.scoring.compared_generations import pair_answers
from evalguard.run.scoring.scored_side import ScoredSide
from evalguard.stats.answers.document_answers import differing_parts
from evalguard.stats.judgement import MetricComparison, judge_equal_answers

# Log-likelihoods that differ by less are one model's: what rounding makes flips hardly any answer.
_ROUNDING = 1e-3


def doubt_equal_answers(
    compared: Sequence[MetricComparison],
    sides: tuple[ScoredSide, ScoredSide],
    tables: Sequence[ScoreTable],
) -> tuple[MetricComparison, ...]:
    """Judge metrics of equal scores by their interval, where the models are not bit-identical.

    A lossless conversion gives every document the same answers and log-likelihoods, and is
    unchanged whatever their number. Where these differ, equal scores of 0 and 1, or of another
    coarse grid (points of a rubric, F1 of short answers), leave room for a drift if documents are
    few.

    Args:
        tables: of the base.
    """
    differ: dict[str, bool] = {}
    spreads = {
        table.key: float(np.ptp(table.values))
        for table in tables
        if table.aggregation == "mean" and table.n and np.isfinite(table.values).all()
    }
    found = []
    for one in compared:
        told = one.comparison
        if told.bit_identical:
            task = told.task
            if task not in differ:
                differ[task] = models_differ(task, sides, compared)
            one = judge_equal_answers(one, spreads.get(told.key, 0.0)) if differ[task] else one
        found.append(one)
    return tuple(found)


def models_differ(
    task: str, sides: tuple[ScoredSide, ScoredSide], compared: Sequence[MetricComparison]
) -> bool:
    """Whether any document's answers (texts, tool calls, thinking, endings) or numbers differ.

    Where a side does not show them, only a metric of the task that is not 0/1 can say that they do
    not: by being bit-identical, too.
    """
    if not all(task in side.samples for side in sides):
        others = [one.comparison for one in compared if one.comparison.task == task]
        return not any(c.bit_identical and c.flips is None for c in others)
    base, candidate = (side.samples[task].samples for side in sides)
    texts, asked = (pair_columns(base, candidate, name) for name in ("text", "arguments"))
    return (
        any(map(_texts_differ, *texts, asked[0]))
        or any(map(_numbers_differ, *pair_columns(base, candidate, "loglikelihood")))
        or any(differing_parts(*both) for _, *both in pair_answers(task, base, candidate))
    )


def _texts_differ(one: Value, other: Value, asked: Value) -> bool:
    if one == other or not any(text is not None for text in _values(one)):
        return False
    request = read_request(asked)
    ours, theirs = (
        [request.without_stop(text) if isinstance(text, str) else text for text in _values(side)]
        for side in (one, other)
    )
    return ours != theirs


def _numbers_differ(one: Value, other: Value) -> bool:
    return any(
        isinstance(a, float)
        and isinstance(b, float)
        and abs(a - b) > _ROUNDING
        and not math.isnan(a)
        for a, b in zip(_values(one), _values(other), strict=False)
    )


def _values(value: object) -> Iterator[object]:
    yield from value if isinstance(value, (list, tuple)) else ()
