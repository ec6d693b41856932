"""A sequential run: both models are asked in looks, until the verdict of all documents is known."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from evalguard.comparison.checks.broken import find_broken_documents
from evalguard.comparison.draws import (
    SideTables,
    Stops,
    TablesByKey,
    TaskSample,
    index_tables,
    only_sampled,
    tables_of_run,
    tables_of_task,
)
from evalguard.comparison.table_comparisons import drop_incomparable
from evalguard.config.options import CompareOptions
from evalguard.core.broken_documents import BrokenDocument
from evalguard.core.comparison import SequentialRun
from evalguard.core.figures import figures_of_task
from evalguard.core.scorer import ModelDescription, Response
from evalguard.engine.answer import ScoringJob
from evalguard.engine.batches import CommonPolicy
from evalguard.engine.block_store import LoadedModel
from evalguard.engine.choices import Choices
from evalguard.engine.cluster_fields import cluster_documents
from evalguard.engine.executor import Evaluation, Executor
from evalguard.engine.meter import Meter
from evalguard.engine.run_context import LoadedModels, load_together, open_run_context
from evalguard.engine.score_models import check_scores, tokens_beside_server
from evalguard.engine.scored_side import (
    ScoredSide,
    limit_to_candidate_tasks,
    side_of_model,
    side_of_stored,
)
from evalguard.engine.side_figures import with_named_figures
from evalguard.engine.sources import BaselineSource, ModelSource, Source, StoredSource
from evalguard.engine.stored_requests import check_stored_requests
from evalguard.harness.request_blocks import RequestBlock
from evalguard.harness.requests import TaskRequests, documents_of
from evalguard.harness.score_tables import TaskScores
from evalguard.stats.sequential_looks import FACTOR, StoppingRule, document_order, planned_looks


@dataclass(slots=True)
class _ModelTask:
    requests: TaskRequests
    responses: dict[tuple[int, int], Response] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class SequentialModel:
    """One model of a sequential run.

    ``executor`` is its own: notes of two models that take turns must not mix.
    """

    source: ModelSource
    executor: Executor
    description: ModelDescription | None = None
    _tasks: dict[str, _ModelTask] = field(default_factory=dict)
    _blocks: list[RequestBlock] = field(default_factory=list)

    def begin(self, model: LoadedModel, tasks: Iterable[str]) -> Mapping[str, TaskRequests]:
        """Build what the tasks ask of this model, which has to be loaded; once."""
        if self.description is None:
            self.description = model.scorer.describe()
            for task in tasks:
                self._tasks[task] = _ModelTask(self.executor.requests(task, model.scorer))
        return {name: task.requests for name, task in self._tasks.items()}

    def ask(self, model: LoadedModel, task: str, doc_ids: Collection[int]) -> None:
        """Let the model answer these documents."""
        asked = self._tasks[task]
        part = documents_of(asked.requests, doc_ids)
        self._blocks += self.executor.blocks(part)
        responses = self.executor.score_requests([part], ScoringJob(models=[model]))[0]
        for request, response in zip(part.requests, responses, strict=True):
            asked.responses[request.doc_id, request.index] = response

    def check_unchanged(self, model: LoadedModel) -> None:
        """Have a server asked its first prompts once more, after a look.

        Raises:
            EvaluationError: it is not the server any more that it was before.
        """
        self.executor.check_unchanged(model, self._blocks)

    def scores(self, task: str, doc_ids: Collection[int]) -> TaskScores:
        """Score these documents of a task, all of which have been answered."""
        asked = self._tasks[task]
        part = documents_of(asked.requests, doc_ids)
        answers = part.in_order(asked.responses)
        return self.executor.scoring.scores(self.source.name, part, answers, self.description)

    def evaluation(self, drawn: Mapping[str, Sequence[int]]) -> Evaluation:
        """The model's scores of the documents that were drawn in the end."""
        assert self.description is not None
        return Evaluation(
            name=self.source.name,
            description=self.description,
            scores={task: self.scores(task, doc_ids) for task, doc_ids in drawn.items()},
            shown=self.executor.scoring.shown_by(self.source.name),
            groups=self.executor.tasks.aggregates,
            notes=tuple(self.executor.notes),
            findings=tuple(self.executor.findings),
        )


Samples = Mapping[str, TaskScores]
# Models that take turns in memory are loaded anew for every look: then each look doubles.
TURN_GROWTH = 10.0**0.3


