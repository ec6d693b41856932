"""What an assignment is asked about documents, and what its answers are worth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np

from evalguard.bisect.oracle import Floats, Untestable
from evalguard.core.answer_scale import AnswerScale
from evalguard.core.divergence import Divergence
from evalguard.core.figure_scale import FigureScale, values_by_document
from evalguard.core.limit_scale import LimitScale
from evalguard.core.scorer import Response
from evalguard.core.scores import ScoreTable
from evalguard.errors import EvalguardError, EvaluationError
from evalguard.harness.document_subset import documents_of
from evalguard.harness.figure_tables import Answered, answers_by_document, with_paired_figures
from evalguard.harness.request_blocks import RequestBlock
from evalguard.harness.requests import TaskRequests
from evalguard.harness.score_tables import TaskScores
from evalguard.run.bisection.assigned_candidate import AssignedCandidate, ProbeAnswer
from evalguard.run.bisection.block_scoring import DocumentBlock, DocumentParts, cut_as_compared
from evalguard.run.bisection.early_ends import EarlyEnds
from evalguard.run.executing.base_references import BaseReferences
from evalguard.run.executing.refusals import refusal_of
from evalguard.run.executing.work import Unit, WorkRunner
from evalguard.run.scoring.evaluate import Evaluator

AnswersByRequest = Mapping[tuple[int, int], ProbeAnswer]


@dataclass(slots=True, kw_only=True)
class BlockScoring:
    """One task, asked as in the comparison.

    Attributes:
        key: (task, filter, metric).
        rows: doc_ids of the base's table.
        parts: doc_ids that a sequential run asked look by look; (): all at once.
        doc_ids: of every block of the task, the same under every assignment.
        limit: that documents are held to, in place of a metric; ``beside``: what is kept of the
            base's distributions, for a limit on them. ``base_answers``: what the base generated,
            for a figure of both models' answers.
        early_ends: where texts may end because they have shown what is asked; None: nowhere.
    """

    evaluator: Evaluator
    key: tuple[str, str, str]
    rows: Sequence[int]
    parts: DocumentParts = ()
    doc_ids: Sequence[tuple[int, ...]] = ()
    limit: LimitScale | AnswerScale | FigureScale | None = None
    beside: BaseReferences | None = None
    base_answers: Answered = field(default_factory=dict)
    early_ends: EarlyEnds | None = None

    def cut(self, assigned: AssignedCandidate, runner: WorkRunner) -> Sequence[RequestBlock]:
        """Build an assignment's requests, once, and cut them into blocks as compare does.

        Raises:
            EvalguardError: they cannot be built; where every model has its own chat template, the
                assignment's has to be loaded for it.
        """
        if not assigned.blocks:
            requests = self.requests(assigned, runner)
            if self.early_ends is not None:
                requests = self.early_ends.of(requests)
            assigned.blocks = cut_as_compared(requests, self.evaluator.blocks, self.parts)
            doc_ids = [block.doc_ids for block in assigned.blocks]
            self.doc_ids = self.doc_ids or doc_ids
            if doc_ids != list(self.doc_ids):
                raise EvaluationError(f"task '{self.key[0]}' is cut into other blocks of documents")
        return assigned.blocks

    def requests(self, assigned: AssignedCandidate, runner: WorkRunner) -> TaskRequests:
        """Build an assignment's requests, once.

        Raises:
            EvalguardError: as ``cut``.
        """
        if assigned.requests is None:
            assigned.requests = self._requests(assigned, runner)
        return assigned.requests

    def blocks(
        self, assigned: AssignedCandidate, block: DocumentBlock, runner: WorkRunner
    ) -> list[RequestBlock]:
        """What an assignment is asked about the documents of a block.

        Raises:
            EvalguardError: as ``cut``.
        """
        found = self.cut(assigned, runner)
        return [found[place] for place in block.blocks]

    def units(
        self, assigned: AssignedCandidate, block: DocumentBlock, runner: WorkRunner
    ) -> list[Unit]:
        """What an assignment is asked, and what its distributions are held against.

        Raises:
            EvalguardError: as ``cut``.
        """
        blocks = self.blocks(assigned, block, runner)
        return [Unit(block=one, beside=self.beside) for one in blocks]

    def values(
        self,
        assigned: AssignedCandidate,
        block: DocumentBlock,
        told: AnswersByRequest,
    ) -> Floats:
        """What the metric's table has for the documents of a block, shape (k,).

        Of a limit: what its scale makes of how they diverge.

        Raises:
            Untestable: the answers give no value for one of them.
        """
        if isinstance(self.limit, LimitScale):
            return _divergence_values(self.limit, [self.rows[row] for row in block.documents], told)
        assert assigned.requests is not None
        part = documents_of(assigned.requests, block.doc_ids)
        task, filter_name, metric = self.key
        try:
            answers = part.in_order(cast(Mapping[tuple[int, int], Response], told))
            scores = self.evaluator.scoring.scores(assigned.source.name, part, answers)
        except EvalguardError as error:
            raise refusal_of(error, loaded=True) from error
        if isinstance(self.limit, AnswerScale):
            return _changed_answers(self.limit, scores, block)
        tables: Sequence[ScoreTable] = scores.tables
        if isinstance(self.limit, FigureScale) and self.base_answers:
            theirs = answers_by_document(task, scores.samples)
            both = self.base_answers, theirs
            tables = with_paired_figures(tables, tables, lambda _: both)[1]
        table = next((table for table in tables if table.key == self.key), None)
        found: dict[int, float] = {}
        if table is not None:
            pairs = zip(table.doc_ids.tolist(), table.values.tolist(), strict=True)
            # of a figure NaN is a document that it is not known of; a score of NaN is the search's
            found = {**values_by_document(table)} if table.figure else dict(pairs)
        wanted = [self.rows[row] for row in block.documents.tolist()]
        missing = [doc_id for doc_id in wanted if doc_id not in found]
        if missing:
            why = [left.reason for left in scores.not_compared if left.metric == metric]
            raise Untestable(
                f"its answers to {task} give no {metric} ({filter_name}) for document {missing[0]}"
                + "".join(f": {reason}" for reason in why[:1]),
                kind="not_finite",
            )
        return np.array([found[doc_id] for doc_id in wanted], dtype=np.float64)

    def _requests(self, assigned: AssignedCandidate, runner: WorkRunner) -> TaskRequests:
        tasks, task = self.evaluator.tasks, self.key[0]
        if not self.evaluator.chat:
            return tasks.requests(task)
        return runner.ask(
            assigned.source, lambda scorer: tasks.requests(task, render_chat=scorer.render_chat)
        )


def _changed_answers(limit: AnswerScale, scores: TaskScores, block: DocumentBlock) -> Floats:
    """Which documents have another answer than the base's, shape (k,).

    Raises:
        Untestable: one of them has none.
    """
    tables = [table for table in scores.tables if table.key == limit.metric_key]
    values = limit.values(tables[0], block.documents.tolist()) if tables else np.array([np.nan])
    if np.isnan(values).any():
        raise Untestable(f"it gives no answers by {limit.of}", kind="not_finite")
    return values


def _divergence_values(limit: LimitScale, doc_ids: Sequence[int], told: AnswersByRequest) -> Floats:
    """What a limit's scale makes of documents, shape (k,).

    Raises:
        Untestable: a distribution of one of them is none.
    """
    found: dict[int, list[Divergence]] = {}
    for (doc_id, _), answer in sorted(told.items(), key=lambda one: one[0]):
        if isinstance(answer, Divergence):
            found.setdefault(doc_id, []).append(answer)
    values = np.array([limit.value(found.get(doc_id, ())) for doc_id in doc_ids])
    unsound = [one for one, value in zip(doc_ids, values, strict=True) if not np.isfinite(value)]
    if unsound:
        raise Untestable(
            f"its distributions give no {limit.limit.metric} for document {unsound[0]}",
            kind="not_finite",
        )
    return values
