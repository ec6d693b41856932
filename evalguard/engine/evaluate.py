"""Models answer all tasks, block by block, from what is kept where they can."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from evalguard.engine.block_store import BlockStore
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
from evalguard.engine.kept_blocks import LoadedModel
from evalguard.engine.meter import Meter
from evalguard.engine.single_model import SingleModelScoring
from evalguard.engine.task_progress import BlockScorer, ScoredBlocks, TaskProgress, wait_for_others
from evalguard.engine.task_scores import TaskScoring
from evalguard.engine.work import Unit
from evalguard.errors import EvaluationError, Interrupted
from evalguard.harness.request_blocks import BlockCut, RequestBlock
from evalguard.harness.requests import TaskRequests, documents_of
from evalguard.harness.score_tables import TaskScores
from evalguard.harness.tasks import TaskSet
from evalguard.models.arguments import REMOTE_TYPES
from evalguard.page.progress import ProgressLine

BLOCK_CUT = BlockCut()


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
        found = (*self.findings, *self.description.findings)
        return (*(one.sentence for one in found), *self.notes, *self.description.caveats)


@dataclass(slots=True, kw_only=True)
class Evaluator:
    """Scores one model after the other on the same tasks.

    ``kept`` is the folder of what is finished; None where nothing is read or kept. ``score_ahead``
    has several workers put a model's answers to units there before they are asked for.
    ``show_tokens``: whether a model of this process is to show its most probable tokens, as a
    server beside it does. ``beforehand``: found before any of these models was scored.
    ``may_vary``: a server that answers otherwise from asking to asking is what is looked for.
    """

    tasks: TaskSet
    kept: Path | None
    progress: ProgressLine
    chat: bool = False
    score_ahead: Callable[[Evaluator, LoadedModel, Sequence[Unit]], None] | None = None
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

    def __post_init__(self) -> None:
        """Open what is kept."""
        self.store = BlockStore(
            folder=self.kept,
            note=self.note,
            find_unstored=self.find_unstored,
            show_tokens=self.show_tokens,
            watch=self._look_at_texts,
        )

    def evaluate(self, name: str, scorer: Scorer) -> Evaluation:
        """Let a model answer every task.

        Raises:
            EvaluationError: if the model cannot answer; finished blocks stay in the cache.
            Interrupted: on Ctrl-C, with what was kept and how to go on.
        """
        return self.evaluate_with(self.scoring_of(LoadedModel(name, scorer)))[0]

    def scoring_of(self, model: LoadedModel) -> SingleModelScoring:
        """How a model answers by itself."""
        return SingleModelScoring(model=model, store=self.store)

    def evaluate_with(self, block_scorer: BlockScorer) -> list[Evaluation]:
        """Let models answer every task, each task's documents side by side.

        Raises:
            EvaluationError, Interrupted: as ``evaluate``.
        """
        try:
            return self._evaluate_with(block_scorer)
        finally:
            self._release(block_scorer.models)

    def _evaluate_with(self, block_scorer: BlockScorer) -> list[Evaluation]:
        self.notes.clear()
        self.findings.clear()
        self._first_answers.clear()
        self.store.scores.lost = False
        models = block_scorer.models
        self.begin(block_scorer)
        scores: dict[str, list[TaskScores]] = {}
        put_off: list[TaskProgress] = []
        for task in self.tasks.names:
            hint = self._resume_hint(models)
            with interruptible(f"building the requests of {task}", hint=hint):
                task_progress = self._task_progress(
                    [self.requests(task, scorer) for _, scorer in models]
                )
            self._score_task(task_progress, block_scorer)
            if task_progress.left:
                put_off.append(task_progress)
            else:
                scores[task] = self._scored(task_progress, models)
        self._wait(put_off, block_scorer)
        for model in () if self.may_vary else models:
            self.check_unchanged(model, self._blocks_of_tasks(model))
        scores |= {
            task_progress.task: self._scored(task_progress, models) for task_progress in put_off
        }
        self.findings += find_failing_answers(self._first_answers)
        return [
            Evaluation(
                name=name,
                description=scorer.describe(),
                scores={task: scores[task][number] for task in self.tasks.names},
                shown=self.scoring.shown_by(name),
                groups=self.tasks.aggregates,
                notes=tuple(self.notes),
                findings=(*self.beforehand, *self.findings),
            )
            for number, (name, scorer) in enumerate(models)
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
        self, requests: Sequence[TaskRequests], block_scorer: BlockScorer
    ) -> list[list[Response]]:
        """Go through a task's documents; every model has its own requests about them.

        Returns:
            For each model one response per request, in the order of its requests.

        Raises:
            EvaluationError, Interrupted: as ``evaluate``.
        """
        task_progress = self._task_progress(requests)
        try:
            self._begin(block_scorer, [blocks[0] for blocks in task_progress.left])
            self._score_task(task_progress, block_scorer)
            self._wait([task_progress], block_scorer)
        finally:
            self._release(block_scorer.models)
        return task_progress.answers

    def begin(self, block_scorer: BlockScorer) -> None:
        """Let whatever works by itself begin with all blocks of all tasks that are not kept.

        Blocks are what is kept; a server, or several workers, that had to wait for each of them
        would stand idle at the end of every one.

        Raises:
            EvaluationError, Interrupted: as ``evaluate``.
        """
        self._begin(block_scorer, self._blocks_of_tasks(block_scorer.models[0]))

    def _blocks_of_tasks(self, model: LoadedModel) -> Iterator[RequestBlock]:
        """Yield a task's blocks before the next one's requests are built."""
        for task in self.tasks.names:
            hint = self._resume_hint([model])
            with interruptible(f"building the requests of {task}", hint=hint):
                blocks = self._all_blocks(task, model)
            yield from blocks

    def _begin(self, block_scorer: BlockScorer, blocks: Iterable[RequestBlock]) -> None:
        """Begin with blocks that are not kept, but for those that another process is at.

        A server is asked for the first of them before the last are there.
        """
        if not isinstance(block_scorer, SingleModelScoring):
            return  # two models of this process, or a file
        model = block_scorer.model
        units = (block_scorer.unit(block) for block in blocks)
        served = served_scorer(model.scorer)
        try:
            if served is not None:
                key, left = self.store.key(model.scorer), self._left(units, model)
                reserved = (of for of in left if self.store.scores.reserve(key, of.block.digest))
                served.ask_ahead(unit.block.requests for unit in reserved)
            elif self.score_ahead is not None:
                self.score_ahead(self, model, list(self._left(units, model)))
        except KeyboardInterrupt:
            raise Interrupted(
                f"interrupted while {model.name} was asked", hint=self._resume_hint([model])
            ) from None

    def kinds_to_ask(self, model: LoadedModel) -> frozenset[RequestKind]:
        """The kinds of requests that are in blocks which are not cached."""
        blocks = (b for task in self.tasks.names for b in self._all_blocks(task, model))
        left = self._left((Unit(block=block) for block in blocks), model)
        return frozenset(unit.block.kind for unit in left)

    def _all_blocks(self, task: str, model: LoadedModel) -> list[RequestBlock]:
        return self.blocks(self.requests(task, model.scorer))

    def _left(self, units: Iterable[Unit], model: LoadedModel) -> Iterator[Unit]:
        """Those of which not all is kept."""
        there = self.store.entries
        return (one for one in units if not all(of.is_there for of in there(one, model)))

    def _release(self, models: Sequence[LoadedModel]) -> None:
        for _, scorer in models:
            self.store.scores.release(self.store.key(scorer))

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

    def count_ahead(self, block: RequestBlock, model: str, responses: Sequence[Response]) -> None:
        """Show and count a block that ``score_ahead`` has put into the cache."""
        self.progress.advance(len(block.doc_ids))
        self.meter.count_ahead(model, block, responses)

    def note(self, text: str) -> None:
        """Say something about this evaluation, once."""
        if text not in self.notes:
            self.notes.append(text)
            self.progress.note(text)

    def find_unstored(self, text: str) -> None:
        """Say what could not be kept, once, where every reader sees it."""
        found = unstored(text)
        if found not in self.findings:
            self.findings.append(found)
            self.progress.note(text)

    def _task_progress(self, requests: Sequence[TaskRequests]) -> TaskProgress:
        blocks = [self.blocks(of) for of in requests]
        return TaskProgress(requests=requests, left=list(zip(*blocks, strict=True)))

    def _score_task(
        self, task_progress: TaskProgress, block_scorer: BlockScorer, alone: bool = False
    ) -> None:
        """Let a task go on as far as it can; show it, and say where it was interrupted."""
        models = [name for name, _ in block_scorer.models]
        names = " and ".join(models)
        if not task_progress.done:
            self._watch_first_answers(task_progress, block_scorer.models)

        def advance(blocks: Sequence[RequestBlock], answered: ScoredBlocks) -> None:
            self.progress.advance(len(blocks[0].doc_ids), cached=answered.cached)
            self.meter.count(models, blocks, answered)
            told = zip(block_scorer.models, blocks, answered.responses, answered.kept, strict=True)
            for (_, scorer), block, responses, kept in told:
                if not kept:
                    self._look_at_texts(scorer, block.requests, responses)

        self.progress.start(names, task_progress.task, task_progress.total - task_progress.done)
        try:
            with self.meter.phase("scoring", models, task_progress.task):
                task_progress.run(block_scorer, advance, alone=alone)
        except KeyboardInterrupt:
            raise Interrupted(
                f"interrupted: {names} on {task_progress.task}, {task_progress.done:,} of "
                f"{task_progress.total:,} documents done",
                hint=self._resume_hint(block_scorer.models),
            ) from None
        finally:
            self.progress.stop()

    def _watch_first_answers(
        self, task_progress: TaskProgress, models: Sequence[LoadedModel]
    ) -> None:
        """Have the first texts of every model looked at while the others are written."""
        self._watches = [
            FirstAnswersWatch(model=name, scorer=scorer, requests=requests)
            for (name, scorer), requests in zip(models, task_progress.requests, strict=True)
        ]

    def _look_at_texts(
        self, scorer: Scorer, asked: Sequence[Request], told: Sequence[Response]
    ) -> None:
        """Say at once where the first texts are cut, empty or without an answer."""
        for watch in self._watches:
            found = watch.take(asked, told) if watch.scorer is scorer else None
            found = self._beside_others(found)
            if found is not None and found.fail:
                self.progress.note(f"{found.task}: {found.text}; {GO_ON}")

    def _look_at_first_block(
        self, task_progress: TaskProgress, models: Sequence[LoadedModel]
    ) -> None:
        """Have what became of the first block's texts stand in the report, kept or written now."""
        of_models = zip(models, task_progress.requests, task_progress.answers, strict=True)
        for (name, _), requests, told in of_models:
            blocks = self.blocks(requests)
            first = next((one for one in blocks if one.kind == "generate_until"), None)
            if first is not None:
                documents = frozenset(first.doc_ids)
                found = look_at_answers(
                    name,
                    requests,
                    {
                        (one.doc_id, one.index): response
                        for one, response in zip(requests.requests, told, strict=True)
                        if one.doc_id in documents
                    },
                )
                found = self._beside_others(found)
                if found is not None and found.fail:
                    self._first_answers.append(found)

    def _beside_others(self, found: FirstAnswers | None) -> FirstAnswers | None:
        """First answers with the model whose end by themselves, if any before them did."""
        if found is None:
            return None
        if found.ends:
            self._ending.setdefault(found.task, found.model)
            return found
        return replace(found, ends_in=self._ending.get(found.task, ""))

    def _wait(self, put_off: Sequence[TaskProgress], block_scorer: BlockScorer) -> None:
        """Finish tasks of which another process has been scoring blocks."""
        with interruptible(
            "waiting for another process", hint=self._resume_hint(block_scorer.models)
        ):
            wait_for_others(
                put_off,
                lambda task_progress, alone: self._score_task(task_progress, block_scorer, alone),
                self.progress.note,
            )

    def _scored(
        self, task_progress: TaskProgress, models: Sequence[LoadedModel]
    ) -> list[TaskScores]:
        """Score a task that every model has answered."""
        names = " and ".join(name for name, _ in models)
        hint = self._resume_hint(models)
        place = interruptible(f"scoring {names} on {task_progress.task}", hint=hint)
        with place, self.meter.phase("comparing"):
            self._look_at_first_block(task_progress, models)
            return [
                self.scoring.scores(name, asked, told, scorer.describe())
                for asked, told, (name, scorer) in zip(
                    task_progress.requests, task_progress.answers, models, strict=True
                )
            ]

    def _resume_hint(self, models: Sequence[LoadedModel]) -> str:
        kept = not self.store.scores.lost and all(
            self.store.key(scorer) is not None for _, scorer in models
        )
        if kept:
            return going_on(BLOCKS_CACHED)
        served = [served_scorer(scorer) for _, scorer in models]
        answers = [None if one is None else one.answers_kept for one in served]
        if None in answers:
            return NOTHING_CACHED
        return ANSWERS_KEPT.format(sum(number or 0 for number in answers))


def served_scorer(scorer: Scorer) -> AheadScorer | None:
    """Return a model behind a server that can be asked ahead; None for any other."""
    return cast("AheadScorer", scorer) if getattr(scorer, "served", None) is not None else None
