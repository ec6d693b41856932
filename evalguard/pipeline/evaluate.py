"""One model answers all tasks: block by block, from the score cache where it can."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from evalguard.errors import EvaluationError, Interrupted, StoreError
from evalguard.harness import Block, TaskRequests, TaskScores, TaskSet, score_tables
from evalguard.pipeline.interruption import KEPT, NOTHING_KEPT, interruptible
from evalguard.pipeline.soundness import only_sound
from evalguard.report.progress import Progress
from evalguard.scorer import ModelDescription, Response, Scorer
from evalguard.settings import digest_of
from evalguard.store import ScoreCache

# Part of the blocks' identity: batches never cross a block, so another size gives other batches.
DOCUMENTS_PER_BLOCK = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Scores of one model on all tasks."""

    name: str
    description: ModelDescription
    scores: Mapping[str, TaskScores]
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
    notes: list[str] = field(default_factory=list)
    _lost: bool = False
    _problems_said: int = 0

    def evaluate(self, name: str, scorer: Scorer) -> Evaluation:
        """Let a model answer every task.

        Raises:
            EvaluationError: if the model cannot answer; finished blocks stay in the cache.
            Interrupted: on Ctrl-C, with what was kept and how to go on.
        """
        self.notes.clear()
        self._lost = False
        description = scorer.describe()
        identity = description.identity
        key = None if identity is None or self.cache is None else digest_of(dict(identity))
        scores = {}
        for task in self.tasks.names:
            with interruptible(f"building the requests of {task}", hint=self._go_on(key)):
                requests = self.requests(task, scorer)
            responses = self._answer(name, requests, scorer, key)
            with interruptible(f"scoring {name} on {task}", hint=self._go_on(key)):
                scored = score_tables(requests, responses, source=name)
                scores[task] = only_sound(scored, requests.requests, responses)
        return Evaluation(
            name=name, description=description, scores=scores, notes=tuple(self.notes)
        )

    def requests(self, task: str, scorer: Scorer) -> TaskRequests:
        """Return what a task asks of this model; the same for all unless it renders the chat."""
        return self.tasks.requests(task, render_chat=scorer.render_chat if self.chat else None)

    def first_blocks(self, scorer: Scorer, documents: int) -> list[Block]:
        """Return the first documents of every task, for checks on a few of them."""
        return [self.requests(task, scorer).blocks(documents)[0] for task in self.tasks.names]

    def _go_on(self, key: str | None) -> str:
        return NOTHING_KEPT if key is None or self._lost else KEPT

    def _answer(
        self, name: str, requests: TaskRequests, scorer: Scorer, key: str | None
    ) -> list[Response]:
        blocks = requests.blocks(DOCUMENTS_PER_BLOCK)
        # A task that asks in two ways goes through its documents twice.
        total = sum(len(block.doc_ids) for block in blocks)
        self.progress.start(name, requests.task, total)
        responses: list[Response] = []
        done = 0
        try:
            for block in blocks:
                kept = self._kept(block, key)
                responses += self._scored(block, scorer, key) if kept is None else kept
                done += len(block.doc_ids)
                self.progress.advance(len(block.doc_ids), cached=kept is not None)
        except KeyboardInterrupt:
            raise Interrupted(
                f"interrupted: {name} on {requests.task}, {done:,} of {total:,} documents done",
                hint=self._go_on(key),
            ) from None
        finally:
            self.progress.stop()
        return responses

    def _kept(self, block: Block, key: str | None) -> Sequence[Response] | None:
        if self.cache is None or key is None:
            return None
        found = self.cache.get(key, block.digest)
        for problem in self.cache.problems[self._problems_said :]:
            self._note(problem)
        self._problems_said = len(self.cache.problems)
        return found if found is not None and len(found) == len(block.requests) else None

    def _scored(self, block: Block, scorer: Scorer, key: str | None) -> Sequence[Response]:
        responses = _checked(scorer.score(block.requests), block)
        if self.cache is None or key is None:
            return responses
        try:
            self.cache.put(key, block.digest, responses)
        except StoreError as error:
            self._lost = True
            # The numbers are in memory: a full disk must not cost the verdict.
            self._note(f"scores could not be kept in the cache: {error}")
        return responses

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)
            self.progress.note(text)


def _checked(responses: Sequence[Response], block: Block) -> Sequence[Response]:
    if len(responses) != len(block.requests):
        raise EvaluationError(
            f"task '{block.requests[0].task}', block {block.index}: {len(block.requests)} requests "
            f"were asked, {len(responses)} answers came back"
        )
    return responses
