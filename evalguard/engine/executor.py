"""Executor: models answer all tasks, unit by unit, from what is kept where they can.

A unit is answered here, or by slots of a cluster that are at other units meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from evalguard.core.findings import Finding, unstored
from evalguard.core.scorer import (
    AheadScorer,
    ModelDescription,
    Request,
    RequestKind,
    Response,
    Scorer,
    check_unchanged,
)
from evalguard.core.scores import TaskGroup
from evalguard.core.shown_tokens import ShownTokens
from evalguard.distributions.task_distributions import TaskDivergences
from evalguard.engine.answer import (
    ReferencesGoneError,
    ScoringJob,
    answer_unit,
    find_answer,
)
from evalguard.engine.block_store import BlockStore, LoadedModel, Unit, UnitAnswer, lock_blocks
from evalguard.engine.first_answers import (
    GO_ON,
    FirstAnswers,
    FirstAnswersWatch,
    find_failing_answers,
    look_at_answers,
)
from evalguard.engine.interrupts import (
    ANSWERS_KEPT,
    BLOCKS_CACHED,
    NOTHING_CACHED,
    going_on,
    interruptible,
)
from evalguard.engine.meter import Meter
from evalguard.engine.slots import ClusterSlots, SlotAnswers
from evalguard.engine.task_scores import TaskScoring
from evalguard.errors import EvaluationError, Interrupted
from evalguard.harness.request_blocks import BlockCut, RequestBlock
from evalguard.harness.requests import TaskRequests, documents_of
from evalguard.harness.score_tables import TaskScores
from evalguard.harness.tasks import TaskSet
from evalguard.models.arguments import REMOTE_TYPES
from evalguard.page.progress import ProgressLine

BLOCK_CUT = BlockCut()
# Looking again costs a few system calls a block; a block takes from tenths of a second to minutes.
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0
# A process that was stopped, or a dead machine's lock on a network disk, must not hold up a run.
BLOCK_PATIENCE = 15 * 60.0
BlockIndex = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Scores of one model on all tasks.

    ``divergences`` of a candidate: how its distributions differ from the base's, task by task;
    empty where that was not measured. ``shown``: the tokens that a server showed of its
    distributions, by task. ``groups``: by which the tasks were asked for. ``findings``: what of how
    it was scored every reader of a comparison must see.
    """

    name: str
    description: ModelDescription
    scores: Mapping[str, TaskScores]
    divergences: Mapping[str, TaskDivergences] = field(default_factory=dict)
    shown: Mapping[str, ShownTokens] = field(default_factory=dict)
    groups: tuple[TaskGroup, ...] = ()
    notes: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()

    @property
    def told(self) -> tuple[str, ...]:
        """All that is to be said of the model and its scoring, for reports without findings."""
        findings = (*self.findings, *self.description.findings)
        return (*(finding.sentence for finding in findings), *self.notes, *self.description.caveats)


@dataclass(slots=True, kw_only=True)
class TaskProgress:
    """The blocks of a task, until every model has answered all of them.

    Attributes:
        requests: of each model, about the same documents.
        left: blocks without an answer, each model's beside the others'.
        total, done: documents, in every block again.
    """

    requests: Sequence[TaskRequests]
    left: list[tuple[RequestBlock, ...]]
    total: int = field(init=False)
    done: int = 0
    _answers: list[dict[BlockIndex, Response]] = field(init=False)

    def __post_init__(self) -> None:
        """Begin with no answers."""
        # A task that asks in two ways goes through its documents twice.
        self.total = sum(len(blocks[0].doc_ids) for blocks in self.left)
        self._answers = [{} for _ in self.requests]

    @property
    def task(self) -> str:
        """The task's name."""
        return self.requests[0].task

    @property
    def answers(self) -> list[list[Response]]:
        """For each model one response per request, in the order of its requests."""
        return [
            asked.in_order(answers)
            for asked, answers in zip(self.requests, self._answers, strict=True)
        ]

    def take(self, answer: UnitAnswer) -> None:
        """Take a block's answers, of every model."""
        for answers, model_answer in zip(self._answers, answer.each, strict=True):
            for request, response in zip(
                model_answer.unit.block.requests, model_answer.responses, strict=True
            ):
                answers[request.doc_id, request.index] = response
        self.done += len(answer.unit.block.doc_ids)


