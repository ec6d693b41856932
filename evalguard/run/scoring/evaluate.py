"""From a model's answers to a task to its scores; answers to a few documents are set aside."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np

from evalguard.core.reports.findings import Finding, unstored
from evalguard.core.scorer import (
    AheadScorer,
    ModelDescription,
    Request,
    RequestKind,
    Response,
    Scorer,
)
from evalguard.core.scores import ScoreTable
from evalguard.core.settings import Value, digest_of
from evalguard.core.shown_tokens import ShownTokens, TopLogprobs
from evalguard.core.task_group import TaskGroup
from evalguard.errors import EvaluationError, Interrupted
from evalguard.harness.blocks import BlockCut, RequestBlock
from evalguard.harness.requests import TaskRequests, documents_of, random_subset
from evalguard.harness.tables import TaskScores, score_tables
from evalguard.harness.tasks import TaskSet
from evalguard.report.progress import ProgressLine
from evalguard.run.loading.lazy_scorer import LazyScorer, runs_here
from evalguard.run.meter import (
    ANSWERS_KEPT,
    BLOCKS_CACHED,
    NOTHING_CACHED,
    Meter,
    interruptible,
)
from evalguard.run.scoring.cached_blocks import (
    AheadBlockScorer,
    BlockContent,
    BlockEntry,
    BlockScorer,
    LoadedModel,
    SafeBlockCache,
    ScoredBlocks,
    SingleModelScorer,
    TaskProgress,
    wait_for_others,
)
from evalguard.run.scoring.divergences import TaskDivergences
from evalguard.store.block_cache import BlockCache, ScoreCache

AnsweredRequests = tuple[tuple[Request, Response], ...]

_ROLLING_BOS = {
    "lm-eval": "whole texts: the likelihood of BOS given BOS counts, as in lm-eval (--rolling-bos "
    "once leaves it out)",
    "once": "whole texts: BOS is read once and not scored (--rolling-bos once); lm-eval itself "
    "gives another value",
}


@dataclass(slots=True, kw_only=True)
class TaskScoring:
    """Scores tasks as lm-eval does.

    Attributes:
        documents: of every task and model, drawn with ``seed``, whose answers are set aside.
        aside: requests and answers by (model, task).
        shown: by (model, task), the tokens that a server showed beside the scored ones.
    """

    documents: int = 0
    seed: int = 0
    aside: dict[tuple[str, str], AnsweredRequests] = field(default_factory=dict)
    shown: dict[tuple[str, str], ShownTokens] = field(default_factory=dict)

    def shown_by(self, model: str) -> Mapping[str, ShownTokens]:
        """What a model showed, by task; nothing of one that is no server."""
        return {task: shown for (name, task), shown in self.shown.items() if name == model if shown}

    def scores(
        self,
        model: str,
        asked: TaskRequests,
        told: Sequence[Response],
        description: ModelDescription | None = None,
    ) -> TaskScores:
        """Score a task that a model has answered.

        Args:
            description: of the model, where its tables are to say how it read whole texts.

        Raises:
            EvaluationError: the task's own code fails.
        """
        if self.documents:
            drawn = frozenset(random_subset(asked, self.documents, seed=self.seed).doc_ids)
            pairs = zip(asked.requests, told, strict=True)
            self.aside[model, asked.task] = tuple(p for p in pairs if p[0].doc_id in drawn)
        self.shown[model, asked.task] = collect_shown_tokens(asked.requests, told)
        scores = drop_unsound_scores(score_tables(asked, told, source=model), asked.requests, told)
        if description is None:
            return scores
        tables = tuple(_with_reading(table, description) for table in scores.tables)
        return replace(scores, tables=tables)


def collect_shown_tokens(requests: Sequence[Request], responses: Sequence[Response]) -> ShownTokens:
    """What a server showed of a task's scored tokens; {} where any likelihood has none."""
    found: dict[int, list[tuple[int, TopLogprobs]]] = defaultdict(list)
    for request, response in zip(requests, responses, strict=True):
        if request.kind == "generate_until":
            continue
        if response.top_logprobs is None:
            return {}
        found[request.doc_id].append((request.index, response.top_logprobs))
    return {doc: tuple(shown for _, shown in sorted(of, key=_first)) for doc, of in found.items()}


def _first(pair: tuple[int, TopLogprobs]) -> int:
    return pair[0]


def describe_reading(environment: Mapping[str, Value], max_length: int = 0) -> dict[str, Value]:
    """What token ids follow from, as ``ScoreTable.reading`` has it, of a model's environment."""
    packages = environment.get("packages")
    found: dict[str, Value] = {
        "lm_eval": packages.get("lm_eval") if isinstance(packages, Mapping) else None,
        "max_length": max_length or None,
        **{name: environment.get(name) for name in _READING_KEYS},
    }
    return {name: value for name, value in found.items() if value is not None}


