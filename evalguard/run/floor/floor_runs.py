"""Scores a model under its variations, and says how far each moves it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from evalguard.core.comparison import Comparison
from evalguard.core.distribution_floor import DistributionShift
from evalguard.core.documents.columns import Rows, column_of
from evalguard.core.noise_floor import Factor, Shift, Unmeasured, Variation
from evalguard.core.pairing import pair
from evalguard.core.scorer import ModelDescription, cached_between, count_cached_tokens
from evalguard.core.scores import NotCompared, ScoreTable
from evalguard.core.task_group import TaskGroup
from evalguard.errors import EvaluationError, FallbackError, UsageError
from evalguard.harness.requests import TaskRequests
from evalguard.harness.score_tables import TaskScores
from evalguard.run.choices import Choices
from evalguard.run.cluster_fields import cluster_documents
from evalguard.run.executing.batches import score_with_fallback
from evalguard.run.floor.distribution_shifts import measure_distribution_shifts
from evalguard.run.floor.floor_keys import floor_group_keys, floor_task_keys
from evalguard.run.floor.variations import (
    WARM,
    apply_variation,
    plan_variations,
    why_not_taken,
)
from evalguard.run.groups import add_aggregates
from evalguard.run.loading.own_environment import shows_distributions
from evalguard.run.options import CompareOptions
from evalguard.run.scoring.evaluate import Evaluation
from evalguard.run.scoring.run_context import RunContext, open_run_context
from evalguard.run.scoring.scoring_plan import ScoringPlan
from evalguard.run.scoring.side_figures import with_both_answers
from evalguard.run.sources import ModelSource
from evalguard.run.table_comparisons import compare_by_document, split_comparable
from evalguard.stats.document_differences import document_differences


@dataclass(frozen=True, slots=True, kw_only=True)
class FloorRun:
    """What was measured: the default run, and how far each variation moved it.

    ``keys``: digest of what each task and group asks.
    """

    description: ModelDescription
    tables: tuple[ScoreTable, ...]
    keys: Mapping[str, str]
    variations: tuple[Variation, ...]
    unmeasured: tuple[Unmeasured, ...]
    shifts: tuple[Shift, ...]
    distribution_shifts: tuple[DistributionShift, ...]
    not_compared: tuple[NotCompared, ...]
    notes: tuple[str, ...]


def score_variations(
    source: ModelSource, choices: Choices, options: CompareOptions, factors: Collection[Factor]
) -> FloorRun:
    """Score a model as usual and under every variation that can be had here.

    Raises:
        UsageError, EvaluationError, Interrupted: as scoring the model as usual does. A variation
            that fails is left out, with its reason.
    """

    def run(choices: Choices) -> FloorRun:
        with open_run_context(choices, options) as context:
            context.check_asked([source])
            context.say_what_is_scored_anew([source])
            evaluator = replace(context.evaluator, may_vary=True)
            measurement = _FloorMeasurement(source, choices, context.with_evaluator(evaluator))
            return measurement.run(factors)

    measured, notes = score_with_fallback([source], choices, run)
    return replace(measured, notes=(*measured.notes, *notes))


# vLLM does not read its cache for a prompt whose log-probabilities are asked for
# (``skip_reading_prefix_cache`` of its SamplingParams).
_NOTHING_CACHED = (
    "asked everything again, it took no token from its cache: that is off, or is not read for "
    "prompts whose log-probabilities are asked for, as by vLLM (a task that generates reads it)"
)
_WARM_BEFORE = (
    "its cache was as warm the first time ({tokens} tokens taken from it): start it anew, as "
    "serve: does, and measure the floor first"
)
_UNTOLD = (
    "asked again: the engine does not say whether it took anything from its cache "
    "(vLLM says so with --enable-prompt-tokens-details, or at /metrics)"
)


@dataclass(slots=True)
class _FloorMeasurement:
    source: ModelSource
    choices: Choices
    context: RunContext
    variations: list[Variation] = field(default_factory=list)
    unmeasured: list[Unmeasured] = field(default_factory=list)
    shifts: list[Shift] = field(default_factory=list)
    distribution_shifts: list[DistributionShift] = field(default_factory=list)
    requests: dict[str, TaskRequests] = field(default_factory=dict)
    groups: tuple[TaskGroup, ...] = ()
    not_compared: tuple[NotCompared, ...] = ()
    group_keys: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    cached_at_first: int | None = None

    def run(self, factors: Collection[Factor]) -> FloorRun:
        with self.context.open_model(self.source) as model:
            evaluator = self.context.evaluator
            before = count_cached_tokens(model.scorer) if "cache" in factors else None
            default = evaluator.evaluate(*model)
            if "cache" in factors:
                self.cached_at_first = cached_between(before, count_cached_tokens(model.scorer))
            self.requests = {
                task: evaluator.requests(task, model.scorer) for task in default.scores
            }
        self.groups = default.groups
        scores = default.scores.values()
        self.not_compared = tuple(left for task in scores for left in task.not_compared)
        tables = self._tables(default)
        planned, unmeasured = plan_variations(default.description, factors)
        self.unmeasured += unmeasured
        for variation in planned:
            self._vary(variation, tables, default.scores)
        return FloorRun(
            description=default.description,
            tables=tables,
            keys={**self.group_keys, **floor_task_keys(tables)},
            variations=tuple(self.variations),
            unmeasured=tuple(self.unmeasured),
            shifts=tuple(self.shifts),
            distribution_shifts=tuple(self.distribution_shifts),
            not_compared=self.not_compared,
            notes=(*default.told, *self.notes),
        )

    def _vary(
        self,
        variation: Variation,
        default: Sequence[ScoreTable],
        answered: Mapping[str, TaskScores],
    ) -> None:
        inert = {task: why for task in self.requests if (why := self._inert(variation, task))}
        if set(inert) == set(self.requests):
            self._leave_out(variation, next(iter(inert.values())))
            return
        try:
            evaluation = self._evaluation(variation)
        except FallbackError:
            raise
        except (EvaluationError, UsageError) as error:
            self._leave_out(variation, "; ".join(filter(None, (str(error), error.hint))))
            return
        self.variations.append(variation)
        self.notes += [*(one.sentence for one in evaluation.findings), *evaluation.notes]
        for task, reason in inert.items():
            self._leave_out(variation, reason, task=task)
        varied: Sequence[ScoreTable] = [
            table for table in self._tables(evaluation) if table.task not in inert
        ]
        unchanged = [table for table in default if table.task not in inert]
        usual, varied = with_both_answers((unchanged, varied), (answered, evaluation.scores))
        others = {
            task: count_other_answers(answered[task].samples, scores.samples)
            for task, scores in evaluation.scores.items()
            if task in answered
        }
        self.shifts += self._shifts(variation, usual, varied, others)
        measured = {t: found for t, found in evaluation.divergences.items() if t not in inert}
        confidence = self.choices.gate.confidence
        for found in measure_distribution_shifts(variation, measured, usual, confidence=confidence):
            if isinstance(found, Unmeasured):
                self.unmeasured.append(found)
            else:
                self.distribution_shifts.append(found)

    def _evaluation(self, variation: Variation) -> Evaluation:
        """Score the model under a variation, beside the usual one where both fit.

        Raises:
            EvaluationError: if it cannot be loaded or scored so, or the variation did not take.
        """
        source = apply_variation(variation, self.source, self.choices.policy)
        context = self.context
        if variation.factor == "repeat" or variation.value == WARM:
            # kept scores would be the same ones
            evaluator = replace(context.evaluator, kept=None)
            context = context.with_evaluator(evaluator)
        if variation.value == WARM:
            return self._asked_again(context, source)
        compared = self.choices.distributions.mode != "off"
        together = compared and shows_distributions(source.variant)
        models = [self.source, source] if together else [source]
        evaluation = ScoringPlan(context, base_again=True).evaluate(models)[-1]
        problem = why_not_taken(variation, evaluation.description)
        if problem:
            raise EvaluationError(problem)
        return evaluation

    def _asked_again(self, context: RunContext, source: ModelSource) -> Evaluation:
        """Ask one running engine everything twice; return what it said the second time.

        Raises:
            EvaluationError: it says that it took nothing from its cache, or as much the first time.
        """
        warm = ScoringPlan(context).evaluate_again(source)
        first, second = self.cached_at_first, warm.cached_tokens
        if second is None:
            self.notes.append(_UNTOLD)
        elif second == 0:
            raise EvaluationError(_NOTHING_CACHED)
        elif first is not None and first >= second:
            raise EvaluationError(_WARM_BEFORE.format(tokens=f"{second:,}"))
        return warm.evaluation

    def _tables(self, evaluation: Evaluation) -> tuple[ScoreTable, ...]:
        scores = evaluation.scores
        return cluster_documents(
            [table for task in scores.values() for table in task.tables],
            {task: of.fields for task, of in scores.items()},
            self.choices.clusters,
        )

    def _shifts(
        self,
        variation: Variation,
        default: Sequence[ScoreTable],
        varied: Sequence[ScoreTable],
        others: Mapping[str, int | None],
    ) -> Iterator[Shift]:
        usual, other = ({table.key: table for table in side} for side in (default, varied))
        for found in self._compared(default, varied):
            key = (found.task, found.filter, found.metric)
            if found.sigma is None or found.sigma_interval is None or found.paired_stderr is None:
                self._leave_out(variation, found.reason, task=found.task, metric=found.metric)
                continue
            # the aggregate of a group has no documents of its own
            paired = pair(usual[key], other[key]) if key in usual else None
            spread = None if paired is None else document_differences(paired)
            yield Shift(
                variation=variation.name,
                task=found.task,
                filter=found.filter,
                metric=found.metric,
                n=found.n_used,
                sigma=found.sigma,
                sigma_interval=found.sigma_interval,
                paired_stderr=found.paired_stderr,
                document_sd=None if spread is None else spread.sd,
                largest_difference=None if spread is None else spread.largest,
                largest_document=None if spread is None else spread.doc_id,
                flips=found.flips,
                bit_identical=found.bit_identical,
                method=found.method,
                confidence=found.confidence,
                caveats=found.caveats,
                other_answers=others.get(found.task),
            )

    def _compared(
        self, default: Sequence[ScoreTable], varied: Sequence[ScoreTable]
    ) -> list[Comparison]:
        """Compare tasks, and the groups of which every task was varied."""
        gate = self.choices.gate
        of_tasks, undefined = split_comparable(compare_by_document(default, varied, gate=gate))
        new = [one for one in undefined if one not in self.not_compared]
        self.not_compared = (*self.not_compared, *new)
        tasks = {table.task for table in default}
        groups = [group for group in self.groups if tasks.issuperset(group.tasks)]
        compared = add_aggregates(of_tasks, (groups, groups), left_out=self.not_compared, gate=gate)
        comparisons = [one.comparison for one in compared]
        self.group_keys |= floor_group_keys(floor_task_keys(default), comparisons)
        return comparisons

    def _inert(self, variation: Variation, task: str) -> str:
        """Why a variation cannot move any score of a task, whatever the model; "" if it can."""
        requests = self.requests[task]
        kinds = {request.kind for request in requests.requests}
        if variation.factor == "softmax_dtype" and kinds == {"generate_until"}:
            return "generated text is not read from a log-softmax"
        scored = kinds != {"generate_until"}
        if variation.value == WARM and scored and self.source.variant.model == "vllm":
            return "vLLM computes scored prompts anew, whatever is in its cache"
        # whole texts are cut into windows, so that their requests say little about batches
        if variation.factor == "batch_size" and "loglikelihood_rolling" not in kinds:
            blocks = self.context.evaluator.blocks(requests)
            most = max(len(block.requests) for block in blocks)
            sizes = (variation.value, variation.default)
            if all(isinstance(size, int) and most <= size for size in sizes):
                return f"with {most} requests at a time, batches are the same"
        return ""

    def _leave_out(
        self, variation: Variation, reason: str, *, task: str = "", metric: str = ""
    ) -> None:
        self.unmeasured.append(
            Unmeasured(
                factor=variation.factor,
                name=variation.name,
                reason=reason,
                task=task,
                metric=metric,
            )
        )


def count_other_answers(first: Rows, second: Rows) -> int | None:
    """In how many documents two askings gave other texts or log-likelihoods; None: not known."""
    if [*column_of(first, "doc_id")] != [*column_of(second, "doc_id")]:
        return None
    columns = [
        zip(column_of(first, name), column_of(second, name), strict=True)
        for name in ("text", "loglikelihood")
    ]
    return sum(any(a != b for a, b in document) for document in zip(*columns, strict=True))
