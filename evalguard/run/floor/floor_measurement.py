"""``floor``: what an unchanged model shows when what should not matter is varied."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import evalguard
from evalguard.core.distribution_floor import distribution_floors
from evalguard.core.gate import Gate
from evalguard.core.noise_floor import FACTORS, Factor, MetricFloor, metric_floors
from evalguard.core.paired_scores import PairedScores
from evalguard.core.redaction import redacted_text
from evalguard.core.reports.floor_report import FloorReport
from evalguard.core.scores import ScoreTable
from evalguard.core.settings import digest_of
from evalguard.errors import EXIT_FAILED, EXIT_PASSED, EvaluationError, StoreError, UsageError
from evalguard.errors import nearest as nearest_name
from evalguard.report.contract.floor_document import floor_document
from evalguard.run.choices import Choices, with_workers
from evalguard.run.compare import resolve_request
from evalguard.run.executing.actors import with_execution
from evalguard.run.floor.floor_keys import floor_environment, floor_model_key
from evalguard.run.floor.floor_runs import FloorRun, score_variations
from evalguard.run.floor.held_floors import FLOORS_FOLDER
from evalguard.run.interrupts import interruptible
from evalguard.run.options import CompareOptions, make_options
from evalguard.run.run_environment import read_environment
from evalguard.run.run_identities import identify_model
from evalguard.run.sources import ModelSource, Source
from evalguard.run_token import run_scope
from evalguard.stats.compare_scores import tolerance_of
from evalguard.stats.drift import estimate_drift
from evalguard.store.cache_folder import open_cache_dir
from evalguard.store.floor_store import FloorStore

if TYPE_CHECKING:
    pass
from evalguard.run.floor.floor_result import FloorResult

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
    floors = tuple(_with_margin(one, run.tables, gate) for one in metric_floors(run.shifts))
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
    told = dataclasses.replace(floor, margin_text=margin.text)
    if not gate.covers(floor.task, floor.filter, floor.metric):
        return told
    if margin.unit == "sigma":
        return dataclasses.replace(told, margin=margin.value)
    table = next(table for table in tables if table.key == floor.key)
    drift = estimate_drift(PairedScores(base=table, candidate=table), confidence=gate.confidence)
    try:
        return dataclasses.replace(told, margin=tolerance_of(drift, table, margin).sigma)
    except ValueError:  # it has no such margin: the gate would fail it, whatever its floor
        return told


def _store(report: FloorReport, options: CompareOptions) -> FloorReport:
    """Store the floor, one file per task; a full disk costs the file, not the numbers."""
    if not report.model_key:
        return dataclasses.replace(report, notes=(*report.notes, _UNPROVEN_MODEL))
    store = FloorStore(open_cache_dir(options.cache_dir) / FLOORS_FOLDER)
    kept: list[str] = []
    try:
        for task in dict.fromkeys(floor.task for floor in report.floors):
            document = floor_document(report.only(task))
            key = report.task_keys[task]
            path = store.put(report.model_key, key, report.environment_key, document)
            kept.append(str(path))
    except StoreError as error:
        note = f"the floor could not be kept: {error}"
        report = dataclasses.replace(report, notes=(*report.notes, note))
    return dataclasses.replace(report, kept=tuple(kept))
