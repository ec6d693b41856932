"""What an assignment is asked about documents, and what its answers are worth."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import numpy as np

from evalguard.answers.figure_tables import Answered, answers_by_document, with_paired_figures
from evalguard.bisect.oracle.assigned_candidate import (
    AssignedCandidate,
    DocumentBlock,
    DocumentParts,
    ProbeAnswer,
    cut_as_compared,
    settings_off_reference,
)
from evalguard.bisect.oracle.settings_oracle import OracleContext, OracleRequest
from evalguard.bisect.scales import AnswerScale, FigureScale, LimitScale, values_by_document
from evalguard.config.options import CompareOptions
from evalguard.core.divergence import Divergence
from evalguard.core.gate_state import Key
from evalguard.core.loops import END_AT
from evalguard.core.question import Floats, Untestable
from evalguard.core.scorer import Request, Response, ScoringPolicy
from evalguard.core.scores import ScoreTable
from evalguard.core.settings import Assignment, Setting, Value
from evalguard.engine.batches import policy_for_ends
from evalguard.engine.block_store import BaseReferences, Unit
from evalguard.engine.choices import Choices
from evalguard.engine.error_places import with_location
from evalguard.engine.executor import Executor
from evalguard.engine.loading.foreign_code import note_task_code
from evalguard.engine.loading.known_models import KnownModel, KnownModels
from evalguard.engine.refusals import refusal_of
from evalguard.engine.slots import WorkRunner
from evalguard.engine.sources import ModelSource
from evalguard.engine.task_scores import TaskScoring
from evalguard.errors import EvalguardError, EvaluationError
from evalguard.harness.request_blocks import RequestBlock
from evalguard.harness.requests import TaskRequests, documents_of
from evalguard.harness.score_tables import TaskScores
from evalguard.harness.tasks import load_tasks
from evalguard.models.arguments import HF_TYPES
from evalguard.models.tokenizers import clear_shared_texts
from evalguard.page.progress import ProgressLine
from evalguard.store.cache_folder import open_cache_dir
from evalguard.store.fact_cache import FactCache, open_facts

_LOOPS = "loops"
_DIFFERENCES = ("first_difference", "first_difference_beyond_ties")


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyEnds:
    """Where the texts for a figure end: at their first loop, or at the first other token.

    Nothing else may be judged by such texts.

    Attributes:
        loop: at the first loop.
        others: by doc_id, the base's token ids; the first other one ends the text.
    """

    loop: bool = False
    others: Mapping[int, tuple[int, ...]]

    @classmethod
    def for_figure(cls, figure: str, candidate: ModelSource, base: Answered) -> EarlyEnds | None:
        """Where texts for a figure may end; None where all of them are needed, or the model cannot.

        Args:
            base: what the base generated, by doc_id.
        """
        if candidate.variant.model not in HF_TYPES:
            return None
        if figure == _LOOPS:
            return cls(loop=True, others={})
        if figure not in _DIFFERENCES:
            return None
        shown = {doc: [*of.tokens] for doc, of in base.items() if len(of.texts) == 1}
        ids = {
            doc: tuple(tokens[0].ids.tolist())
            for doc, tokens in shown.items()
            if len(tokens) == 1 and tokens[0] is not None
        }
        return cls(others=ids) if ids else None

    def of(self, requests: TaskRequests) -> TaskRequests:
        """The same requests, whose texts may end early."""
        return replace(requests, requests=tuple(map(self.ended, requests.requests)))

    def ended(self, request: Request) -> Request:
        """The same request, whose text may end early."""
        end: dict[str, Value] = {"loop": True} if self.loop else {}
        if request.doc_id in self.others:
            end = {"other_than": list(self.others[request.doc_id])}
        options = request.arguments[-1] if request.kind == "generate_until" else None
        if not end or not isinstance(options, Mapping):
            return request
        arguments = (*request.arguments[:-1], {**options, END_AT: end})
        return replace(request, arguments=arguments)


Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeContext:
    """What probes share: the task, the caches, and how all are scored.

    ``candidate`` is as it was compared; ``models`` what is remembered of models, None: nothing;
    ``kept`` the folder of what is finished, None: nothing is kept.
    """

    candidate: ModelSource
    choices: Choices
    options: CompareOptions
    key: Key
    executor: Executor
    policy: ScoringPolicy
    cache_dir: Path
    models: KnownModels | None
    kept: Path | None

    @classmethod
    def opened(
        cls, inquiry: OracleRequest, surroundings: OracleContext, stack: ExitStack
    ) -> ProbeContext:
        """Load the task and open the caches; ``stack`` clears up.

        Raises:
            EvalguardError: as loading a task does.
        """
        choices, options = surroundings.choices, surroundings.options
        candidate, task = inquiry.candidate, inquiry.key[0]
        cache_dir = open_cache_dir(options.cache_dir)
        folder = cache_dir if options.use_cache else surroundings.kept
        # Before the task brings in libraries, which set variables of their own.
        models = KnownModels.kept_in(cache_dir) if options.use_cache else None
        stack.callback(clear_shared_texts)
        if models is not None:
            stack.callback(models.left)
        ends = [side.description for side in inquiry.scored if side.description is not None]
        tasks = load_tasks([task], options=choices.task_options)
        note_task_code(tasks.executed)
        executor = Executor(
            tasks=tasks,
            kept=folder,
            progress=_NotesOnly(surroundings.say),
            chat=bool(choices.task_options.apply_chat_template),
            scoring=TaskScoring(figures=choices.gate.figure_names, expected=choices.answers),
        )
        policy = policy_for_ends(candidate.policy or choices.policy, ends, candidate.variant.model)
        return cls(
            candidate=replace(candidate, policy=policy),
            choices=choices,
            options=replace(options, worker="always"),
            key=inquiry.key,
            executor=executor,
            policy=policy,
            cache_dir=cache_dir,
            models=models,
            kept=folder,
        )

    @property
    def declared(self) -> tuple[Setting, ...]:
        """The candidate's settings whose two values differ as they are written."""
        return settings_off_reference(self.candidate.variant)

    def assigned(self, values: Assignment) -> AssignedCandidate:
        """The candidate under an assignment of some of its settings.

        Raises:
            EvalguardError: it cannot be planned or built, or a constraint excludes it.
        """
        variant = self.candidate.variant.assigned(values)
        return self.identified(replace(self.candidate, variant=variant))

    @property
    def facts(self) -> FactCache | None:
        """What is known of assignments beside their answers."""
        return None if self.kept is None else open_facts(self.kept)

    def identified(self, source: ModelSource) -> AssignedCandidate:
        """A model, with what is remembered of it.

        Raises:
            EvalguardError: it cannot be built.
        """
        known = self._known(source)
        description = None if known is None else known.description
        return AssignedCandidate(source=source, known=known, description=description)

    def _known(self, source: ModelSource) -> KnownModel | None:
        """What is remembered of a model; a build recipe is run if it has to be."""
        if self.models is None:
            return None
        with with_location(source):
            return self.models.of(source.variant, self.policy, worker=True)


