"""The candidate under one assignment of its settings.

The blocks of documents that are requested from it, and the scores that its answers give.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np
from numpy.typing import NDArray

from evalguard.bisect.oracle import Floats, Untestable
from evalguard.core.answer_scale import AnswerScale
from evalguard.core.divergence import Divergence
from evalguard.core.limit_scale import LimitScale
from evalguard.core.scorer import ModelDescription, Response
from evalguard.core.settings import digest_of
from evalguard.errors import EvalguardError, EvaluationError
from evalguard.harness.blocks import RequestBlock
from evalguard.harness.requests import TaskRequests, documents_of
from evalguard.harness.tables import TaskScores
from evalguard.run.executing.base_references import BaseReferences
from evalguard.run.executing.refusals import refusal_of
from evalguard.run.executing.work import Unit, WorkRunner
from evalguard.run.loading.lazy_scorer import OtherModelError
from evalguard.run.loading.loading_facts import OBSERVED, KnownModel
from evalguard.run.scoring.evaluate import Evaluator
from evalguard.run.sources import ModelSource

CutBlocks = Callable[[TaskRequests], list[RequestBlock]]
DocumentParts = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DocumentBlock:
    """Documents that are answered together: one block, or one for each kind of request.

    Attributes:
        documents: (k,) rows of the base's table.
        doc_ids: of all documents of the blocks, with or without a value in that table.
        blocks: places of its blocks among all blocks of the task.
        digest: of what is asked.
    """

    documents: NDArray[np.intp]
    doc_ids: tuple[int, ...]
    blocks: tuple[int, ...]
    digest: str


def cut_as_compared(
    requests: TaskRequests, cut: CutBlocks, parts: DocumentParts
) -> list[RequestBlock]:
    """Cut requests as compare did.

    Args:
        parts: doc_ids that a sequential run asked look by look; (): all were asked at once.
    """
    if not parts:
        return cut(requests)
    return [block for part in parts for block in cut(documents_of(requests, part))]


def join_document_blocks(
    blocks: Sequence[RequestBlock], rows: Sequence[int]
) -> tuple[DocumentBlock, ...]:
    """Put together the blocks that share documents; a task may ask in several kinds of requests.

    Args:
        rows: doc_ids of the base's table, in its order.

    Returns:
        Every row in one of them; blocks without any row are left out.
    """
    row_of = {doc_id: row for row, doc_id in enumerate(rows)}
    found = []
    for places in _connected_places([block.doc_ids for block in blocks]):
        doc_ids = tuple(sorted({doc_id for place in places for doc_id in blocks[place].doc_ids}))
        documents = [row_of[doc_id] for doc_id in doc_ids if doc_id in row_of]
        if documents:
            digests = [blocks[place].digest for place in places]
            found.append(
                DocumentBlock(
                    documents=np.array(documents, dtype=np.intp),
                    doc_ids=doc_ids,
                    blocks=tuple(places),
                    digest=digests[0] if len(digests) == 1 else digest_of(digests),
                )
            )
    return tuple(found)


def _connected_places(members: Sequence[Sequence[int]]) -> list[list[int]]:
    """Places whose members overlap, directly or through others; in order of the first."""
    group_of: dict[int, list[int]] = {}
    groups: list[list[int]] = []
    for place, ids in enumerate(members):
        met = {id(group): group for one in ids if (group := group_of.get(one)) is not None}
        merged = [*sorted(other for group in met.values() for other in group), place]
        groups = [group for group in groups if id(group) not in met] + [merged]
        for one in (one for other in merged for one in members[other]):
            group_of[one] = merged
    return sorted(groups)


# Assigned: the candidate under one assignment of its settings, and all that is known of it.


# None: how a request without any scored position diverges.
ProbeAnswer = Response | Divergence | None


@dataclass(slots=True, kw_only=True, eq=False)
class AssignedCandidate:
    """One assignment.

    Attributes:
        source: the candidate under it.
        known: what is remembered of the model from earlier runs.
        settings: those at their candidate value.
        description: what was loaded, now or before.
        refusal: why it cannot be tested.
        values: by document block, what the metric's table has for its documents.
        requests, blocks: what it is asked; None, until that is known.
        answers: to blocks of which not all of a document block's are there: responses, or how
            their distributions diverge from the base's.
    """

    source: ModelSource
    known: KnownModel | None
    settings: tuple[str, ...] = ()
    description: ModelDescription | None = None
    refusal: Untestable | None = None
    values: dict[str, Floats] = field(default_factory=dict)
    requests: TaskRequests | None = None
    blocks: Sequence[RequestBlock] = ()
    answers: dict[str, Sequence[ProbeAnswer]] = field(default_factory=dict)
    _loaded: bool = False

    @property
    def proof(self) -> str | None:
        """Digest of all that decides its answers; None where that is not proven, or not yet."""
        return self.key if self.known is None else self.known.key

    @property
    def key(self) -> str | None:
        """Under which its responses are kept, as compare keeps them; None where they are not."""
        identity = None if self.description is None else self.description.identity
        return None if identity is None else digest_of(dict(identity))

    def describe_as(self, found: ModelDescription) -> None:
        """Take in what was loaded.

        Raises:
            OtherModelError: it is not what was remembered; that is put right for the next time.
            EvaluationError: files have changed since the bisection began.
        """
        if self.known is not None:
            self.known = self.known.watched(found)
            found = self.known.identify(found)
        before, self.description = self.description, found
        identity = found.identity or {}
        if self.known is None:
            if self._loaded and before is not None and before.identity != found.identity:
                raise self._changed()
        elif self.known.observes and found.identity is None:
            pass  # code of others has done what nobody can check: nothing of it is kept
        elif any(identity.get(name) != proof for name, proof in self.known.proofs.items()):
            raise self._changed()
        elif before is None or before.identity != found.identity:
            self.known.describe_as(found)
            if before is not None and not _differs_in_batches_only(before, found):
                raise OtherModelError(
                    f"{self.source.name} is not what it was when it was loaded before, though "
                    "nothing that it is loaded from has changed",
                    hint="what was remembered of it is put right: run the same command again",
                )
        self._loaded = True

    def _changed(self) -> EvaluationError:
        return EvaluationError(
            f"files that '{self.source.name}' is loaded from changed while it was bisected",
            hint="run the same command again when they are finished",
        )


def _differs_in_batches_only(before: ModelDescription, found: ModelDescription) -> bool:
    """Whether only batches differ, as where memory ran out, or what was read meanwhile."""
    ours, theirs = dict(before.identity or {}), dict(found.identity or {})
    for name in ("policy", OBSERVED):
        ours.pop(name, None)
        theirs.pop(name, None)
    return ours == theirs


# Asking: what an assignment is asked about documents, and what its answers are worth.


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
            base's distributions, for a limit on them.
    """

    evaluator: Evaluator
    key: tuple[str, str, str]
    rows: Sequence[int]
    parts: DocumentParts = ()
    doc_ids: Sequence[tuple[int, ...]] = ()
    limit: LimitScale | AnswerScale | None = None
    beside: BaseReferences | None = None

    def cut(self, assigned: AssignedCandidate, runner: WorkRunner) -> Sequence[RequestBlock]:
        """Build an assignment's requests, once, and cut them into blocks as compare does.

        Raises:
            EvalguardError: they cannot be built; where every model has its own chat template, the
                assignment's has to be loaded for it.
        """
        if not assigned.blocks:
            requests = self.requests(assigned, runner)
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
        table = next((table for table in scores.tables if table.key == self.key), None)
        found: dict[int, float] = {}
        if table is not None:
            found = dict(zip(table.doc_ids.tolist(), table.values.tolist(), strict=True))
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
