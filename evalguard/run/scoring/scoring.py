"""Scored: one side of a comparison with its scores, wherever they come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

import numpy as np

from evalguard.core.document_fields import DocumentFields
from evalguard.core.pairing import pair
from evalguard.core.reports.compare_report import RunIdentity
from evalguard.core.reports.findings import Finding
from evalguard.core.scorer import ModelDescription, Request, Response
from evalguard.core.scores import NotCompared, ScoreTable
from evalguard.core.settings import Value
from evalguard.core.shown_tokens import ShownTokens
from evalguard.core.task_group import TaskGroup
from evalguard.core.tracing.hyperparameters import HeldValue
from evalguard.errors import (
    EvalguardError,
    EvaluationError,
    MisalignedRunsError,
    UsageError,
    nearest,
)
from evalguard.harness.answers import requested_documents
from evalguard.harness.finished_runs.origin import RunOrigin
from evalguard.harness.requests import TaskRequests
from evalguard.harness.tables import TaskScores
from evalguard.models.arguments import HF_TYPES
from evalguard.models.served.prompt_logprobs import TOP_ARGUMENT
from evalguard.run.choices import Choices
from evalguard.run.executing.batches import score_with_fallback
from evalguard.run.loading.lazy_scorer import ScorerOpener
from evalguard.run.loading.own_environment import is_runtime
from evalguard.run.meter import Meter, interruptible
from evalguard.run.options import CompareOptions
from evalguard.run.scoring.divergences import TaskDivergences
from evalguard.run.scoring.evaluate import Evaluation, Evaluator
from evalguard.run.scoring.measuring import ScoringPlan
from evalguard.run.scoring.run_context import RunContext, open_run_context
from evalguard.run.sources import (
    BaselineSource,
    ModelSource,
    RunSource,
    Source,
    StoredSource,
    identify_model,
    identify_run,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredSide:
    """One side with its scores, whether they were just made or read from a finished run.

    ``description`` is the model's own; None for a finished run.
    ``samples``: of a finished lm-eval run without tables: they show its documents, and do not make
    it a baseline; of a stored base those that were kept, {} of one from a history.
    ``divergences`` of a candidate: how its distributions differ from the base's, by task; empty
    where that was not measured. ``shown``: what a server shows of its distributions, by task.
    ``origin``: which model answered, as a finished lm-eval run records it. ``lost``: metrics that
    such a run scored, or should have, and has no scores of documents for, with the reason.
    ``findings``: what of how it was scored every reader must see. ``declared``: hyper-parameters
    that its files name, of a model that another library runs and that does not show its own.
    """

    identity: RunIdentity
    tables: tuple[ScoreTable, ...]
    description: ModelDescription | None = None
    fields: Mapping[str, DocumentFields] = field(default_factory=dict)
    samples: Mapping[str, TaskScores] = field(default_factory=dict)
    divergences: Mapping[str, TaskDivergences] = field(default_factory=dict)
    shown: Mapping[str, ShownTokens] = field(default_factory=dict)
    not_compared: tuple[NotCompared, ...] = ()
    groups: tuple[TaskGroup, ...] = ()
    environment: Mapping[str, Value] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    origin: RunOrigin | None = None
    lost: Mapping[tuple[str, str, str], str] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    declared: tuple[HeldValue, ...] = ()


def side_of_model(source: ModelSource, evaluation: Evaluation) -> ScoredSide:
    """The side of a model that has answered."""
    scores = evaluation.scores
    return ScoredSide(
        identity=identify_model(source, evaluation.description),
        tables=tuple(table for task in scores.values() for table in task.tables),
        description=evaluation.description,
        fields={task: of.fields for task, of in scores.items()},
        samples=scores,
        divergences=evaluation.divergences,
        shown=evaluation.shown,
        not_compared=tuple(left for task in scores.values() for left in task.not_compared),
        groups=evaluation.groups,
        environment=evaluation.description.environment,
        notes=(*evaluation.notes, *evaluation.description.caveats),
        findings=evaluation.findings,
        declared=_declared_by_files(source, evaluation.description),
    )


def _declared_by_files(source: ModelSource, description: ModelDescription) -> tuple[HeldValue, ...]:
    if description.configuration or not is_runtime(source.variant):
        return ()
    from evalguard.run.tracing.sides import read_declared_hyperparameters

    try:
        return tuple(read_declared_hyperparameters(source.variant))
    except EvalguardError:  # it was loaded and scored all the same
        return ()


def side_of_lmeval_run(source: RunSource) -> ScoredSide:
    """The side of a finished lm-eval run."""
    run = source.run
    return ScoredSide(
        identity=identify_run(source),
        tables=run.tables,
        fields=run.fields,
        samples={
            task: TaskScores(task=task, tables=(), not_compared=(), samples=documents)
            for task, documents in run.documents.items()
        },
        not_compared=run.not_compared,
        groups=run.groups,
        environment=run.environment,
        notes=run.notes,
        origin=run.origin,
        lost=run.lost,
    )


def side_of_stored(source: StoredSource) -> ScoredSide:
    """The side of a run that is finished, whoever made it."""
    return (
        side_of_baseline(source)
        if isinstance(source, BaselineSource)
        else side_of_lmeval_run(source)
    )


def side_of_baseline(source: BaselineSource) -> ScoredSide:
    """The side of a base whose scores were kept."""
    run = source.run
    return ScoredSide(
        identity=replace(run.identity, name=source.name),
        tables=run.tables,
        fields=run.fields,
        samples={
            task: TaskScores(
                task=task,
                tables=tuple(table for table in run.tables if table.task == task),
                not_compared=(),
                samples=rows,
            )
            for task, rows in run.rows.items()
        },
        not_compared=run.not_compared,
        environment=run.environment,
        notes=run.notes,
    )


def limit_to_candidate_tasks(base: ScoredSide, candidate: ScoredSide) -> ScoredSide:
    """A kept base with the tasks that the candidate was asked; any other side as it is."""
    if base.identity.kind != "stored run":
        return base
    asked = {table.task for table in candidate.tables}
    asked |= {left.task for left in candidate.not_compared}
    more = dict.fromkeys(table.task for table in base.tables if table.task not in asked)
    if not more:
        return base
    return replace(
        base,
        tables=tuple(table for table in base.tables if table.task in asked),
        samples={task: of for task, of in base.samples.items() if task in asked},
        not_compared=tuple(left for left in base.not_compared if left.task in asked),
        notes=(*base.notes, f"it was stored with tasks that are not asked: {', '.join(more)}"),
    )


# The scorer check: does lm-eval's own path give the scores that this run has?


# What float32 may leave of a document's log-likelihood, and of each nat of it: lm-eval adds up the
# tokens of a long text in float32.
_ABSOLUTE, _RELATIVE = 1e-4, 1e-6
# The largest difference of a few documents scatters: what one other path does may well come out so
# much larger than what another one does.
_TIMES_NOISE = 4.0

_NOT_VERIFIED = (
    "{task}: its scores were not verified: rolling_bos once reads whole texts otherwise than "
    "lm-eval's own path"
)

RequestKey = tuple[str, int, int]
ResponsesByRequest = Mapping[RequestKey, Response]


def check_scorer(source: ModelSource, context: RunContext) -> tuple[str, ...]:
    """Score the documents that were set aside once more, by lm-eval's own path.

    Returns:
        One sentence per task, with the largest difference in natural-log likelihood.

    Raises:
        EvaluationError: a difference is more than rounding.
    """
    if is_runtime(source.variant):
        return (f"{source.name} is not scored again: lm-eval's own path does not load it",)
    if source.variant.model not in HF_TYPES:
        return (f"model type '{source.variant.model}' is scored by lm-eval's own path alone",)
    if context.choices.policy.scorer == "harness":
        return ("scored by lm-eval's own path, which nothing was held against",)
    policy = source.policy or context.choices.policy
    unlike = {"generate_until"}
    if policy.rolling_bos == "once":
        unlike.add("loglikelihood_rolling")
    kept = {
        task: [pair for pair in pairs if pair[0].kind not in unlike]
        for (model, task), pairs in context.evaluator.scoring.aside.items()
        if model == source.name
    }
    whole = {
        task
        for (model, task), pairs in context.evaluator.scoring.aside.items()
        if model == source.name and any(r.kind == "loglikelihood_rolling" for r, _ in pairs)
    }
    asked = [request for pairs in kept.values() for request, _ in pairs]
    again = _score_by_harness(source, context, asked)
    ours = {_request_key(request): told for pairs in kept.values() for request, told in pairs}
    found = {
        task: _compare_responses([r for r, _ in pairs], ours, again) for task, pairs in kept.items()
    }
    noise = _compare_responses([], ours, again)
    if not all(one.rounding and not one.flips for one in found.values()):
        # in a narrow dtype: what other batches do to lm-eval's own path
        noise = _compare_responses(
            asked, _score_by_harness(source, context, asked, batch_size=1), again
        )
    return tuple(
        _NOT_VERIFIED.format(task=task)
        if task in whole and policy.rolling_bos == "once"
        else _difference_text(source.name, task, one, noise)
        for task, one in found.items()
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Difference:
    """Two paths' answers: the ``largest`` difference, and whether float32 rounding explains it."""

    documents: int
    largest: float
    rounding: bool
    flips: int


