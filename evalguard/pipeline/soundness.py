"""Scores of documents on which a model gave no number are no scores, whatever the metric."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from evalguard.harness import TaskScores
from evalguard.scorer import Request, Response
from evalguard.scores import ScoreTable


def only_sound(
    scores: TaskScores, requests: Sequence[Request], responses: Sequence[Response]
) -> TaskScores:
    """Give NaN to every metric of a document with a likelihood that is none (NaN or +inf).

    An accuracy would hide it: the largest of several NaN is the first, so that a model of NaN
    answers every multiple-choice question, and some of them correctly.
    """
    broken = {
        request.doc_id
        for request, response in zip(requests, responses, strict=True)
        if response.loglikelihood is not None and _is_none(response.loglikelihood)
    }
    if not broken:
        return scores
    return replace(scores, tables=tuple(_without(table, broken) for table in scores.tables))


def _is_none(loglikelihood: float) -> bool:
    return math.isnan(loglikelihood) or loglikelihood == math.inf


def _without(table: ScoreTable, broken: set[int]) -> ScoreTable:
    values = np.where(np.isin(table.doc_ids, sorted(broken)), math.nan, table.values)
    return replace(table, values=values)
