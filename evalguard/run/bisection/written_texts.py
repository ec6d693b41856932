"""How much is generated: what a search costs, and what its documents cost on either side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from evalguard.bisect.oracle import Floats
from evalguard.core.figure_scale import FigureScale
from evalguard.core.reports.bisect_report import WrittenTexts
from evalguard.core.scorer import Response
from evalguard.harness.figure_tables import answers_by_document
from evalguard.run.bisection.search import SearchPlan
from evalguard.run.scoring.scored_side import ScoredSide
from evalguard.stats.answers.document_answers import DocumentAnswers


def count_responses(responses: Sequence[Response]) -> WrittenTexts:
    """How much was generated now."""
    tokens = [None if one.generated is None else len(one.generated) for one in responses]
    return _counted(tokens, sum(len(one.text or "") for one in responses))


def count_texts(answers: Iterable[DocumentAnswers]) -> WrittenTexts:
    """How much was generated for these documents."""
    answers = [*answers]
    tokens = [None if one is None else len(one) for of in answers for one in of.tokens or (None,)]
    return _counted(tokens, sum(len(text) for of in answers for text in of.texts))


def written_by(side: ScoredSide, scale: FigureScale) -> Mapping[int, DocumentAnswers]:
    """What a side generated for a figure's documents, by doc_id."""
    task = scale.key[0]
    if task not in side.samples:
        return {}
    answers = answers_by_document(task, side.samples[task].samples)
    return {doc: answers[doc] for doc in scale.doc_ids if doc in answers}


def are_drawn(side: ScoredSide, scale: FigureScale) -> bool:
    """Whether a side's texts are drawn at random, so that another block draws other ones."""
    return any(one.drawn for one in written_by(side, scale).values())


def document_costs(plan: SearchPlan, scale: FigureScale) -> tuple[Floats, Floats] | None:
    """Characters that either side generated for each document, (n,); None where one is unknown."""
    sides = [written_by(side, scale) for side in plan.scored]
    if any(len(side) < len(scale.doc_ids) for side in sides):
        return None
    base, candidate = (
        np.array([sum(map(len, side[doc].texts)) for doc in scale.doc_ids], dtype=np.float64)
        for side in sides
    )
    return base, candidate


def _counted(tokens: Sequence[int | None], characters: int) -> WrittenTexts:
    known = [one for one in tokens if one is not None]
    return WrittenTexts(
        tokens=sum(known) if len(known) == len(tokens) else None, characters=characters
    )