def score_in_looks(
    sources: tuple[Source, Source],
    choices: Choices,
    options: CompareOptions,
    *,
    meter: Meter | None = None,
) -> tuple[tuple[ScoredSide, ScoredSide], Stops]:
    """Ask random documents of every task, look after look, until its gated metrics are decided.

    Both models stay loaded where there is room for them; else they take turns, and the looks are
    farther apart. At least one of the sources is a model.

    Raises:
        UsageError, EvaluationError, Interrupted: as ``score_models``. Finished blocks of documents
            stay in the score cache, and the same seed asks for the same blocks again.
    """
    models = [source for source in sources if isinstance(source, ModelSource)]
    common = CommonPolicy(models, choices)
    while True:
        with common.attempt() as choices:
            scored, stops = _score_looks(sources, choices, options, meter)
            break
    notes = common.notes
    base, candidate = (
        replace(side, notes=(*side.notes, *notes)) if isinstance(source, ModelSource) else side
        for source, side in zip(sources, scored, strict=True)
    )
    return (base, candidate), stops


def _score_looks(
    sources: tuple[Source, Source],
    choices: Choices,
    options: CompareOptions,
    meter: Meter | None,
) -> tuple[tuple[ScoredSide, ScoredSide], Stops]:
    assert choices.sequential_alpha is not None
    models = [source for source in sources if isinstance(source, ModelSource)]
    shown = tokens_beside_server(models)
    with open_run_context(choices, options, meter=meter, shown_tokens=shown) as context:
        context.check_asked(models)
        context.say_what_is_scored_anew(models)
        for source in sources:
            if isinstance(source, BaselineSource):
                check_stored_requests(source, context.executor, choices)
        with load_together(context, models) as loaded:
            asked = [
                SequentialModel(
                    source=model, executor=replace(context.executor, notes=[], findings=[])
                )
                for model in models
            ]
            run = _SequentialRun(
                sources=sources,
                choices=choices,
                loaded=loaded,
                asked=asked,
                alpha=choices.sequential_alpha,
            )
            while not run.draws or run.active:
                run.ask()
                run.look()
        # Both models are released by now: the check of the scorer loads them anew.
        return run.scored(), run.stops()