@dataclass(slots=True, kw_only=True)
class Executor:
    """Scores models on the same tasks, one after the other or two together.

    ``kept`` is the folder of what is finished; None where nothing is read or kept. ``slots`` of a
    cluster answer units of a model before their turn comes; None: all are answered here.
    ``show_tokens``: whether a model of this process is to show its most probable tokens, as a
    server beside it does. ``beforehand``: found before any of these models was scored.
    ``may_vary``: a server that answers otherwise from asking to asking is what is looked for.
    """

    tasks: TaskSet
    kept: Path | None
    progress: ProgressLine
    chat: bool = False
    slots: ClusterSlots | None = None
    show_tokens: bool = False
    may_vary: bool = False
    meter: Meter = field(default_factory=Meter)
    scoring: TaskScoring = field(default_factory=TaskScoring)
    notes: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    beforehand: list[Finding] = field(default_factory=list)
    store: BlockStore = field(init=False)
    _watches: list[FirstAnswersWatch] = field(init=False, default_factory=list)
    _first_answers: list[FirstAnswers] = field(init=False, default_factory=list)
    _ending: dict[str, str] = field(init=False, default_factory=dict)  # task -> model
    _ahead: SlotAnswers | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        """Open what is kept."""
        self.store = BlockStore(
            folder=self.kept,
            note=self.note,
            find_unstored=self.find_unstored,
            show_tokens=self.show_tokens,
        )

    def evaluate(self, model: LoadedModel) -> Evaluation:
        """Let a model answer every task.

        Raises:
            EvaluationError: if the model cannot answer; finished blocks stay in the cache.
            Interrupted: on Ctrl-C, with what was kept and how to go on.
        """
        return self.score(ScoringJob(models=[model]))[0]

    def score(self, job: ScoringJob) -> list[Evaluation]:
        """Let a job's models answer every task, each task's documents side by side.

        Raises:
            EvaluationError, Interrupted: as ``evaluate``.
        """
        with self._finishing(job):
            return self._score(job)

    def _score(self, job: ScoringJob) -> list[Evaluation]:
        self.notes.clear()
        self.findings.clear()
        self._first_answers.clear()
        self.store.scores.lost = False
        models = job.models
        tasks: Iterable[TaskProgress] = self._all_progress(models)
        if self.slots is not None:
            tasks = [*tasks]  # the model renders the chat, and a slot will be at it
        self.begin(job)
        scores: dict[str, list[TaskScores]] = {}
        put_off: list[TaskProgress] = []
        for task_progress in tasks:
            self._score_task(task_progress, job)
            if task_progress.left:
                put_off.append(task_progress)
            else:
                scores[task_progress.task] = self._scored(task_progress, models)
        self._wait(put_off, job)
        for model in () if self.may_vary else models:
            self.check_unchanged(model, self._blocks_of_tasks(model))
        scores |= {
            task_progress.task: self._scored(task_progress, models) for task_progress in put_off
        }
        self.findings += find_failing_answers(self._first_answers)
        return [
            Evaluation(
                name=model.name,
                description=model.scorer.describe(),
                scores={task: scores[task][number] for task in self.tasks.names},
                shown=self.scoring.shown_by(model.name),
                groups=self.tasks.aggregates,
                notes=tuple(self.notes),
                findings=(*self.beforehand, *self.findings),
            )
            for number, model in enumerate(models)
        ]

    def check_unchanged(self, model: LoadedModel, blocks: Iterable[RequestBlock]) -> None:
        """Have a server asked its first prompts once more; a mixture is kept nowhere.

        Args:
            blocks: all that the model has answered.

        Raises:
            EvaluationError: it is not the server any more that it was in the beginning.
        """
        remote = model.scorer.describe().model_type in REMOTE_TYPES
        if not remote and served_scorer(model.scorer) is None:
            return
        with interruptible(f"asking {model.name} its first prompts once more"):
            try:
                check_unchanged(model.scorer)
            except EvaluationError:
                key = self.store.key(model.scorer)
                for block in blocks:
                    self.store.scores.drop(key, block.digest)
                raise

    def score_requests(
        self, requests: Sequence[TaskRequests], job: ScoringJob
    ) -> list[list[Response]]:
        """Go through a task's documents; every model has its own requests about them.

        Returns:
            For each model one response per request, in the order of its requests.

        Raises:
            EvaluationError, Interrupted: as ``evaluate``.
        """
        task_progress = self._task_progress(requests)
        with self._finishing(job):
            self._begin(job, [blocks[0] for blocks in task_progress.left])
            self._score_task(task_progress, job)
            self._wait([task_progress], job)
        return task_progress.answers

    def begin(self, job: ScoringJob) -> None:
        """Let whatever works by itself begin with all blocks of all tasks that are not kept.

        Blocks are what is kept; a server, or several workers, that had to wait for each of them
        would stand idle at the end of every one.

        Raises:
            EvaluationError, Interrupted: as ``evaluate``.
        """
        self._begin(job, self._blocks_of_tasks(job.models[0]))

    def _blocks_of_tasks(self, model: LoadedModel) -> Iterator[RequestBlock]:
        """Yield a task's blocks before the next one's requests are built."""
        return (blocks[0] for task in self._all_progress([model]) for blocks in task.left)

    def _all_progress(self, models: Sequence[LoadedModel]) -> Iterator[TaskProgress]:
        """Every task at its beginning, before the next one's requests are built."""
        for task in self.tasks.names:
            hint = self._resume_hint(models)
            with interruptible(f"building the requests of {task}", hint=hint):
                task_progress = self._task_progress(
                    [self.requests(task, model.scorer) for model in models]
                )
            yield task_progress

    def _begin(self, job: ScoringJob, blocks: Iterable[RequestBlock]) -> None:
        """Begin with blocks that are not kept, but for those that another process is at.

        A server is asked for the first of them before the last are there.
        """
        if not job.asks_ahead:
            return
        (model,) = job.models
        remaining = self._left((job.unit([block]) for block in blocks), model)
        served = served_scorer(model.scorer)
        try:
            if served is not None:
                served.ask_ahead(unit.block.requests for unit in self._reserved(remaining, model))
            elif self.slots is not None:
                self._hand_to_slots(self.slots, list(remaining), model)
        except KeyboardInterrupt:
            raise Interrupted(
                f"interrupted while {model.name} was asked", hint=self._resume_hint([model])
            ) from None

    def _reserved(self, units: Iterable[Unit], model: LoadedModel) -> Iterator[Unit]:
        """Those that no other process is at; they are this one's from now on."""
        key = self.store.key(model.scorer)
        return (unit for unit in units if self.store.scores.reserve(key, unit.block.digest))

    def _hand_to_slots(
        self, slots: ClusterSlots, units: Sequence[Unit], model: LoadedModel
    ) -> None:
        """Have slots begin with units of a model, where there are several."""
        if model.source is None:
            return  # nothing can open it there
        if self.store.key(model.scorer) is None:
            if self.kept is not None:
                self.note(f"{model.name} is scored by one actor: its scores cannot be kept")
            return
        units = [*self._reserved(units, model)]
        if len(units) > 1:
            self._ahead = slots.begin(model, units, self.store)

    @contextmanager
    def _finishing(self, job: ScoringJob) -> Iterator[None]:
        """Let go of what a job holds in the end: blocks, and slots that are at its units."""
        failed = True
        try:
            yield
            failed = False
        finally:
            self._leave_slots(failed=failed)
            for model in job.models:
                self.store.scores.release(self.store.key(model.scorer))

    def _leave_slots(self, *, failed: bool) -> None:
        """Let slots be free for another model; where something has failed, end them."""
        ahead, self._ahead = self._ahead, None
        if ahead is None or self.slots is None:
            return
        with closing(ahead):
            if failed:
                ahead.stop()
                self.slots.close()
            else:
                ahead.finish()

    def kinds_to_ask(self, model: LoadedModel) -> frozenset[RequestKind]:
        """The kinds of requests that are in blocks which are not cached."""
        remaining = self._left((Unit(block=block) for block in self._blocks_of_tasks(model)), model)
        return frozenset(unit.block.kind for unit in remaining)

    def _left(self, units: Iterable[Unit], model: LoadedModel) -> Iterator[Unit]:
        """Those of which not all is kept."""
        there = self.store.entries
        return (unit for unit in units if not all(of.is_there for of in there(unit, [model])))

    def close(self) -> None:
        """Let other processes have the blocks that were asked for and are not scored."""
        self.store.scores.release_all()

    def blocks(self, requests: TaskRequests) -> list[RequestBlock]:
        """Cut a task's requests into the blocks in which they are answered and kept."""
        return requests.blocks(BLOCK_CUT)

    def requests(self, task: str, scorer: Scorer) -> TaskRequests:
        """Return what a task asks of this model; the same for all unless it renders the chat."""
        return self.tasks.requests(task, render_chat=scorer.render_chat if self.chat else None)

    def first_blocks(self, scorer: Scorer, documents: int) -> list[RequestBlock]:
        """Return the first documents of every task, for checks on a few of them."""
        of_tasks = [self.requests(task, scorer) for task in self.tasks.names]
        firsts = [documents_of(of, of.doc_ids[:documents]) for of in of_tasks]
        whole = BlockCut(window=documents, fewest=documents, most=documents)
        return [first.blocks(whole)[0] for first in firsts]

    def note(self, text: str) -> None:
        """Say something about this evaluation, once."""
        if text not in self.notes:
            self.notes.append(text)
            self.progress.note(text)

    def find_unstored(self, text: str) -> None:
        """Say what could not be kept, once, where every reader sees it."""
        finding = unstored(text)
        if finding not in self.findings:
            self.findings.append(finding)
            self.progress.note(text)

    def _task_progress(self, requests: Sequence[TaskRequests]) -> TaskProgress:
        blocks = [self.blocks(of) for of in requests]
        return TaskProgress(requests=requests, left=list(zip(*blocks, strict=True)))

    def _score_task(
        self, task_progress: TaskProgress, job: ScoringJob, alone: bool = False
    ) -> None:
        """Let a task go on as far as it can; show it, and say where it was interrupted."""
        models = [model.name for model in job.models]
        names = " and ".join(models)
        if not task_progress.done:
            self._watch_first_answers(task_progress, job.models)
        self.progress.start(names, task_progress.task, task_progress.total - task_progress.done)
        try:
            with self.meter.phase("scoring", models, task_progress.task):
                task_progress.left = [
                    blocks
                    for blocks in task_progress.left
                    if not self._answer_blocks(blocks, task_progress, job, alone)
                ]
        except KeyboardInterrupt:
            raise Interrupted(
                f"interrupted: {names} on {task_progress.task}, {task_progress.done:,} of "
                f"{task_progress.total:,} documents done",
                hint=self._resume_hint(job.models),
            ) from None
        finally:
            self.progress.stop()

    def _answer_blocks(
        self,
        blocks: tuple[RequestBlock, ...],
        task_progress: TaskProgress,
        job: ScoringJob,
        alone: bool,
    ) -> bool:
        """Answer blocks of the same documents, unless another process is scoring one of them.

        Args:
            alone: score these too.
        """
        unit = job.unit(blocks)
        entries = self.store.entries(unit, job.models)
        answer = self._find(unit, job)
        if answer is None:
            with lock_blocks(entries) as ours:
                # This looks into the caches once more: it may have been finished meanwhile.
                answer = self.answer(unit, job) if ours or alone else None
        if answer is None:
            return False
        job.take(answer)
        for entry in entries:
            entry.describe(unit.task)
        task_progress.take(answer)
        self.progress.advance(
            len(unit.block.doc_ids), cached=all(model_answer.kept for model_answer in answer.each)
        )
        for model, model_answer in zip(job.models, answer.each, strict=True):
            self.meter.count(
                model.name, model_answer.unit.block, model_answer.responses, kept=model_answer.kept
            )
            if not model_answer.kept:
                self._look_at_texts(
                    model.scorer, model_answer.unit.block.requests, model_answer.responses
                )
        return True

    def _find(self, unit: Unit, job: ScoringJob) -> UnitAnswer | None:
        """The answer of a slot that is at a unit, or what is kept; None where there is neither."""
        answer = None if self._ahead is None else self._ahead.answer(unit)
        return answer or find_answer(unit, job.scorers, self.store)

    def answer(self, unit: Unit, job: ScoringJob) -> UnitAnswer:
        """Answer a unit here; of what is kept, nothing is scored.

        Raises:
            EvaluationError: as scoring does.
        """
        if self._ahead is not None:
            self._ahead.finish()  # the open model may be at another unit
        watch = self._look_at_texts
        try:
            return answer_unit(unit, job.scorers, self.store, seed=job.seed, watch=watch)
        except ReferencesGoneError:
            job.go_without_references(unit.task)
            again = job.unit([unit.block])
            return answer_unit(again, job.scorers, self.store, seed=job.seed, watch=watch)

    def _watch_first_answers(
        self, task_progress: TaskProgress, models: Sequence[LoadedModel]
    ) -> None:
        """Have the first texts of every model looked at while the others are written."""
        self._watches = [
            FirstAnswersWatch(model=model.name, scorer=model.scorer, requests=requests)
            for model, requests in zip(models, task_progress.requests, strict=True)
        ]

    def _look_at_texts(
        self, scorer: Scorer, asked: Sequence[Request], told: Sequence[Response]
    ) -> None:
        """Say at once where the first texts are cut, empty or without an answer."""
        for watch in self._watches:
            first_answers = watch.take(asked, told) if watch.scorer is scorer else None
            first_answers = self._beside_others(first_answers)
            if first_answers is not None and first_answers.fail:
                self.progress.note(f"{first_answers.task}: {first_answers.text}; {GO_ON}")

    def _look_at_first_block(
        self, task_progress: TaskProgress, models: Sequence[LoadedModel]
    ) -> None:
        """Have what became of the first block's texts stand in the report, kept or written now."""
        of_models = zip(models, task_progress.requests, task_progress.answers, strict=True)
        for model, requests, answers in of_models:
            blocks = self.blocks(requests)
            first = next((block for block in blocks if block.kind == "generate_until"), None)
            if first is not None:
                documents = frozenset(first.doc_ids)
                first_answers = look_at_answers(
                    model.name,
                    requests,
                    {
                        (request.doc_id, request.index): response
                        for request, response in zip(requests.requests, answers, strict=True)
                        if request.doc_id in documents
                    },
                )
                first_answers = self._beside_others(first_answers)
                if first_answers is not None and first_answers.fail:
                    self._first_answers.append(first_answers)

    def _beside_others(self, found: FirstAnswers | None) -> FirstAnswers | None:
        """First answers with the model whose end by themselves, if any before them did."""
        if found is None:
            return None
        if found.ends:
            self._ending.setdefault(found.task, found.model)
            return found
        return replace(found, ends_in=self._ending.get(found.task, ""))

    def _wait(self, put_off: Sequence[TaskProgress], job: ScoringJob) -> None:
        """Finish tasks of which another process has been scoring blocks."""
        with interruptible("waiting for another process", hint=self._resume_hint(job.models)):
            wait_for_others(
                put_off,
                lambda task_progress, alone: self._score_task(task_progress, job, alone),
                self.progress.note,
            )

    def _scored(
        self, task_progress: TaskProgress, models: Sequence[LoadedModel]
    ) -> list[TaskScores]:
        """Score a task that every model has answered."""
        names = " and ".join(model.name for model in models)
        hint = self._resume_hint(models)
        scope = interruptible(f"scoring {names} on {task_progress.task}", hint=hint)
        with scope, self.meter.phase("comparing"):
            self._look_at_first_block(task_progress, models)
            return [
                self.scoring.scores(model.name, asked, answers, model.scorer.describe())
                for asked, answers, model in zip(
                    task_progress.requests, task_progress.answers, models, strict=True
                )
            ]

    def _resume_hint(self, models: Sequence[LoadedModel]) -> str:
        cached = not self.store.scores.lost and all(
            self.store.key(model.scorer) is not None for model in models
        )
        if cached:
            return going_on(BLOCKS_CACHED)
        served = [served_scorer(model.scorer) for model in models]
        answers = [None if scorer is None else scorer.answers_kept for scorer in served]
        if None in answers:
            return NOTHING_CACHED
        return ANSWERS_KEPT.format(sum(number or 0 for number in answers))


