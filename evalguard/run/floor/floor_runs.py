"""The runs behind a floor: one model as usual, then under every variation, paired with that."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec

from evalguard.core.comparison import Comparison
from evalguard.core.distribution_comparison import DistributionComparison
from evalguard.core.distribution_floor import DistributionShift
from evalguard.core.noise_floor import Factor, Shift, Unmeasured, Variation
from evalguard.core.pairing import pair
from evalguard.core.scorer import DEFAULT_BATCH_SIZE, ModelDescription, ScoringPolicy
from evalguard.core.scores import NotCompared, ScoreTable
from evalguard.core.settings import Value
from evalguard.core.task_group import TaskGroup
from evalguard.errors import EvaluationError, FallbackError, UsageError
from evalguard.harness.requests import TaskRequests
from evalguard.models.arguments import HF_TYPES
from evalguard.run.choices import Choices
from evalguard.run.executing.batches import score_with_fallback
from evalguard.run.floor.stored_floors import floor_group_keys, floor_task_keys
from evalguard.run.groups import add_aggregates, cluster_documents
from evalguard.run.judging import compare_by_document, split_comparable
from evalguard.run.options import CompareOptions
from evalguard.run.scoring.divergences import TaskDivergences, compare_task_distributions
from evalguard.run.scoring.evaluate import Evaluation
from evalguard.run.scoring.measuring import ScoringPlan
from evalguard.run.scoring.run_context import RunContext, open_run_context
from evalguard.run.sources import ModelSource
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
            return _FloorMeasurement(source, choices, context).run(factors)

    measured, notes = score_with_fallback([source], choices, run)
    return replace(measured, notes=(*measured.notes, *notes))


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

    def run(self, factors: Collection[Factor]) -> FloorRun:
        with self.context.open_model(self.source) as model:
            evaluator = self.context.evaluator
            default = evaluator.evaluate(*model)
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
            self._vary(variation, tables)
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

    def _vary(self, variation: Variation, default: Sequence[ScoreTable]) -> None:
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
        self.notes += [*(one.text for one in evaluation.findings), *evaluation.notes]
        for task, reason in inert.items():
            self._leave_out(variation, reason, task=task)
        varied = [table for table in self._tables(evaluation) if table.task not in inert]
        usual = [table for table in default if table.task not in inert]
        self.shifts += self._shifts(variation, usual, varied)
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
        if variation.factor == "repeat":  # kept scores would be the same ones
            evaluator = replace(context.evaluator, kept=None)
            context = context.with_evaluator(evaluator)
        together = self.choices.distributions.mode != "off"
        models = [self.source, source] if together else [source]
        evaluation = ScoringPlan(context, base_again=True).evaluate(models)[-1]
        problem = why_not_taken(variation, evaluation.description)
        if problem:
            raise EvaluationError(problem)
        return evaluation

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


# How far variations move an unchanged model's next-token distributions.


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


# Variations of what should not matter: which there are for a model, applied, and read back.


_NARROW = ("bfloat16", "float16")
_NAMES: dict[Factor, str] = {
    "repeat": "the same again",
    "batch_size": "batch size",
    "threads": "threads",
    "device": "device",
    "attention": "attention",
    "softmax_dtype": "softmax",
    "concurrency": "concurrency",
}
# Requests in flight where the usual run has one.
_CONCURRENT = 8
PlannedVariations = tuple[list[Variation], list[Unmeasured]]


def plan_variations(
    description: ModelDescription, factors: Collection[Factor]
) -> PlannedVariations:
    """Say which variations a model can be scored under here, and why not under others.

    Args:
        description: of the default run: every variation departs from what was read back there.
        factors: those that are wanted.
    """
    varied: list[Variation] = []
    unmeasured: list[Unmeasured] = []
    for factor, values_of in _VALUES.items():
        if factor not in factors:
            continue
        found = values_of(description)
        if isinstance(found, str):
            unmeasured.append(Unmeasured(factor=factor, name=_NAMES[factor], reason=found))
            continue
        default = _default_value(description, factor)
        varied += [
            Variation(
                factor=factor, name=_variation_name(factor, value), value=value, default=default
            )
            for value in found
        ]
    return varied, unmeasured


def apply_variation(
    variation: Variation, source: ModelSource, policy: ScoringPolicy
) -> ModelSource:
    """Return what has to be loaded, and how it scores, for a variation.

    Args:
        source: the model of the default run; ``policy``: how that run scores.
    """
    value = variation.value
    arguments = dict(source.variant.model_args)
    if variation.factor == "batch_size" and isinstance(value, int):
        policy = replace(policy, batch_size=value)
    elif variation.factor == "threads" and isinstance(value, int):
        policy = replace(policy, threads=value)
    elif variation.factor == "device" and "device" not in arguments:
        policy = replace(policy, device=str(value))
    elif variation.factor == "device":
        arguments["device"] = value
    elif variation.factor == "attention":
        arguments["attn_implementation"] = value
    elif variation.factor == "softmax_dtype":
        policy = replace(policy, softmax_dtype="model")
    elif variation.factor == "concurrency":
        arguments["num_concurrent"] = value
    variant = replace(source.variant, model_args=arguments)
    name = f"{source.name}, {variation.name}"
    return replace(source, name=name, variant=variant, policy=policy)


def why_not_taken(variation: Variation, description: ModelDescription) -> str:
    """Why a variation that was applied is none, by what the loaded model shows; "" if it took."""
    if variation.factor == "repeat":
        return ""
    found = description.computation.get(variation.factor)
    if found == variation.value:
        return ""
    return f"it did not take: {variation.value} was asked for, and the model has {found}"


def _default_value(description: ModelDescription, factor: Factor) -> Value:
    """What a factor is in the default run."""
    found = description.computation.get(factor)
    budget = description.computation.get("token_budget")
    return f"{budget} tokens" if factor == "batch_size" and found is None and budget else found


def _variation_name(factor: Factor, value: Value) -> str:
    return {
        "batch_size": f"batch size {value}",
        "threads": f"{value} thread{'s' if value != 1 else ''}",
        "device": f"on {value}",
        "attention": f"{value} attention",
        "softmax_dtype": f"{value} softmax",
        "concurrency": f"{value} request{'s' if value != 1 else ''} in flight",
    }.get(factor, _NAMES[factor])


def _repeats(_: ModelDescription) -> Sequence[Value]:
    return [None]


def _batch_sizes(description: ModelDescription) -> Sequence[Value] | str:
    default = description.computation.get("batch_size")
    if description.computation.get("token_budget") is not None:
        return [1, DEFAULT_BATCH_SIZE]
    if default == "auto":
        return "the model chooses it by itself"
    if not isinstance(default, int):
        return "the model type shows none"
    return [size for size in (1, 2 * default) if size != default]


def _threads(description: ModelDescription) -> Sequence[Value] | str:
    kind = description.computation.get("device")
    if kind not in (None, "cpu"):
        return f"the model computes on {kind}"
    if not description.parameters:
        return "the model does not compute with torch in this process"
    return [1] if description.computation.get("threads") != 1 else [2]


def _devices(description: ModelDescription) -> Sequence[Value] | str:
    default = description.computation.get("device")
    if default is None or description.model_type not in HF_TYPES:
        return f"model type '{description.model_type}' is not moved to another"
    others = [kind for kind in _device_kinds() if kind != default]
    return others or f"there is no other kind than {default} here"


def _device_kinds() -> Iterator[str]:
    import torch

    yield "cpu"
    if torch.cuda.is_available():
        yield "cuda"
    if torch.backends.mps.is_available():
        yield "mps"


def _attentions(description: ModelDescription) -> Sequence[Value] | str:
    default = description.computation.get("attention")
    if default is None or description.model_type not in HF_TYPES:
        return "the model names no implementation of its attention"
    known = ["eager", "sdpa"]
    on_gpu = description.computation.get("device") == "cuda"
    if on_gpu and _main_dtype(description) in _NARROW and find_spec("flash_attn") is not None:
        known.append("flash_attention_2")
    return [name for name in known if name != default]


def _softmax_dtypes(description: ModelDescription) -> Sequence[Value] | str:
    default = description.computation.get("softmax_dtype")
    if default is None or description.model_type not in HF_TYPES:
        return f"model type '{description.model_type}' has a softmax of its own"
    own = _main_dtype(description)
    if own not in _NARROW:
        return f"the model's own dtype is {own or 'unknown'}, which is no narrower than float32"
    return [own]


def _concurrencies(description: ModelDescription) -> Sequence[Value] | str:
    default = description.computation.get("concurrency")
    if not isinstance(default, int):
        return "the model is not asked over a connection"
    return [1] if default != 1 else [_CONCURRENT]


def _main_dtype(description: ModelDescription) -> str:
    """The dtype of most weights."""
    return description.dtype.partition("+")[0]


_VALUES: dict[Factor, Callable[[ModelDescription], Sequence[Value] | str]] = {
    "repeat": _repeats,
    "batch_size": _batch_sizes,
    "threads": _threads,
    "device": _devices,
    "attention": _attentions,
    "softmax_dtype": _softmax_dtypes,
    "concurrency": _concurrencies,
}