_READING_KEYS = ("add_bos_token", "prefix_token_id", "rolling_bos")


def _with_reading(table: ScoreTable, description: ModelDescription) -> ScoreTable:
    """Say what token ids follow from, and how whole texts were read where that matters."""
    reading = describe_reading(description.environment, description.max_length)
    table = replace(table, reading=reading)
    rolling_bos = description.environment.get("rolling_bos")
    if rolling_bos is None or table.run.get("output_type") != "loglikelihood_rolling":
        return table
    return replace(
        table,
        run={**table.run, "rolling_bos": rolling_bos},
        provenance=(*table.provenance, _ROLLING_BOS[str(rolling_bos)]),
    )


# Models answer all tasks: block by block, from the score cache where they can.


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
        return (*(one.text for one in found), *self.notes, *self.description.caveats)


@dataclass(slots=True, kw_only=True)
class Evaluator:
    """Scores one model after the other on the same tasks.

    ``cache`` is None where finished scores are neither read nor kept. ``score_ahead`` puts a
    model's scores into it before they are asked for, where several workers can. ``show_tokens``:
    whether a model of this process is to show its most probable tokens, as a server beside it does.
    """

    tasks: TaskSet
    cache: ScoreCache | None
    progress: ProgressLine
    chat: bool = False
    score_ahead: Callable[[Evaluator, AheadBlockScorer], None] | None = None
    show_tokens: bool = False
    meter: Meter = field(default_factory=Meter)
    scoring: TaskScoring = field(default_factory=TaskScoring)
    notes: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    _kept: SafeBlockCache[Sequence[Response]] = field(init=False)

    def __post_init__(self) -> None:
        """Open the score cache."""
        self._kept = self.keeping(self.cache)

    def evaluate(self, name: str, scorer: Scorer) -> Evaluation:
        """Let a model answer every task.

        Raises:
            EvaluationError: if the model cannot answer; finished blocks stay in the cache.
            Interrupted: on Ctrl-C, with what was kept and how to go on.
        """
        return self.evaluate_with(SingleModelScorer(LoadedModel(name, scorer), self))[0]

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
        self._kept.lost = False
        models = block_scorer.models
        if self.score_ahead is not None and isinstance(block_scorer, AheadBlockScorer):
            self.score_ahead(self, block_scorer)
        self.ask_ahead(models)
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
        scores |= {
            task_progress.task: self._scored(task_progress, models) for task_progress in put_off
        }
        return [
            Evaluation(
                name=name,
                description=scorer.describe(),
                scores={task: scores[task][number] for task in self.tasks.names},
                shown=self.scoring.shown_by(name),
                groups=self.tasks.aggregates,
                notes=tuple(self.notes),
                findings=tuple(self.findings),
            )
            for number, (name, scorer) in enumerate(models)
        ]

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
            for number, model in enumerate(block_scorer.models):
                self._ask_ahead(model, [blocks[number] for blocks in task_progress.left])
            self._score_task(task_progress, block_scorer)
            self._wait([task_progress], block_scorer)
        finally:
            self._release(block_scorer.models)
        return task_progress.answers

    def ask_ahead(self, models: Sequence[LoadedModel]) -> None:
        """Let servers begin with all blocks of all tasks that are not cached.

        Blocks are what is cached; a server that had to wait for each of them would stand idle at
        the end of every one.

        Raises:
            EvaluationError, Interrupted: as ``evaluate``.
        """
        for model in models:
            if served_scorer(model.scorer) is None:
                continue
            for task in self.tasks.names:
                hint = self._resume_hint(models)
                with interruptible(f"building the requests of {task}", hint=hint):
                    self._ask_ahead(model, self._all_blocks(task, model))

    def kinds_to_ask(self, model: LoadedModel) -> frozenset[RequestKind]:
        """The kinds of requests that are in blocks which are not cached."""
        blocks = (b for task in self.tasks.names for b in self._all_blocks(task, model))
        return frozenset(block.kind for block in self._left(blocks, model))

    def _all_blocks(self, task: str, model: LoadedModel) -> list[RequestBlock]:
        return self.blocks(self.requests(task, model.scorer))

    def _left(self, blocks: Iterable[RequestBlock], model: LoadedModel) -> list[RequestBlock]:
        return [block for block in blocks if not self.entry(block, model).is_there]

    def _ask_ahead(self, model: LoadedModel, blocks: Sequence[RequestBlock]) -> None:
        """Ask for blocks that are not cached, but for those that another process is at."""
        scorer = served_scorer(model.scorer)
        if scorer is not None:
            key = self.key(model.scorer)
            left = self._left(blocks, model)
            scorer.ask_ahead(of.requests for of in left if self._kept.reserve(key, of.digest))

    def _release(self, models: Sequence[LoadedModel]) -> None:
        for _, scorer in models:
            self._kept.release(self.key(scorer))

    def close(self) -> None:
        """Let other processes have the blocks that were asked for and are not scored."""
        self._kept.release_all()

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

    def key(self, scorer: Scorer) -> str | None:
        """Under which a model's blocks are kept; None where they are not."""
        identity = scorer.describe().identity
        return None if identity is None or self.cache is None else digest_of(dict(identity))

    def find_cached(self, block: RequestBlock, scorer: Scorer) -> Sequence[Response] | None:
        """Return a model's answers to a block where they are kept, with all that is wanted."""
        found = self._kept.get(self.key(scorer), block.digest)
        if found is None or len(found) != len(block.requests):
            return None
        if self.show_tokens and runs_here(scorer) and scorer.describe().gives_rows:
            # Kept by a run without such a server beside it: scored once more, and kept with them.
            likely = (one for one in found if one.loglikelihood is not None)
            if any(one.top_logprobs is None for one in likely):
                return None
        if isinstance(scorer, LazyScorer):
            scorer.from_cache.add(block.digest)
        return found

    def store_answers(
        self, block: RequestBlock, scorer: Scorer, responses: Sequence[Response]
    ) -> None:
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
        self._kept.release(self.key(scorer), block.digest)

    def count_ahead(self, block: RequestBlock, model: str, responses: Sequence[Response]) -> None:
        """Show and count a block that ``score_ahead`` has put into the cache."""
        documents = len(block.doc_ids)
        self.progress.advance(documents)
        self.meter.count_ahead(model, block.requests[0].task, documents, responses)

    def score_block(self, block: RequestBlock, scorer: Scorer) -> tuple[Sequence[Response], bool]:
        """Answer a block by one model; and whether the answers were kept."""
        kept = self.find_cached(block, scorer)
        if kept is not None:
            return kept, True
        responses = scorer.score(block.requests)
        self.store_answers(block, scorer, responses)
        return responses, False

    def entry(self, block: RequestBlock, model: LoadedModel) -> BlockEntry:
        """Where a model's answers to a block are kept."""
        return BlockEntry(self._kept, self.key(model.scorer), block.digest, (model,))

    def keeping(self, cache: BlockCache[BlockContent] | None) -> SafeBlockCache[BlockContent]:
        """A cache of which this evaluation says what it could not read or keep."""
        return SafeBlockCache(cache, self.note, self.find_unstored)

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

        def advance(documents: int, answered: ScoredBlocks) -> None:
            self.progress.advance(documents, cached=answered.cached)
            self.meter.count(models, task_progress.task, documents, answered)

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
            return [
                self.scoring.scores(name, asked, told, scorer.describe())
                for asked, told, (name, scorer) in zip(
                    task_progress.requests, task_progress.answers, models, strict=True
                )
            ]

    def _resume_hint(self, models: Sequence[LoadedModel]) -> str:
        kept = not self._kept.lost and all(self.key(scorer) is not None for _, scorer in models)
        if kept:
            return BLOCKS_CACHED
        served = [served_scorer(scorer) for _, scorer in models]
        answers = [None if one is None else one.answers_kept for one in served]
        if None in answers:
            return NOTHING_CACHED
        return ANSWERS_KEPT.format(sum(number or 0 for number in answers))