@dataclass(slots=True, kw_only=True)
class _SequentialRun:
    """The tasks of a sequential run, in the middle of it."""

    sources: tuple[Source, Source]
    choices: Choices
    loaded: LoadedModels
    asked: Sequence[SequentialModel]
    alpha: float
    draws: dict[str, TaskSample] = field(default_factory=dict)
    rule: StoppingRule | None = None

    @property
    def active(self) -> list[TaskSample]:
        """The tasks that are not decided yet."""
        return [draw for draw in self.draws.values() if not draw.finished]

    def ask(self) -> None:
        """Let every model answer the next documents of every task that is not decided."""
        executor = self.loaded.context.executor
        for asked, model in self.loaded.each(self.asked):
            requests = asked.begin(model, executor.tasks.names)
            self.draws = self.draws or {task: self._draw(of) for task, of in requests.items()}
            for draw in self.active:
                asked.ask(model, draw.task, draw.fresh)
            asked.check_unchanged(model)

    def look(self) -> None:
        """Judge the tasks that are not decided yet, on what was answered so far."""
        sides = {draw.task: self._tables(draw) for draw in self.active}
        early = [sides[draw.task][:2] for draw in self.active if not draw.complete]
        self.rule = self.rule or self._rule(early)
        for draw in self.active:
            base, candidate, samples = sides[draw.task]
            broken = () if draw.complete else self._broken(base, candidate, samples)
            if broken:
                draw.ask_all(f"{broken[0].task} {broken[0].line}")
            else:
                draw.look(base, candidate, self.rule, self.choices, self._base_of_all(draw))
            if not draw.finished:
                note = f"{draw.task}: not decided yet, on to {len(draw.drawn):,} documents"
                self.loaded.context.executor.progress.note(note)

    def scored(self) -> tuple[ScoredSide, ScoredSide]:
        """Both sides, with the documents that were drawn."""
        drawn = {draw.task: draw.drawn for draw in self.draws.values()}
        evaluations = (asked.evaluation(drawn) for asked in self.asked)
        base, candidate = (self._side(source, evaluations) for source in self.sources)
        sides = limit_to_candidate_tasks(base, candidate), candidate
        return with_named_figures(sides, self.choices.gate, self.choices.answers)

    def _side(self, source: Source, evaluations: Iterator[Evaluation]) -> ScoredSide:
        if isinstance(source, StoredSource):
            return only_sampled(side_of_stored(source), self.draws)
        assert isinstance(source, ModelSource)  # a reference is compared with whole
        evaluation = check_scores(next(evaluations), source, self.loaded.context)
        return side_of_model(source, evaluation)

    def stops(self) -> Stops:
        """Where every task stopped."""
        assert self.rule is not None
        return Stops(
            rule=self.rule,
            findings={
                key: finding
                for draw in self.draws.values()
                for key, finding in draw.findings.items()
                if finding is not None
            },
            looks={draw.task: draw.looks for draw in self.draws.values()},
            run=SequentialRun(
                alpha=self.rule.alpha,
                gated=self.rule.gated,
                seed=self.rule.seed,
                loads=self.loaded.loads,
                tasks=tuple(draw.summary for draw in self.draws.values()),
                saved_seconds=self._saved_seconds(),
            ),
        )

    def _saved_seconds(self) -> float | None:
        """Time of the documents not asked at the pace of those that were scored just now.

        Documents come in random order: those asked are like the others.
        """
        meter = self.loaded.context.executor.meter
        more_loads = max(self.loaded.loads - len(self.asked), 0)
        saved = -more_loads * meter.seconds_per_load()
        for draw in self.draws.values():
            left_out = len(draw.order) - len(draw.drawn)
            for asked in self.asked if left_out else ():
                pace = meter.seconds_per_document(asked.source.name, draw.task)
                if pace is None:
                    return None
                saved += left_out * pace
        return saved

    def _draw(self, requests: TaskRequests) -> TaskSample:
        seed = self.choices.task_options.seed
        factor = TURN_GROWTH if self.loaded.taking_turns else FACTOR
        looks, reason = planned_looks(requests.n_documents, factor=factor), ""
        grouped = [
            group.name
            for group in self.loaded.context.executor.tasks.aggregates
            if requests.task in group.tasks
        ]
        if grouped:
            looks, reason = looks[-1:], f"the gate judges its group {grouped[0]} as a whole"
        figures = figures_of_task(self.choices.gate.figure_names, requests.task)
        if figures and any(request.kind == "generate_until" for request in requests.requests):
            looks = looks[-1:]
            reason = f"the gate asks for a figure of its answers ({figures[0].name})"
        documents = set(requests.doc_ids)
        runs = [source for source in self.sources if isinstance(source, StoredSource)]
        tables = [table for source in runs for table in tables_of_task(source, requests.task)]
        if any(set(table.doc_ids.tolist()) != documents for table in tables):
            looks, reason = looks[-1:], "the finished run has other documents"
        return TaskSample(
            task=requests.task,
            order=document_order(requests.doc_ids, task=requests.task, seed=seed),
            looks=looks,
            reason=reason,
        )

    def _rule(self, sides: Iterable[tuple[TablesByKey, TablesByKey]]) -> StoppingRule:
        """The rule for as many gated metrics as may stop early, as the first documents show."""
        gate = self.choices.gate
        keys = [key for base, candidate in sides for key in base if key in candidate]
        return StoppingRule(
            margin=gate.default_margin,
            alpha=self.alpha,
            gated=max(1, sum(gate.covers(*key) for key in keys)),
            seed=self.choices.task_options.seed,
            real=gate.fail_on == "real",
            level=gate.level,
        )

    def _broken(
        self, base: TablesByKey, candidate: TablesByKey, samples: Sequence[Samples]
    ) -> tuple[BrokenDocument, ...]:
        """Broken documents among those drawn: the gate fails, and all of them have to be told."""
        described = [asked.description for asked in self.asked]
        vocabulary = max(
            [description.vocabulary_size for description in described if description is not None],
            default=0,
        )
        tables = list(base.values()), list(candidate.values())
        return find_broken_documents((samples[0], samples[1]), tables, vocabulary=vocabulary)

    def _tables(self, draw: TaskSample) -> tuple[TablesByKey, TablesByKey, Sequence[Samples]]:
        """Both sides' scores of the documents drawn so far, by metric, and what was answered."""
        asked = iter(self.asked)
        sides: list[SideTables] = []
        samples: list[Samples] = []
        for source in self.sources:
            if isinstance(source, StoredSource):
                sides.append(tables_of_run(source, draw))
                shown = side_of_stored(source).samples
                samples.append({name: of for name, of in shown.items() if name == draw.task})
            else:
                scores = next(asked).scores(draw.task, draw.drawn)
                sides.append((scores.tables, scores.not_compared, {draw.task: scores.fields}))
                samples.append({draw.task: scores})
        (base, left_of_base, fields), (candidate, left_of_candidate, candidate_fields) = sides
        fields = {**candidate_fields, **fields}  # a history keeps none
        clusters = self.choices.clusters
        return (
            index_tables(
                cluster_documents(drop_incomparable(base, left_of_candidate), fields, clusters)
            ),
            index_tables(
                cluster_documents(
                    drop_incomparable(candidate, left_of_base), candidate_fields, clusters
                )
            ),
            samples,
        )

    def _base_of_all(self, draw: TaskSample) -> TablesByKey:
        """The base's scores of all documents, where they come from a finished run."""
        base = self.sources[0]
        return (
            index_tables(tables_of_task(base, draw.task)) if isinstance(base, StoredSource) else {}
        )