def _compare_responses(
    asked: Sequence[Request], ours: ResponsesByRequest, theirs: ResponsesByRequest
) -> _Difference:
    pairs = [(ours[_request_key(request)], theirs[_request_key(request)]) for request in asked]
    one, two = (
        np.array([answer.loglikelihood for answer in side], dtype=np.float64)
        for side in ([first for first, _ in pairs], [second for _, second in pairs])
    )
    same = (one == two) | (np.isnan(one) & np.isnan(two))
    with np.errstate(invalid="ignore"):
        apart = np.where(same, 0.0, np.abs(one - two))
        allowed = _ABSOLUTE + _RELATIVE * np.abs(two)
    return _Difference(
        documents=len({(request.task, request.doc_id) for request in asked}),
        largest=float(apart.max(initial=0.0)),
        rounding=bool((same | (apart <= allowed)).all()),
        flips=sum(first.is_greedy != second.is_greedy for first, second in pairs),
    )


def _difference_text(model: str, task: str, found: _Difference, noise: _Difference) -> str:
    if not found.documents:
        return f"{task} has no likelihood requests, so that its scores were not verified"
    greedy = f"greedy answers that differ: {found.flips}" if found.flips else "greedy answers agree"
    text = (
        f"{task}: {found.documents} documents scored again by lm-eval's own path: largest "
        f"difference {found.largest:.2g} nats, {greedy}"
    )
    if found.rounding and not found.flips:
        return text
    # Where rounding moves scores, it may turn the one or other greedy answer that was a near tie.
    ties = max(noise.flips, 0 if found.rounding else 1)
    moved = f"{noise.largest:.2g} nats and {noise.flips} greedy answers"
    scores_agree = found.rounding or found.largest <= _TIMES_NOISE * noise.largest
    if scores_agree and found.flips <= _TIMES_NOISE * ties:
        return f"{text}; other batches alone move that path's by {moved}"
    raise EvaluationError(
        f"{model} has other scores than lm-eval's own path gives: {text}; float32 allows "
        f"{_ABSOLUTE:g}, and other batches move that path's by {moved}",
        hint="--scorer harness scores by that path; please report the model",
    )