def served_scorer(scorer: Scorer) -> AheadScorer | None:
    """Return a model behind a server that can be asked ahead; None for any other."""
    return cast("AheadScorer", scorer) if getattr(scorer, "served", None) is not None else None


# Scores of documents on which a model gave no number are no scores, whatever the metric.


def drop_unsound_scores(
    scores: TaskScores, requests: Sequence[Request], responses: Sequence[Response]
) -> TaskScores:
    """Give NaN to every metric of a document with a likelihood that is none (NaN or +inf).

    An accuracy would hide it: the largest of several NaN is the first, so that a model of NaN
    answers every multiple-choice question, and some of them correctly.
    """
    broken = {
        request.doc_id
        for request, response in zip(requests, responses, strict=True)
        if response.loglikelihood is not None and _is_no_likelihood(response.loglikelihood)
    }
    if not broken:
        return scores
    return replace(
        scores, tables=tuple(_without_documents(table, broken) for table in scores.tables)
    )


def _is_no_likelihood(loglikelihood: float) -> bool:
    return math.isnan(loglikelihood) or loglikelihood == math.inf


def _without_documents(table: ScoreTable, broken: set[int]) -> ScoreTable:
    values = np.where(np.isin(table.doc_ids, sorted(broken)), math.nan, table.values)
    return replace(table, values=values)
