"""``floor``: what an unchanged model shows when what should not matter is varied."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import evalguard
from evalguard.comparison.compare import resolve_request
from evalguard.comparison.table_comparisons import (
    add_aggregates,
    compare_by_document,
    split_comparable,
)
from evalguard.config.options import CompareOptions, make_options
from evalguard.core.comparison import Comparison
from evalguard.core.distribution_comparison import DistributionComparison
from evalguard.core.document_columns import Rows, column_of
from evalguard.core.gate import Gate
from evalguard.core.noise_floor import (
    FACTORS,
    DistributionShift,
    Factor,
    MetricFloor,
    Shift,
    Unmeasured,
    Variation,
    distribution_floors,
    metric_floors,
)
from evalguard.core.pairing import PairedScores, pair
from evalguard.core.redaction import redacted_text
from evalguard.core.scorer import ModelDescription, cached_between, count_cached_tokens
from evalguard.core.scores import NotCompared, ScoreTable, TaskGroup
from evalguard.core.settings import digest_of
from evalguard.distributions.task_distributions import TaskDivergences, compare_task_distributions
from evalguard.engine.batches import CommonPolicy
from evalguard.engine.choices import Choices, with_execution, with_workers
from evalguard.engine.cluster_fields import cluster_documents
from evalguard.engine.executor import Evaluation
from evalguard.engine.interrupts import interruptible
from evalguard.engine.loading.own_environment import shows_distributions
from evalguard.engine.run_context import RunContext, open_run_context
from evalguard.engine.run_environment import read_environment
from evalguard.engine.run_identities import identify_model
from evalguard.engine.scoring_plan import ScoringPlan
from evalguard.engine.side_figures import with_both_answers
from evalguard.engine.sources import ModelSource, Source
from evalguard.errors import (
    EXIT_FAILED,
    EXIT_PASSED,
    EvaluationError,
    FallbackError,
    StoreError,
    UsageError,
)
from evalguard.errors import nearest as nearest_name
from evalguard.floors.floor_page import FloorResult
from evalguard.floors.floor_report import FloorReport, floor_document
from evalguard.floors.known_floors import (
    FLOORS_FOLDER,
    FloorStore,
    floor_environment,
    floor_group_keys,
    floor_model_key,
    floor_task_keys,
)
from evalguard.floors.variations import WARM, apply_variation, plan_variations, why_not_taken
from evalguard.harness.requests import TaskRequests
from evalguard.harness.score_tables import TaskScores
from evalguard.run_token import run_scope
from evalguard.stats.compare_scores import tolerance_of
from evalguard.stats.drift import estimate_drift
from evalguard.stats.influence import document_differences
from evalguard.store.cache_folder import open_cache_dir

_KL_METRIC = "kl"


def measure_distribution_shifts(
    variation: Variation,
    divergences: Mapping[str, TaskDivergences],
    tables: Sequence[ScoreTable],
    *,
    confidence: float,
) -> Iterator[DistributionShift | Unmeasured]:
    """Yield what was measured of each task's distributions, or why it gives no number.

    Args:
        divergences: of the varied run from the usual one; tasks that only
            generate are passed over.
        tables: of the usual run, which know the clusters of documents.
    """
    for compared in compare_task_distributions(divergences.values(), tables, confidence=confidence):
        shift = _distribution_shift(variation, compared)
        yield shift or Unmeasured(
            factor=variation.factor,
            name=variation.name,
            reason=compared.failure,
            task=compared.task,
            metric=_KL_METRIC,
        )


def _distribution_shift(
    variation: Variation, compared: DistributionComparison
) -> DistributionShift | None:
    largest, same = compared.kl_at(100.0), compared.same_top1
    if compared.kl.value is None or largest.value is None or same.value is None:
        return None
    return DistributionShift(
        variation=variation.name,
        task=compared.task,
        n=compared.n,
        positions=compared.positions,
        kl=compared.kl.value,
        kl_interval=compared.kl.interval,
        kl_bounds=compared.kl.bounds,
        kl_max=largest.value,
        top1_changed=1.0 - same.value,
        top1_changed_interval=_complement_interval(same.interval),
        bit_identical=compared.bit_identical,
        confidence=compared.confidence,
        caveats=compared.caveats,
    )


def _complement_interval(interval: tuple[float, float] | None) -> tuple[float, float] | None:
    return None if interval is None else (1.0 - interval[1], 1.0 - interval[0])


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

    common = CommonPolicy([source], choices)
    while True:
        with common.attempt() as choices:
            with open_run_context(choices, options) as context:
                context.check_asked([source])
                context.say_what_is_scored_anew([source])
                executor = replace(context.executor, may_vary=True)
                measurement = _FloorMeasurement(source, choices, context.with_executor(executor))
                measured = measurement.run(factors)
            return replace(measured, notes=(*measured.notes, *common.notes))


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
            executor = self.context.executor
            before = count_cached_tokens(model.scorer) if "cache" in factors else None
            default = executor.evaluate(model)
            if "cache" in factors:
                self.cached_at_first = cached_between(before, count_cached_tokens(model.scorer))
            self.requests = {task: executor.requests(task, model.scorer) for task in default.scores}
        self.groups = default.groups
        scores = default.scores.values()
        self.not_compared = tuple(comparison for task in scores for comparison in task.not_compared)
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
        self.notes += [*(finding.sentence for finding in evaluation.findings), *evaluation.notes]
        for task, reason in inert.items():
            self._leave_out(variation, reason, task=task)
        varied: Sequence[ScoreTable] = [
            table for table in self._tables(evaluation) if table.task not in inert
        ]
        unchanged = [table for table in default if table.task not in inert]
        usual, varied = with_both_answers((unchanged, varied), (answered, evaluation.scores))
        other_answers = {
            task: count_other_answers(answered[task].samples, scores.samples)
            for task, scores in evaluation.scores.items()
            if task in answered
        }
        self.shifts += self._shifts(variation, usual, varied, other_answers)
        measured = {
            t: divergence for t, divergence in evaluation.divergences.items() if t not in inert
        }
        confidence = self.choices.gate.confidence
        for shift in measure_distribution_shifts(variation, measured, usual, confidence=confidence):
            if isinstance(shift, Unmeasured):
                self.unmeasured.append(shift)
            else:
                self.distribution_shifts.append(shift)

    def _evaluation(self, variation: Variation) -> Evaluation:
        """Score the model under a variation, beside the usual one where both fit.

        Raises:
            EvaluationError: if it cannot be loaded or scored so, or the variation did not take.
        """
        source = apply_variation(variation, self.source, self.choices.policy)
        context = self.context
        if variation.factor == "repeat" or variation.value == WARM:
            # kept scores would be the same ones
            executor = replace(context.executor, kept=None)
            context = context.with_executor(executor)
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
        default_tables, varied_tables = (
            {table.key: table for table in side} for side in (default, varied)
        )
        for comparison in self._compared(default, varied):
            key = (comparison.task, comparison.filter, comparison.metric)
            if (
                comparison.sigma is None
                or comparison.sigma_interval is None
                or comparison.paired_stderr is None
            ):
                self._leave_out(
                    variation, comparison.reason, task=comparison.task, metric=comparison.metric
                )
                continue
            # the aggregate of a group has no documents of its own
            paired = (
                pair(default_tables[key], varied_tables[key]) if key in default_tables else None
            )
            spread = None if paired is None else document_differences(paired)
            yield Shift(
                variation=variation.name,
                task=comparison.task,
                filter=comparison.filter,
                metric=comparison.metric,
                n=comparison.n_used,
                sigma=comparison.sigma,
                sigma_interval=comparison.sigma_interval,
                paired_stderr=comparison.paired_stderr,
                document_sd=None if spread is None else spread.sd,
                largest_difference=None if spread is None else spread.largest,
                largest_document=None if spread is None else spread.doc_id,
                flips=comparison.flips,
                bit_identical=comparison.bit_identical,
                method=comparison.method,
                confidence=comparison.confidence,
                caveats=comparison.caveats,
                other_answers=others.get(comparison.task),
            )

    def _compared(
        self, default: Sequence[ScoreTable], varied: Sequence[ScoreTable]
    ) -> list[Comparison]:
        """Compare tasks, and the groups of which every task was varied."""
        gate = self.choices.gate
        of_tasks, undefined = split_comparable(compare_by_document(default, varied, gate=gate))
        new = [entry for entry in undefined if entry not in self.not_compared]
        self.not_compared = (*self.not_compared, *new)
        tasks = {table.task for table in default}
        groups = [group for group in self.groups if tasks.issuperset(group.tasks)]
        compared = add_aggregates(of_tasks, (groups, groups), left_out=self.not_compared, gate=gate)
        comparisons = [entry.comparison for entry in compared]
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
            blocks = self.context.executor.blocks(requests)
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


_UNPROVEN_MODEL = (
    "the model cannot prove its weights, so that its floor is not kept; save the JSON document "
    "(--json) and give it to a comparison with --floor"
)


@run_scope()
def floor(
    base: str | Path,
    options: CompareOptions | None = None,
    *,
    vary: Collection[str] = FACTORS,
    **given: Any,
) -> FloorResult:
    """Measure what one unchanged model shows when what should not matter is varied.

    The model is scored once as a comparison would, and once for every variation (batch size,
    threads, device, attention implementation, softmax dtype, the same again), each read back from
    the loaded model. What moves is noise: a comparison whose drift is no larger has shown nothing.
    The floor is kept in the cache folder, and later comparisons with this base find it there.

    Args:
        base: a model's name in the guard file, a model folder or a hub id.
        options, given: as for ``evalguard.compare``; ``base_model_args`` and ``base_set`` count.
            ``write=False`` keeps nothing.
        vary: which factors, of ``evalguard.core.noise_floor.FACTORS``.

    Raises:
        UsageError, EvaluationError, Interrupted: as ``evalguard.compare``; EvaluationError also
            where no variation could be measured.
    """
    options = make_options(options, **given)
    twice = dataclasses.replace(
        options, cand_model_args=options.base_model_args, cand_set=options.base_set
    )
    with interruptible("reading what is to be measured"):
        sources, choices = resolve_request(str(base), str(base), twice)
    return _measure_floor(_require_model(sources[0]), choices, options, vary)


def _require_model(source: Source) -> ModelSource:
    if not isinstance(source, ModelSource):
        raise UsageError(
            f"'{source.name}' is what a model has answered: a floor needs the model, which is "
            "scored several times",
            hint="name the model that made it",
        )
    # without what told two names apart
    return dataclasses.replace(source, name=source.variant.name)


def _read_factors(vary: Collection[str]) -> tuple[Factor, ...]:
    names = (vary,) if isinstance(vary, str) else tuple(vary)
    for name in names:
        if name not in FACTORS:
            raise UsageError(
                f"there is nothing to vary called '{name}'{nearest_name(name, FACTORS)}",
                hint=f"what can be varied: {', '.join(FACTORS)}",
            )
    return tuple(factor for factor in FACTORS if factor in names)


def _measure_floor(
    source: ModelSource, choices: Choices, options: CompareOptions, vary: Collection[str]
) -> FloorResult:
    factors = _read_factors(vary)
    options = with_execution(with_workers(options, choices), choices)
    with interruptible("measuring the floor"):
        run = score_variations(source, choices, options, factors)
    report = _build_report(source, run, choices, options)
    if options.write:
        report = _store(report, options)
    return FloorResult(report)


def _build_report(
    source: ModelSource, run: FloorRun, choices: Choices, options: CompareOptions
) -> FloorReport:
    gate = choices.gate
    floors = tuple(
        _with_margin(metric_floor, run.tables, gate) for metric_floor in metric_floors(run.shifts)
    )
    if not floors:
        reasons = "; ".join(dict.fromkeys(f"{u.name}: {u.reason}" for u in run.unmeasured))
        raise EvaluationError(
            f"no variation of {source.name} could be measured: {reasons or 'none was asked for'}"
        )
    described = floor_environment(run.description)
    without = {table.key for table in run.tables} - {floor.key for floor in floors}
    return FloorReport(
        model=identify_model(source, run.description),
        model_key=floor_model_key(run.description),
        environment_key=digest_of(described),
        environment=described,
        task_keys=run.keys,
        computation=dict(run.description.computation),
        variations=run.variations,
        unmeasured=run.unmeasured,
        shifts=run.shifts,
        floors=floors,
        distribution_shifts=run.distribution_shifts,
        distribution_floors=distribution_floors(run.distribution_shifts),
        seed=choices.policy.seed,
        confidence=choices.gate.confidence,
        margin=gate.least_margin(floor.margin for floor in floors),
        exit_code=EXIT_FAILED if without else EXIT_PASSED,
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        not_compared=run.not_compared,
        notes=tuple(dict.fromkeys((*choices.notes, *run.notes))),
        surroundings=read_environment() | {"model": dict(run.description.environment)},
        command=redacted_text(options.command),
        version=evalguard.__version__,
    )


def _with_margin(floor: MetricFloor, tables: Sequence[ScoreTable], gate: Gate) -> MetricFloor:
    """With what the gate tolerates of the metric, in sigma of the default run."""
    margin = gate.margin_of(floor.task, floor.metric)
    described = dataclasses.replace(floor, margin_text=margin.text)
    if not gate.covers(floor.task, floor.filter, floor.metric):
        return described
    if margin.unit == "sigma":
        return dataclasses.replace(described, margin=margin.value)
    table = next(table for table in tables if table.key == floor.key)
    drift = estimate_drift(PairedScores(base=table, candidate=table), confidence=gate.confidence)
    try:
        return dataclasses.replace(described, margin=tolerance_of(drift, table, margin).sigma)
    except ValueError:  # it has no such margin: the gate would fail it, whatever its floor
        return described


def _store(report: FloorReport, options: CompareOptions) -> FloorReport:
    """Store the floor, one file per task; a full disk costs the file, not the numbers."""
    if not report.model_key:
        return dataclasses.replace(report, notes=(*report.notes, _UNPROVEN_MODEL))
    store = FloorStore(open_cache_dir(options.cache_dir) / FLOORS_FOLDER)
    paths: list[str] = []
    try:
        for task in dict.fromkeys(floor.task for floor in report.floors):
            document = floor_document(report.only(task))
            key = report.task_keys[task]
            path = store.put(report.model_key, key, report.environment_key, document)
            paths.append(str(path))
    except StoreError as error:
        note = f"the floor could not be kept: {error}"
        report = dataclasses.replace(report, notes=(*report.notes, note))
    return dataclasses.replace(report, kept=tuple(paths))