def _score_by_harness(
    source: ModelSource,
    context: RunContext,
    asked: Sequence[Request],
    batch_size: int | None = None,
) -> ResponsesByRequest:
    """Answers of lm-eval's own path, one kind of request of one task after the other."""
    if not asked:
        return {}
    usual = source.policy or context.choices.policy
    policy = replace(usual, scorer="harness", batch_size=batch_size or usual.batch_size)
    scorer = context.load_apart(replace(source, name=f"{source.name} to verify", policy=policy))
    told: dict[RequestKey, Response] = {}
    try:
        ordered = sorted(asked, key=lambda request: (request.task, request.kind))
        for _, group in groupby(ordered, key=lambda request: (request.task, request.kind)):
            requests = list(group)
            answers = scorer.score(requests)
            told |= {_request_key(r): answer for r, answer in zip(requests, answers, strict=True)}
    finally:
        scorer.close()
    return told


def _request_key(request: Request) -> RequestKey:
    return request.task, request.doc_id, request.index


# Scores the models of a comparison on the same tasks.


def score_models(
    sources: Sequence[ModelSource],
    choices: Choices,
    options: CompareOptions,
    *,
    opener: ScorerOpener | None = None,
    meter: Meter | None = None,
    stored: BaselineSource | None = None,
) -> list[Evaluation]:
    """Score each model on all tasks, and compare the distributions of two where that can be done.

    Args:
        opener: loads a model in place of ``open_scorer``.
        meter: counts what this takes.
        stored: the base in whose place scores stand that were kept of it.

    Raises:
        UsageError, EvaluationError, Interrupted: as loading and scoring do. Finished blocks of
            documents stay in the score cache.
        UsageError, MisalignedRunsError: before anything is loaded, if ``stored`` was not asked the
            same.
    """
    if not sources:
        return []

    def score(choices: Choices) -> list[Evaluation]:
        shown = tokens_beside_server(sources)
        with open_run_context(
            choices, options, opener=opener, meter=meter, shown_tokens=shown
        ) as context:
            if stored is not None:
                check_stored_requests(stored, context.evaluator, choices)
            evaluations = ScoringPlan(context).evaluate(sources)
            return [
                check_scores(evaluation, source, context)
                for evaluation, source in zip(evaluations, sources, strict=True)
            ]

    evaluations, notes = score_with_fallback(sources, choices, score)
    return [replace(one, notes=(*one.notes, *notes)) for one in evaluations]


# A model beside a server that shows k tokens shows twice as many, so that nearly all of those meet.
_TIMES_SHOWN = 2


def tokens_beside_server(sources: Sequence[ModelSource]) -> int:
    """How many tokens of its distributions a model in this process shows; 0: none is asked for."""
    asked = [source.variant.model_args.get(TOP_ARGUMENT) for source in sources]
    return _TIMES_SHOWN * max((one for one in asked if isinstance(one, int)), default=0)