def served_scorer(scorer: Scorer) -> AheadScorer | None:
    """Return a model behind a server that can be asked ahead; None for any other."""
    return cast("AheadScorer", scorer) if getattr(scorer, "served", None) is not None else None


def wait_for_others(
    running: Sequence[TaskProgress],
    go: Callable[[TaskProgress, bool], None],
    say: Callable[[str], None],
) -> None:
    """Go on with running until nothing of them is left.

    What another process finishes is read; what it gives up, or dies over, is scored here.

    Args:
        go: lets a task go on; True: whatever others are doing.
        say: takes what a person is to know of the waiting.
    """
    pause, since = FIRST_PAUSE, time.monotonic()
    remaining = _blocks_left(running)
    while remaining:
        patient = time.monotonic() - since < BLOCK_PATIENCE
        if not patient:
            say("another process is not getting on with its documents: they are scored here too")
        for task_progress in running:
            if task_progress.left:
                go(task_progress, not patient)
        before, remaining = remaining, _blocks_left(running)
        if remaining < before:
            pause, since = FIRST_PAUSE, time.monotonic()
        elif remaining:
            if pause == FIRST_PAUSE:
                say(f"waiting for {_document_range(running)} that another process is scoring")
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)


def _blocks_left(running: Sequence[TaskProgress]) -> int:
    return sum(len(task_progress.left) for task_progress in running)


def _document_range(running: Sequence[TaskProgress]) -> str:
    number = sum(task_progress.total - task_progress.done for task_progress in running)
    return f"{number:,} documents of {', '.join(p.task for p in running if p.left)}"