class _NotesOnly(ProgressLine):
    """Notes go where the bisection's go; nothing else is shown."""

    def __init__(self, say: Say) -> None:
        super().__init__(quiet=True)
        self._say = say

    def note(self, text: str) -> None:
        """Pass a note on."""
        self._say(text)


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

    executor: Executor
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
            assigned.blocks = cut_as_compared(requests, self.executor.blocks, self.parts)
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
        all_blocks = self.cut(assigned, runner)
        return [all_blocks[index] for index in block.blocks]

    def units(
        self, assigned: AssignedCandidate, block: DocumentBlock, runner: WorkRunner
    ) -> list[Unit]:
        """What an assignment is asked, and what its distributions are held against.

        Raises:
            EvalguardError: as ``cut``.
        """
        blocks = self.blocks(assigned, block, runner)
        return [Unit(block=part, beside=self.beside) for part in blocks]

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
            scores = self.executor.scoring.scores(assigned.source.name, part, answers)
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
        by_document: dict[int, float] = {}
        if table is not None:
            pairs = zip(table.doc_ids.tolist(), table.values.tolist(), strict=True)
            # of a figure NaN is a document that it is not known of; a score of NaN is the search's
            by_document = {**values_by_document(table)} if table.figure else dict(pairs)
        wanted = [self.rows[row] for row in block.documents.tolist()]
        missing = [doc_id for doc_id in wanted if doc_id not in by_document]
        if missing:
            why = [excluded.reason for excluded in scores.not_compared if excluded.metric == metric]
            raise Untestable(
                f"its answers to {task} give no {metric} ({filter_name}) for document {missing[0]}"
                + "".join(f": {reason}" for reason in why[:1]),
                kind="not_finite",
            )
        return np.array([by_document[doc_id] for doc_id in wanted], dtype=np.float64)

    def _requests(self, assigned: AssignedCandidate, runner: WorkRunner) -> TaskRequests:
        tasks, task = self.executor.tasks, self.key[0]
        if not self.executor.chat:
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
    by_document: dict[int, list[Divergence]] = {}
    for (doc_id, _), answer in sorted(told.items(), key=lambda item: item[0]):
        if isinstance(answer, Divergence):
            by_document.setdefault(doc_id, []).append(answer)
    values = np.array([limit.value(by_document.get(doc_id, ())) for doc_id in doc_ids])
    unsound = [
        doc_id for doc_id, value in zip(doc_ids, values, strict=True) if not np.isfinite(value)
    ]
    if unsound:
        raise Untestable(
            f"its distributions give no {limit.limit.metric} for document {unsound[0]}",
            kind="not_finite",
        )
    return values