def score_sides(
    sources: tuple[Source, Source],
    choices: Choices,
    options: CompareOptions,
    *,
    opener: ScorerOpener | None = None,
    meter: Meter | None = None,
    base: ScoredSide | None = None,
) -> tuple[ScoredSide, ScoredSide]:
    """Score the sides that are models; the others have their scores.

    Args:
        opener: loads a model in place of ``open_scorer``, for a caller that watches it work.
        meter: counts what this takes.
        base: the first side, where it is scored already.
    """
    asked = sources if base is None else sources[1:]
    models = [source for source in asked if isinstance(source, ModelSource)]
    stored = next((source for source in sources if isinstance(source, BaselineSource)), None)
    evaluations = iter(
        score_models(models, choices, options, opener=opener, meter=meter, stored=stored)
    )
    found = [
        side_of_stored(source)
        if isinstance(source, StoredSource)
        else side_of_model(source, next(evaluations))
        for source in asked
    ]
    first, candidate = found if base is None else (base, *found)
    return limit_to_candidate_tasks(first, candidate), candidate


def check_scores(evaluation: Evaluation, source: ModelSource, context: RunContext) -> Evaluation:
    """Add what the check of the scorer says, if there is to be one.

    Raises:
        EvaluationError: lm-eval's own path gives other scores.
    """
    if not context.options.verify_scorer:
        return evaluation
    with interruptible(f"verifying the scores of {source.name}"):
        notes = check_scorer(source, context)
    return replace(evaluation, notes=(*evaluation.notes, *notes))


# Whether a stored base was asked what the candidate will be asked: seen before a model is loaded.
#
# Token ids are not among it: only a loaded candidate shows them, and pairing looks at every
# document.


def check_stored_requests(base: BaselineSource, evaluator: Evaluator, choices: Choices) -> None:
    """Refuse a stored base that answered something else.

    Prompts that a chat template makes are the model's own: of these only the tasks are compared.

    Raises:
        UsageError: for tasks of which it has no scores, with those of which it has.
        MisalignedRunsError: for other documents, prompts, targets or task options.
    """
    tables = {table.task: table for table in sorted(base.run.tables, key=lambda one: one.n)}
    _check_tasks(base, evaluator, asked=dict.fromkeys((*_tasks_of_base(base), *tables)))
    if evaluator.chat:
        return
    for task in evaluator.tasks.names:
        if task in tables:
            with interruptible(f"building the requests of {task}"):
                requests = evaluator.tasks.requests(task)
            _check_documents(base, tables[task], requests, choices)


def _tasks_of_base(base: BaselineSource) -> list[str]:
    tables = [table.task for table in base.run.tables]
    return [*tables, *(left.task for left in base.run.not_compared)]


def _check_tasks(base: BaselineSource, evaluator: Evaluator, *, asked: dict[str, None]) -> None:
    absent = [task for task in evaluator.tasks.names if task not in asked]
    if absent:
        shown = ", ".join(absent[:5]) + (f" and {len(absent) - 5} more" if absent[5:] else "")
        raise UsageError(
            f"of the stored base {base.name} ({base.run.path}) no scores of {shown} are kept"
            f"{nearest(absent[0], asked)}",
            hint=f"its tasks: {', '.join(asked) or 'none'}",
        )


def _check_documents(
    base: BaselineSource, table: ScoreTable, requests: TaskRequests, choices: Choices
) -> None:
    """Pair the documents without scores: what forbids it is what would forbid it at the end."""
    asked = requested_documents(requests)
    having = [one for one in asked if one.doc_id in set(table.doc_ids.tolist())]
    # A metric that not every document has is not a sign of other documents.
    told = having if len(having) == table.n else asked
    ones = np.ones(len(told))
    bare = replace(table, clusters=(), token_hashes=(), answers=(), cut=(), reading=None)
    other = replace(
        bare,
        doc_ids=np.array([one.doc_id for one in told], dtype=np.int64),
        values=np.zeros(len(told)),
        weights=table.weights if len(told) == table.n or table.weights is None else ones,
        doc_hashes=tuple(one.doc_hash for one in told),
        prompt_hashes=tuple(one.prompt_hash for one in told),
        target_hashes=tuple(one.target_hash for one in told),
        asked_hashes=tuple(one.asked_hash for one in told) if table.asked_hashes else (),
        run={**requests.run, "rolling_bos": choices.policy.rolling_bos},
        source="this run",
    )
    try:
        pair(bare, other, allow=choices.allow)
    except MisalignedRunsError as error:
        raise MisalignedRunsError(
            f"the stored base {base.name} ({base.run.path}) was not asked the same: {error}",
            hint=error.hint,
        ) from error
