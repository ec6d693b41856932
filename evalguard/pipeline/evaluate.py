"""Models answer all tasks: block by block, from the score cache where they can."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from evalguard.errors import EvaluationError, Interrupted
from evalguard.harness import Block, BlockCut, TaskRequests, TaskScores, TaskSet
from evalguard.harness.subset import documents_of
from evalguard.pipeline.alone import Alone
from evalguard.pipeline.answering import Answered, Answering
from evalguard.pipeline.divergences import TaskDivergences
from evalguard.pipeline.interruption import KEPT, NOTHING_KEPT, interruptible
from evalguard.pipeline.kept_blocks import Entry, KeptBlocks
from evalguard.pipeline.lazy_scorer import LazyScorer
from evalguard.pipeline.meter import Meter
from evalguard.pipeline.passage import Passage, wait_for_others
from evalguard.pipeline.task_scoring import TaskScoring
from evalguard.report.progress import Progress
from evalguard.scorer import ModelDescription, Response, Scorer
from evalguard.settings import digest_of
from evalguard.store import ScoreCache
from evalguard.task_group import TaskGroup

BLOCK_CUT = BlockCut()


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Scores of one model on all tasks.

    ``divergences`` of a candidate: how its distributions differ from the base's, task by task;
    empty where that was not measured. ``groups``: by which the tasks were asked for.
    """

    name: str
    description: ModelDescription
    scores: Mapping[str, TaskScores]
    divergences: Mapping[str, TaskDivergences] = field(default_factory=dict)
    groups: tuple[TaskGroup, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class Evaluator:
    """Scores one model after the other on the same tasks.

    ``cache`` is None where finished scores are neither read nor kept.
    """

    tasks: TaskSet
    cache: ScoreCache | None
    progress: Progress
    chat: bool = False
    meter: Meter = field(default_factory=Meter)
    scoring: TaskScoring = field(default_factory=TaskScoring)
    notes: list[str] = field(default_factory=list)
    _kept: KeptBlocks[Sequence[Response]] = field(init=False)

    def __post_init__(self) -> None:
        """Open the score cache."""
        self._kept = KeptBlocks(self.cache, self.note)

    def evaluate(self, name: str, scorer: Scorer) -> Evaluation:
        """Let a model answer every task.

        Raises:
            EvaluationError: if the model cannot answer; finished blocks stay in the cache.
            Interrupted: on Ctrl-C, with what was kept and how to go on.
        """
        return self.evaluate_with(Alone(name, scorer, self))[0]

    def evaluate_with(self, answering: Answering) -> list[Evaluation]:
        """Let models answer every task, each task's documents side by side.

        Raises:
            EvaluationError, Interrupted: as ``evaluate``.
        """
        self.notes.clear()
        self._kept.lost = False
        models = answering.models
        hint = self._go_on(models)
        scores: dict[str, list[TaskScores]] = {}
        put_off: list[Passage] = []
        for task in self.tasks.names:
            with interruptible(f"building the requests of {task}", hint=hint):
                passage = self._passage([self.requests(task, scorer) for _, scorer in models])
            self._go(passage, answering)
            if passage.left:
                put_off.append(passage)
            else:
                scores[task] = self._scored(passage, models)
        self._wait(put_off, answering)
        scores |= {passage.task: self._scored(passage, models) for passage in put_off}
        return [
            Evaluation(
                name=name,
                description=scorer.describe(),
                scores={task: scores[task][number] for task in self.tasks.names},
                groups=self.tasks.aggregates,
                notes=tuple(self.notes),
            )
            for number, (name, scorer) in enumerate(models)
        ]

    def through(
        self, requests: Sequence[TaskRequests], answering: Answering
    ) -> list[list[Response]]:
        """Go through a task's documents; every model has its own requests about them.

        Returns:
            For each model one response per request, in the order of its requests.

        Raises:
            EvaluationError, Interrupted: as ``evaluate``.
        """
        passage = self._passage(requests)
        self._go(passage, answering)
        self._wait([passage], answering)
        return passage.answers

    def blocks(self, requests: TaskRequests) -> list[Block]:
        """Cut a task's requests into the blocks in which they are answered and kept."""
        return requests.blocks(BLOCK_CUT)

    def requests(self, task: str, scorer: Scorer) -> TaskRequests:
        """Return what a task asks of this model; the same for all unless it renders the chat."""
        return self.tasks.requests(task, render_chat=scorer.render_chat if self.chat else None)

    def first_blocks(self, scorer: Scorer, documents: int) -> list[Block]:
        """Return the first documents of every task, for checks on a few of them."""
        of_tasks = [self.requests(task, scorer) for task in self.tasks.names]
        firsts = [documents_of(of, of.doc_ids[:documents]) for of in of_tasks]
        whole = BlockCut(window=documents, fewest=documents, most=documents)
        return [first.blocks(whole)[0] for first in firsts]

    def key(self, scorer: Scorer) -> str | None:
        """Under which a model's blocks are kept; None where they are not."""
        identity = scorer.describe().identity
        return None if identity is None or self.cache is None else digest_of(dict(identity))

    def kept(self, block: Block, scorer: Scorer) -> Sequence[Response] | None:
        """Return a model's answers to a block where they are kept."""
        found = self._kept.get(self.key(scorer), block.digest)
        if found is None or len(found) != len(block.requests):
            return None
        if isinstance(scorer, LazyScorer):
            scorer.from_cache.add(block.digest)
        return found

    def keep(self, block: Block, scorer: Scorer, responses: Sequence[Response]) -> None:
        """Keep a model's answers to a block.

        Raises:
            EvaluationError: if they are not one per request.
        """
        if len(responses) != len(block.requests):
            raise EvaluationError(
                f"task '{block.requests[0].task}', block {block.index}: {len(block.requests)} "
                f"requests were asked, {len(responses)} answers came back"
            )
        self._kept.put(self.key(scorer), block.digest, responses)

    def answered(self, block: Block, scorer: Scorer) -> tuple[Sequence[Response], bool]:
        """Answer a block by one model; and whether the answers were kept."""
        kept = self.kept(block, scorer)
        if kept is not None:
            return kept, True
        responses = scorer.score(block.requests)
        self.keep(block, scorer, responses)
        return responses, False

    def entry(self, block: Block, model: tuple[str, Scorer]) -> Entry:
        """Where a model's answers to a block are kept."""
        return Entry(self._kept, self.key(model[1]), block.digest, (model,))

    def note(self, text: str) -> None:
        """Say something about this evaluation, once."""
        if text not in self.notes:
            self.notes.append(text)
            self.progress.note(text)

    def _passage(self, requests: Sequence[TaskRequests]) -> Passage:
        blocks = [self.blocks(of) for of in requests]
        return Passage(requests=requests, left=list(zip(*blocks, strict=True)))

    def _go(self, passage: Passage, answering: Answering, alone: bool = False) -> None:
        """Let a task go on as far as it can; show it, and say where it was interrupted."""
        models = [name for name, _ in answering.models]
        names = " and ".join(models)

        def advance(documents: int, answered: Answered) -> None:
            self.progress.advance(documents, cached=answered.cached)
            self.meter.count(models, passage.task, documents, answered)

        self.progress.start(names, passage.task, passage.total - passage.done)
        try:
            with self.meter.phase("scoring", models, passage.task):
                passage.go(answering, advance, alone=alone)
        except KeyboardInterrupt:
            raise Interrupted(
                f"interrupted: {names} on {passage.task}, {passage.done:,} of {passage.total:,} "
                "documents done",
                hint=self._go_on(answering.models),
            ) from None
        finally:
            self.progress.stop()

    def _wait(self, put_off: Sequence[Passage], answering: Answering) -> None:
        """Finish tasks of which another process has been scoring blocks."""
        with interruptible("waiting for another process", hint=self._go_on(answering.models)):
            wait_for_others(
                put_off,
                lambda passage, alone: self._go(passage, answering, alone),
                self.progress.note,
            )

    def _scored(self, passage: Passage, models: Sequence[tuple[str, Scorer]]) -> list[TaskScores]:
        """Score a task that every model has answered."""
        names = " and ".join(name for name, _ in models)
        hint = self._go_on(models)
        place = interruptible(f"scoring {names} on {passage.task}", hint=hint)
        with place, self.meter.phase("comparing"):
            return [
                self.scoring.scores(name, asked, told, scorer.describe())
                for asked, told, (name, scorer) in zip(
                    passage.requests, passage.answers, models, strict=True
                )
            ]

    def _go_on(self, models: Sequence[tuple[str, Scorer]]) -> str:
        kept = not self._kept.lost and all(self.key(scorer) is not None for _, scorer in models)
        return KEPT if kept else NOTHING_KEPT
